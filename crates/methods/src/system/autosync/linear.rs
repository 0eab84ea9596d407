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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::autosync::random::Random;

    /// The first half of the weights is for means over shards, the second for sums over parts of the gradients.
    #[test]
    fn a_weight_counts_the_mean_of_its_feature_or_its_sum_by_the_shards_parts() {
        let random = &mut Random::new(5);
        for _ in 0..20 {
            // Up to four variables of up to three shards, with their part and some other features.
            let mut shard = || -> Features {
                let others = (0..NUMBERS).filter(|&at| at != PART && at % 7 == random.below(7));
                let mut features: Features = others.map(|at| (at, 1.0 + at as f64)).collect();
                features.push((PART, random.unit()));
                features
            };
            let count = 1 + shard().len() % 4;
            let variables: Vec<Vec<Features>> =
                (0..count).map(|it| (0..=it % 3).map(|_| shard()).collect()).collect();
            let shards: Vec<&Features> = variables.iter().flatten().collect();
            let of = |shard: &Features, place: usize| -> f64 {
                shard.iter().filter(|it| it.0 == place).map(|it| it.1).sum()
            };
            for place in 0..NUMBERS {
                let values: Vec<f64> = shards.iter().map(|shard| of(shard, place)).collect();
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                let by_parts = shards.iter().zip(&values).map(|(shard, it)| of(shard, PART) * it);
                for (weight, expected) in [(place, mean), (NUMBERS + place, by_parts.sum())] {
                    let mut model = Linear::new();
                    model.parameters()[weight] = 2.0;
                    let found = model.scores(&[&variables])[0];
                    assert!((found - 2.0 * expected).abs() < 1e-9, "{weight}: {found}");
                }
            }
        }
    }
}
