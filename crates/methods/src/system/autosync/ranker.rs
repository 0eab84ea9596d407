//! Cost models that are trained to rank strategies, and how they are.

use super::features::{Features, OfStrategy, features};
use super::linear::Linear;
use super::network::Adam;
use super::random::Random;
use super::rank_rnn::RankRnn;
use super::ranking;
use super::trials::Trials;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A linear function of features.
    Linear,
    /// The recurrent network.
    RankRnn,
}

/// A function with parameters that scores strategies, given as their features by variable and shard.
pub(super) trait Trained {
    /// All parameters.
    fn parameters(&mut self) -> &mut Vec<f64>;

    /// Scores of strategies; a larger one should take longer.
    fn scores(&self, batch: &[&[Vec<Features>]]) -> Vec<f64>;

    /// The gradients of the parameters, where `slopes` gives those of scores.
    fn gradients(
        &self,
        batch: &[&[Vec<Features>]],
        slopes: &dyn Fn(&[f64]) -> Vec<f64>,
    ) -> Vec<f64>;
}

/// Strategies that are compared at once in a step of training.
const BATCH: usize = 16;

/// Learning rates, the first for four fifths of the steps, as published.
const RATES: (f64, f64) = (2e-3, 1e-4);

/// A cost model that learns from trials.
pub(super) struct Ranker {
    model: Box<dyn Trained>,
    adam: Adam,
    random: Random,
}

impl Ranker {
    /// One that has learned nothing.
    pub fn new(kind: Kind, seed: u64) -> Ranker {
        let mut model: Box<dyn Trained> = match kind {
            Kind::Linear => Box::new(Linear::new()),
            Kind::RankRnn => Box::new(RankRnn::new(seed)),
        };
        let adam = Adam::new(model.parameters().len());
        Ranker { model, adam, random: Random::new(seed ^ 0x7261_6e6b) }
    }

    /// Scores strategies by their features.
    pub fn scores(&self, strategies: &[OfStrategy]) -> Vec<f64> {
        let strategies: Vec<&[Vec<Features>]> = strategies.iter().map(Vec::as_slice).collect();
        self.model.scores(&strategies)
    }

    /// Trains it for so many steps on some trials; each step compares some of those of one problem.
    pub fn fit(&mut self, all: &[&Trials], steps: usize) {
        let known: Vec<(Vec<OfStrategy>, Vec<f64>)> = all
            .iter()
            .filter(|trials| trials.done.len() > 1)
            .map(|trials| {
                let of = |it: &super::trials::Trial| features(&trials.problem, &it.strategy);
                let seconds = trials.done.iter().map(|it| it.seconds);
                (trials.done.iter().map(of).collect(), seconds.collect())
            })
            .collect();
        if known.is_empty() {
            return;
        }
        for step in 0..steps {
            let (strategies, seconds) = &known[self.random.below(known.len())];
            let chosen: Vec<usize> = match strategies.len() > BATCH {
                true => (0..BATCH).map(|_| self.random.below(strategies.len())).collect(),
                false => (0..strategies.len()).collect(),
            };
            let batch: Vec<&[Vec<Features>]> =
                chosen.iter().map(|&it| strategies[it].as_slice()).collect();
            let seconds: Vec<f64> = chosen.iter().map(|&it| seconds[it]).collect();
            let gradients =
                self.model.gradients(&batch, &|scores| ranking::loss(scores, &seconds).1);
            let rate = if 5 * step < 4 * steps { RATES.0 } else { RATES.1 };
            self.adam.step(self.model.parameters(), &gradients, rate);
        }
    }
}
