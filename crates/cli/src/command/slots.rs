//! Columns for a timed schedule.

use shardloom::plan::greatest_common_divisor;
use shardloom::schedule::{StageMap, Timed, Timing};

/// A unit in which times are whole numbers.
///
/// Whole numbers keep sums of times exact, and so which actions meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Units in one of the unit that times were given in, but for the chunks.
    power: f64,
    exact: bool,
    chunks: f64,
}

/// The most digits after the point that times are taken to have.
const MOST_DIGITS: i32 = 6;

impl Scale {
    /// A unit for `times`, such that the share of one of a device's `chunks` stages in them is whole, too.
    /// Where a time has more than six digits after the point, they stay what they are, in millionths.
    pub fn of(times: &[f64], chunks: usize) -> Scale {
        let whole = |power: f64| {
            let near = |&time: &f64| (time * power - (time * power).round()).abs() < 1e-6;
            times.iter().all(near)
        };
        let digits = (0..=MOST_DIGITS).find(|&digits| whole(10f64.powi(digits)));
        let power = 10f64.powi(digits.unwrap_or(MOST_DIGITS));
        Scale { power, exact: digits.is_some(), chunks: chunks as f64 }
    }

    /// A time in units.
    pub fn apply(self, time: f64) -> f64 {
        match self.exact {
            true => (time * self.power).round() * self.chunks,
            false => time * self.power * self.chunks,
        }
    }

    /// Units in one of the unit that times were given in.
    pub fn units(self) -> f64 {
        self.power * self.chunks
    }
}

/// A schedule in columns of one width.
#[derive(Clone, Debug, PartialEq)]
pub struct Slots {
    /// What each device does in each column, `.` for idle.
    pub rows: Vec<Vec<String>>,
    /// How long a column is, in units.
    pub width: f64,
    /// Whether every action begins and ends where a column does. Otherwise both are rounded to columns,
    /// which are as wide as the shortest action.
    pub exact: bool,
}

/// The most columns that the shortest action is drawn in.
const FINEST: u64 = 24;

impl Slots {
    /// As few columns as there are when it takes `makespan`, of which the shortest action is at most `shortest`.
    pub fn fewest_columns(makespan: f64, shortest: f64) -> u64 {
        // Starts and ends that are no whole units are rounded to some.
        let width = if shortest.fract() == 0.0 { shortest } else { shortest + 1.0 };
        (makespan / width).floor() as u64
    }

    /// Puts `timing`, in whole units, in columns as wide as possible. Nothing if there are more than
    /// `most_cells` cells.
    pub fn of(timing: &Timing, map: &StageMap, most_cells: u64) -> Option<Slots> {
        let edge = |time: f64| time.round() as u64;
        let actions = || timing.actions.iter().flatten();
        let edges = actions().flat_map(|action| [edge(action.start), edge(action.end)]);
        let divisor = edges.fold(0, greatest_common_divisor).max(1);
        let shortest =
            actions().map(|action| edge(action.end) - edge(action.start)).min().unwrap_or(1);
        let exact = shortest / divisor <= FINEST;
        let width = if exact { divisor } else { shortest }.max(1) as f64;
        let columns = (timing.makespan / width).round() as u64;
        if columns.saturating_mul(timing.actions.len() as u64) > most_cells {
            return None;
        }
        let column = |time: f64| (time / width).round() as usize;
        let row = |(device, actions): (usize, &Vec<Timed>)| {
            let notation = map.notation(device);
            let mut row = vec![".".to_owned(); columns as usize];
            for timed in actions {
                row[column(timed.start)..column(timed.end)].fill(notation.text(timed.action));
            }
            row
        };
        let rows = timing.actions.iter().enumerate().map(row).collect();
        Some(Slots { rows, width, exact })
    }
}

#[cfg(test)]
mod tests {
    use shardloom::plan::{Arrangement, PassTimes, ScheduleKind};
    use shardloom::schedule::{Schedule, time};

    use super::*;

    fn slots(kind: ScheduleKind, chunks: usize, times: PassTimes) -> (Slots, f64) {
        let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
        let map = StageMap::arranged(arrangement, 2, chunks, 4).expect("a map");
        let PassTimes { forward, input, weight, message, .. } = times;
        let scale = Scale::of(&[forward, input, weight, message], chunks);
        let [forward, input, weight, message] =
            [forward, input, weight, message].map(|time| scale.apply(time));
        let times = PassTimes { forward, input, weight, message, ..times };
        let schedule = Schedule::build(kind, map, &times).expect("a schedule");
        let timing = time(&schedule, 1, &times).expect("no deadlock");
        let slots = Slots::of(&timing, &schedule.map, 10_000).expect("few cells");
        (slots, scale.units())
    }

    fn times(forward: f64, half: f64, message: f64) -> PassTimes {
        PassTimes { forward, input: half, weight: half, message, ..PassTimes::default() }
    }

    #[test]
    fn columns_are_the_greatest_common_divisor_of_all_times() {
        for (chunks, given, width) in [
            (1, times(1.0, 1.0, 0.0), 1.0),
            (1, times(1.0, 0.75, 0.0), 0.5),
            (1, times(3.0, 3.0, 0.0), 3.0),
            (1, times(0.3, 0.3, 0.1), 0.1),
            (2, times(1.0, 1.0, 0.0), 0.5),
            (3, times(1.0, 1.0, 0.0), 1.0 / 3.0),
        ] {
            let kind = match chunks {
                1 => ScheduleKind::OneForwardOneBackward,
                _ => ScheduleKind::Interleaved,
            };
            let (slots, scale) = slots(kind, chunks, given);
            assert!(slots.exact);
            assert!((slots.width / scale - width).abs() < 1e-12, "{given:?}: {}", slots.width);
            for row in &slots.rows {
                let busy = row.iter().filter(|action| *action != ".").count() as f64;
                let work = 4.0 * (given.forward + given.input + given.weight);
                assert!((busy * width - work).abs() < 1e-9, "{given:?}: {row:?}");
            }
        }
    }

    #[test]
    fn columns_that_would_be_too_fine_are_rounded_and_no_action_is_lost() {
        let given = times(1.0, 0.500_05, 0.0);
        let (slots, scale) = slots(ScheduleKind::OneForwardOneBackward, 1, given);
        assert!(!slots.exact);
        assert_eq!(slots.width / scale, 1.0, "as wide as the shortest action");
        for row in &slots.rows {
            for action in (0..4).flat_map(|it| [format!("F{it}"), format!("B{it}")]) {
                assert!(row.contains(&action), "no {action} in {row:?}");
            }
        }
    }
}
