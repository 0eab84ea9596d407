//! The best candidates so far.

use shardloom_sim::estimate::{Candidate, Estimate};

/// A fixed number of candidates, fastest first; of equally fast ones those that need less memory, then
/// those that came first.
#[derive(Clone, Debug)]
pub(crate) struct Ranking {
    places: usize,
    ranked: Vec<(Candidate, Estimate)>,
}

impl Ranking {
    /// Room for `places` candidates.
    pub fn new(places: usize) -> Ranking {
        Ranking { places, ranked: vec![] }
    }

    /// Only candidates faster than this can still get a place.
    pub fn threshold_seconds(&self) -> f64 {
        match self.ranked.last() {
            Some((_, last)) if self.ranked.len() == self.places => last.step_seconds,
            _ => f64::INFINITY,
        }
    }

    /// What the fastest takes.
    pub fn best_seconds(&self) -> f64 {
        self.ranked.first().map_or(f64::INFINITY, |(_, best)| best.step_seconds)
    }

    /// Gives `candidate` a place if it deserves one.
    pub fn insert(&mut self, candidate: Candidate, estimate: Estimate) {
        let key = |it: &Estimate| (it.step_seconds, it.peak_bytes);
        let place = self.ranked.partition_point(|(_, known)| key(known) <= key(&estimate));
        if place < self.places {
            self.ranked.insert(place, (candidate, estimate));
            self.ranked.truncate(self.places);
        }
    }

    /// Best first.
    pub fn into_ranked(self) -> Vec<(Candidate, Estimate)> {
        self.ranked
    }
}

#[cfg(test)]
mod tests {
    use shardloom_plan::{Recompute, ScheduleKind};
    use shardloom_sim::estimate::Cut;

    use super::*;

    fn candidate(microbatch: u32) -> Candidate {
        Candidate {
            cut: Cut::Even,
            microbatch,
            pp: 1,
            dp: 1,
            cp: 1,
            tp: 1,
            sequence_parallel: false,
            microbatches: 1,
            schedule: ScheduleKind::OneForwardOneBackward,
            chunks: 1,
            zero: 0,
            sharing: 1,
            recompute: Recompute::None,
        }
    }

    #[test]
    fn the_fastest_get_places_and_of_equally_fast_ones_the_smaller_and_the_earlier() {
        let mut ranking = Ranking::new(3);
        assert_eq!(ranking.best_seconds(), f64::INFINITY);
        let given = [(3.0, 1.0), (2.0, 9.0), (2.0, 4.0), (2.0, 4.0), (5.0, 0.0), (1.0, 7.0)];
        let mut thresholds = vec![];
        for (number, (step_seconds, peak_bytes)) in (1..).zip(given) {
            thresholds.push(ranking.threshold_seconds());
            ranking.insert(candidate(number), Estimate { step_seconds, peak_bytes });
        }
        // Only when there are three, one has to be faster than the last of them.
        let infinite = f64::INFINITY;
        assert_eq!(thresholds, [infinite, infinite, infinite, 3.0, 2.0, 2.0]);
        assert_eq!(ranking.best_seconds(), 1.0);
        let ranked = ranking.into_ranked();
        let order: Vec<u32> = ranked.iter().map(|(it, _)| it.microbatch).collect();
        assert_eq!(order, [6, 3, 4]);
    }
}
