//! The linear cost model: a weighted sum of the features of all shards.

use super::features::{Features, NUMBERS};
use super::ranker::Trained;

/// What is added up of a strategy: each feature as often as it is there, and in proportion to the shards' parts of
/// the gradients.
const SUMS: usize = 2 * NUMBERS;

/// Where the part of the gradients stands among the features.
const PART: usize = NUMBERS - 4;

/// The weights.
#[derive(Debug)]
pub(super) struct Linear(Vec<f64>);

impl Linear {
    /// One that has learned nothing.
    pub fn new() -> Linear {
        Linear(vec![0.0; SUMS])
    }

    fn sums(variables: &[Vec<Features>]) -> Vec<f64> {
        let mut sums = vec![0.0; SUMS];
        let shards = variables.iter().map(Vec::len).sum::<usize>().max(1) as f64;
        for features in variables.iter().flatten() {
            let part = features.iter().find(|(at, _)| *at == PART).map_or(0.0, |(_, part)| *part);
            for &(at, value) in features {
                sums[at] += value / shards;
                sums[NUMBERS + at] += part * value;
            }
        }
        sums
    }
}

impl Trained for Linear {
    fn parameters(&mut self) -> &mut Vec<f64> {
        &mut self.0
    }

    fn scores(&self, batch: &[&[Vec<Features>]]) -> Vec<f64> {
        let score = |variables: &&[Vec<Features>]| -> f64 {
            Linear::sums(variables).iter().zip(&self.0).map(|(sum, weight)| sum * weight).sum()
        };
        batch.iter().map(score).collect()
    }

    fn gradients(
        &self,
        batch: &[&[Vec<Features>]],
        slopes: &dyn Fn(&[f64]) -> Vec<f64>,
    ) -> Vec<f64> {
        let mut gradients = vec![0.0; SUMS];
        for (variables, slope) in batch.iter().zip(slopes(&self.scores(batch))) {
            let sums = Linear::sums(variables);
            gradients.iter_mut().zip(sums).for_each(|(into, sum)| *into += slope * sum);
        }
        gradients
    }
}
