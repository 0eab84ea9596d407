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
}
