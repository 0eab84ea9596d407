//! How collectives slow down the computation beside which they run.
//!
//! Kernels of collectives take multiprocessors and bandwidth of memory, so what a device computes meanwhile takes
//! [`beside_collectives`](shardloom_cluster::Stack::beside_collectives) times as long as alone. Several collectives at
//! once take no more than one. What the computation takes of a collective's time is in what was measured of links.

use std::collections::VecDeque;

use shardloom_program::timeline::Picos;

/// How many times as long computation takes beside a collective, at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slowing(pub f64);

impl Slowing {
    /// How long computation takes that alone takes `alone`, where collectives are under way for its first
    /// `collectives` seconds.
    pub fn computation(self, alone: f64, collectives: f64) -> f64 {
        let slowed = collectives / self.0;
        if slowed < alone { alone - slowed + collectives } else { alone * self.0 }
    }

    /// How long computation and collectives take that begin together, until both have ended.
    pub fn both(self, alone: f64, collectives: f64) -> f64 {
        self.computation(alone, collectives).max(collectives)
    }
}

/// The collectives that a device is in, or will be, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    /// From when to when, by when they start.
    spans: VecDeque<(Picos, Picos)>,
}

impl Collectives {
    /// A collective runs from `start` to `end`.
    pub fn add(&mut self, start: Picos, end: Picos) {
        if start < end {
            let place = self.spans.partition_point(|span| span.0 <= start);
            self.spans.insert(place, (start, end));
        }
    }

    /// When computation ends that starts at `start`, and takes `alone` where nothing is beside it. What starts later
    /// is asked for later.
    pub fn end_of(&mut self, start: Picos, alone: Picos, slowing: Slowing) -> Picos {
        while self.spans.front().is_some_and(|span| span.1 <= start) {
            self.spans.pop_front();
        }
        // Since the start.
        let since = |time: Picos| time.0.saturating_sub(start.0) as f64;
        let (mut passed, mut left, mut added) = (0.0, alone.0 as f64, 0.0);
        for &(begin, end) in &self.spans {
            let free = (since(begin) - passed).max(0.0);
            if left <= free {
                break;
            }
            left -= free;
            passed += free;
            let beside = (since(end) - passed).max(0.0);
            let done = left.min(beside / slowing.0);
            left -= done;
            passed += done * slowing.0;
            added += done * (slowing.0 - 1.0);
        }
        // Not a picosecond more for what rounding has added.
        start + alone + Picos((added - 1e-3).max(0.0).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When computation ends that starts at 0 beside these collectives, which take half of its speed.
    fn end(alone: u64, spans: &[(u64, u64)]) -> u64 {
        let mut collectives = Collectives::default();
        for &(start, end) in spans {
            collectives.add(Picos(start), Picos(end));
        }
        collectives.end_of(Picos(0), Picos(alone), Slowing(2.0)).0
    }

    #[test]
    fn what_runs_beside_a_collective_takes_longer_and_the_rest_does_not() {
        assert_eq!(end(1000, &[]), 1000);
        // 200 alone, 300 in 600 beside it, 500 alone.
        assert_eq!(end(1000, &[(200, 800)]), 1300);
        // All of it beside the collective.
        assert_eq!(end(1000, &[(0, 10000)]), 2000);
        // It ends before the collective begins.
        assert_eq!(end(1000, &[(1000, 2000)]), 1000);
    }

    #[test]
    fn collectives_at_once_slow_down_once() {
        assert_eq!(end(1000, &[(200, 800), (200, 800)]), 1300);
        assert_eq!(end(1000, &[(200, 600), (400, 800)]), 1300);
        // In whatever order they are told of.
        assert_eq!(end(1000, &[(600, 800), (0, 400)]), 1300);
    }

    #[test]
    fn collectives_that_have_ended_are_forgotten() {
        let mut collectives = Collectives::default();
        collectives.add(Picos(0), Picos(5));
        collectives.add(Picos(4), Picos(9));
        assert_eq!(collectives.end_of(Picos(5), Picos(1), Slowing(2.0)), Picos(7));
        assert_eq!(collectives.spans.len(), 1);
    }

    #[test]
    fn computation_and_collectives_that_begin_together_end_with_the_longer() {
        let slowing = Slowing(1.25);
        // 4 of 8 are computed beside 5 of collectives, and 4 alone.
        assert_eq!(slowing.both(8.0, 5.0), 9.0);
        assert_eq!(slowing.both(8.0, 10.0), 10.0);
        assert_eq!(slowing.both(8.0, 20.0), 20.0);
        assert_eq!(slowing.computation(8.0, 20.0), 10.0);
        assert_eq!(Slowing(1.0).both(8.0, 5.0), 8.0);
    }
}
