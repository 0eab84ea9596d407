//! Ranks that take longer than others that do as much.

use std::collections::VecDeque;

/// Rows of steps that are looked back on.
const ROWS: usize = 10;
/// In how many of them a rank must have been slow to be named, and in how many at most to be named no longer.
const SLOW: usize = 8;
const FAST: usize = 4;
/// A rank is slow that takes so many times as long as the others, and so many seconds longer: less than that
/// is no more than what else a machine does now and then.
const TIMES: f64 = 1.2;
const SECONDS: f64 = 1e-3;

/// A rank that takes longer for its own part, waiting for others left out, than ranks that have as much to do:
/// those of its stage that train on other samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// The rank.
    pub rank: u32,
    /// The first step of which that is known.
    pub since_step: u64,
    /// How many times as long it takes as the median of the others, over the last ten rows of steps.
    pub times: f64,
}

/// What ranks took in the last rows. Noting another asks the heap for nothing.
pub(crate) struct Watch {
    /// By rank: the others that have as much to do.
    others: Vec<Vec<usize>>,
    /// The oldest first, once there were so many.
    rows: VecDeque<Row>,
    noted: usize,
    /// By rank: since when it has been slow, if it is.
    since: Vec<Option<u64>>,
    /// For medians.
    sorted: Vec<f64>,
}

#[derive(Clone)]
struct Row {
    first_step: u64,
    /// By rank.
    seconds: Vec<f64>,
    /// By rank, whether it was slow.
    slow: Vec<bool>,
}

impl Watch {
    pub fn new(others: Vec<Vec<usize>>) -> Watch {
        let ranks = others.len();
        let row = Row { first_step: 0, seconds: vec![0.0; ranks], slow: vec![false; ranks] };
        let rows = vec![row; ROWS].into();
        Watch {
            others,
            rows,
            noted: 0,
            since: vec![None; ranks],
            sorted: Vec::with_capacity(ranks),
        }
    }

    /// Takes note of a row of steps: what each rank took for its own part of it.
    pub fn note(&mut self, first_step: u64, seconds: impl IntoIterator<Item = f64>) {
        let Some(mut row) = self.rows.pop_front() else { return };
        row.first_step = first_step;
        row.seconds.clear();
        row.seconds.extend(seconds);
        row.slow.clear();
        for (&own, others) in row.seconds.iter().zip(&self.others) {
            let median = median(&mut self.sorted, others.iter().map(|&other| row.seconds[other]));
            let is_slow = |median| own > TIMES * median && own - median > SECONDS;
            row.slow.push(median.is_some_and(is_slow));
        }
        self.rows.push_back(row);
        self.noted = (self.noted + 1).min(ROWS);
        for (rank, since) in self.since.iter_mut().enumerate() {
            let mut slow = self.rows.iter().rev().take(self.noted).rev().filter(|it| it.slow[rank]);
            match since {
                None if slow.clone().count() >= SLOW => {
                    *since = slow.next().map(|row| row.first_step);
                }
                Some(_) if slow.count() <= FAST => *since = None,
                _ => {}
            }
        }
    }

    /// The ranks that are slow now.
    pub fn stragglers(&self) -> Vec<Straggler> {
        let total = |rank: usize| self.rows.iter().map(|row| row.seconds[rank]).sum::<f64>();
        let slow =
            self.since.iter().enumerate().filter_map(|(rank, since)| Some((rank, (*since)?)));
        let straggler = |(rank, since_step): (usize, u64)| {
            let others = self.others[rank].iter().map(|&other| total(other));
            let times = total(rank) / median(&mut vec![], others)?;
            Some(Straggler { rank: rank as u32, since_step, times })
        };
        slow.filter_map(straggler).collect()
    }
}

