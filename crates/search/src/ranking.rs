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