/// The median of some numbers, which are sorted in `room`.
fn median(room: &mut Vec<f64>, of: impl Iterator<Item = f64>) -> Option<f64> {
    room.clear();
    room.extend(of);
    room.sort_unstable_by(f64::total_cmp);
    room.get(room.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(ranks: usize) -> Watch {
        let others = |own| (0..ranks).filter(|&other| other != own).collect();
        Watch::new((0..ranks).map(others).collect())
    }

    #[test]
    fn a_rank_that_slows_down_is_named_with_when_and_by_how_much() {
        let mut watch = watch(4);
        for step in 0..20 {
            watch.note(step, vec![1.0, 1.1, 0.9, 1.0]);
        }
        for step in 20..28 {
            assert_eq!(watch.stragglers(), [], "step {step}");
            watch.note(step, vec![1.0, 1.1, 1.5, 1.0]);
        }
        let [slow] = watch.stragglers()[..] else { panic!("one rank is slow") };
        assert_eq!((slow.rank, slow.since_step), (2, 20));
        // Two rows of 0.9 and eight of 1.5 beside medians of 1.
        assert!((slow.times - 1.38).abs() < 1e-12, "{slow:?}");
        for step in 28..34 {
            assert_eq!(watch.stragglers()[0].since_step, 20, "step {step}");
            watch.note(step, vec![1.0, 1.1, 0.9, 1.0]);
        }
        assert_eq!(watch.stragglers(), []);
    }

    #[test]
    fn a_rank_that_is_slow_in_two_of_three_rows_is_not_named() {
        let mut watch = watch(2);
        for step in 0..100 {
            watch.note(step, vec![1.0, if step % 3 == 0 { 1.0 } else { 3.0 }]);
            assert_eq!(watch.stragglers(), []);
        }
    }

    #[test]
    fn less_than_a_millisecond_is_no_straggler() {
        let mut watch = watch(2);
        for step in 0..20 {
            watch.note(step, vec![1e-4, 9e-4]);
            assert_eq!(watch.stragglers(), []);
        }
    }

    #[test]
    fn ranks_with_other_work_are_not_compared() {
        // Two stages of two ranks; the second has twice as much to do.
        let mut watch = Watch::new(vec![vec![1], vec![0], vec![3], vec![2]]);
        // Alone, and with nothing measured.
        let mut alone = Watch::new(vec![vec![], vec![]]);
        for step in 0..10 {
            watch.note(step, vec![1.0, 1.0, 2.0, 2.0]);
            alone.note(step, vec![1.0, 9.0]);
        }
        assert_eq!((watch.stragglers(), alone.stragglers()), (vec![], vec![]));
    }

    /// The middle of some numbers, of an even number of them the larger of two.
    fn middle(mut numbers: Vec<f64>) -> Option<f64> {
        numbers.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        numbers.get(numbers.len() / 2).copied()
    }

    /// Who is slow after some rows, by the words of the documentation: named after 8 slow rows of the last 10 at the
    /// latest, with the first of them, until there are 4 at most.
    fn by_the_words(others: &[Vec<usize>], rows: &[(u64, Vec<f64>)]) -> Vec<Straggler> {
        let mut named = vec![];
        for own in 0..others.len() {
            let beside =
                |seconds: &[f64]| middle(others[own].iter().map(|&it| seconds[it]).collect());
            let is_slow = |seconds: &[f64]| {
                let longer = |rest: f64| seconds[own] > 1.2 * rest && seconds[own] > rest + 0.001;
                beside(seconds).is_some_and(longer)
            };
            let mut since = None;
            for end in 1..=rows.len() {
                let last = &rows[end.saturating_sub(10)..end];
                let slow: Vec<u64> =
                    last.iter().filter(|row| is_slow(&row.1)).map(|row| row.0).collect();
                if since.is_none() && slow.len() >= 8 {
                    since = Some(slow[0]);
                } else if slow.len() <= 4 {
                    since = None;
                }
            }
            let Some(since_step) = since else { continue };
            let last = &rows[rows.len().saturating_sub(10)..];
            let total = |rank: usize| last.iter().map(|row| row.1[rank]).sum::<f64>();
            let rest = middle(others[own].iter().map(|&it| total(it)).collect());
            let times = total(own) / rest.expect("others");
            named.push(Straggler { rank: own as u32, since_step, times });
        }
        named
    }

    #[test]
    fn whoever_is_named_after_any_rows_is_whom_the_words_name() {
        let mut state = 2026_u32;
        let mut draw = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        // Five that do the same, two that do another thing, and one alone.
        let groups = [0..5, 5..7, 7..8];
        let others: Vec<Vec<usize>> = groups
            .iter()
            .flat_map(|group| {
                group.clone().map(|own| group.clone().filter(|&it| it != own).collect())
            })
            .collect();
        let (mut named, mut ended) = (0, 0);
        for _ in 0..60 {
            let mut watch = Watch::new(others.clone());
            let mut rows = vec![];
            let mut step = u64::from(draw(1000));
            // How likely a rank is to be slow in a row, of 16, which changes now and then.
            let mut slowness = [0; 8];
            let unit = [1.0, 0.004][draw(2) as usize];
            for row in 0..45 {
                if row % 15 == 0 {
                    slowness = std::array::from_fn(|_| [0, 2, 13, 16][draw(4) as usize]);
                }
                let mut seconds = vec![];
                for slowness in slowness {
                    let is_slow = draw(16) < slowness;
                    let most =
                        if is_slow { [1.19, 1.21, 1.27, 2.0] } else { [0.95, 1.0, 1.0, 1.05] };
                    seconds.push(unit * most[draw(4) as usize]);
                }
                watch.note(step, seconds.clone());
                rows.push((step, seconds));
                step += u64::from(draw(5)) + 1;
                let (found, expected) = (watch.stragglers(), by_the_words(&others, &rows));
                let who = |all: &[Straggler]| -> Vec<(u32, u64)> {
                    all.iter().map(|it| (it.rank, it.since_step)).collect()
                };
                assert_eq!(who(&found), who(&expected), "{rows:?}");
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found.times / expected.times - 1.0).abs() < 1e-12, "{found:?}");
                }
                ended += usize::from(found.len() < named);
                named = found.len();
            }
        }
        assert!(ended > 10, "{ended}");
    }
}
