//! RankRNN: shards' features go through two dense layers, are added up by variable, and run through a long
//! short-term memory over the variables in both directions; a score is a linear function of the mean of what comes
//! out.

use super::features::{Features, NUMBERS};
use super::network::{Dense, Lstm, Parameters, Trace};
use super::random::Random;

/// Outputs of the two dense layers, and of each direction of the memory. Published are 128, 32 and 128, and three
/// layers of memory where there is one here.
const WIDTHS: (usize, usize, usize) = (16, 8, 8);

/// The network.
#[derive(Debug)]
pub(super) struct RankRnn {
    parameters: Parameters,
    dense: [Dense; 2],
    memory: [Lstm; 2],
    score: Dense,
}

/// What a score leaves for its backward pass.
struct Kept {
    /// By variable and shard: what comes out of the two dense layers.
    shards: Vec<Vec<[Vec<f64>; 2]>>,
    traces: [Trace; 2],
    mean: Vec<(usize, f64)>,
}

fn positive(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|it| it.max(0.0)).collect()
}

fn numbered(values: &[f64]) -> Vec<(usize, f64)> {
    values.iter().copied().enumerate().collect()
}

impl RankRnn {
    /// One that has learned nothing.
    pub fn new(seed: u64) -> RankRnn {
        let random = &mut Random::new(seed);
        let mut parameters = Parameters::default();
        let (first, second, hidden) = WIDTHS;
        let dense = [
            Dense::new(&mut parameters, (NUMBERS, first), random),
            Dense::new(&mut parameters, (first, second), random),
        ];
        let memory = [(); 2].map(|()| Lstm::new(&mut parameters, (second, hidden), random));
        let score = Dense::new(&mut parameters, (2 * hidden, 1), random);
        RankRnn { parameters, dense, memory, score }
    }

    fn run(&self, variables: &[Vec<Features>]) -> (f64, Kept) {
        let parameters = &self.parameters.values;
        let shards: Vec<Vec<[Vec<f64>; 2]>> = variables
            .iter()
            .map(|shards| {
                let through = |features: &Features| {
                    let first = positive(self.dense[0].forward(parameters, features));
                    let second = positive(self.dense[1].forward(parameters, &numbered(&first)));
                    [first, second]
                };
                shards.iter().map(through).collect()
            })
            .collect();
        let sums: Vec<Vec<f64>> = shards
            .iter()
            .map(|shards| {
                let mut sum = vec![0.0; WIDTHS.1];
                for [_, second] in shards {
                    sum.iter_mut().zip(second).for_each(|(sum, value)| *sum += value);
                }
                sum
            })
            .collect();
        let (forward, forward_trace) =
            self.memory[0].forward(parameters, sums.iter().map(Vec::as_slice));
        let (backward, backward_trace) =
            self.memory[1].forward(parameters, sums.iter().rev().map(Vec::as_slice));
        let count = variables.len().max(1) as f64;
        let mut mean = vec![0.0; 2 * WIDTHS.2];
        for (outputs, begin) in [(&forward, 0), (&backward, WIDTHS.2)] {
            for output in outputs {
                for (at, value) in output.iter().enumerate() {
                    mean[begin + at] += value / count;
                }
            }
        }
        let mean = numbered(&mean);
        let score = self.score.forward(parameters, &mean)[0];
        (score, Kept { shards, traces: [forward_trace, backward_trace], mean })
    }

    /// The score of a strategy with these features.
    pub fn score(&self, variables: &[Vec<Features>]) -> f64 {
        self.run(variables).0
    }

    /// Adds to `gradients` what a change of the score by `slope` comes to.
    fn backward(
        &self,
        variables: &[Vec<Features>],
        kept: &Kept,
        slope: f64,
        gradients: &mut [f64],
    ) {
        let parameters = &self.parameters.values;
        let mut of_mean = vec![0.0; 2 * WIDTHS.2];
        self.score.backward(parameters, &kept.mean, &[slope], gradients, Some(&mut of_mean));
        let count = variables.len();
        of_mean.iter_mut().for_each(|it| *it /= count.max(1) as f64);
        let (of_forward, of_backward) = of_mean.split_at(WIDTHS.2);
        let of_memory = |at: usize, slopes: &[f64], gradients: &mut [f64]| {
            let slopes = vec![slopes.to_vec(); count];
            self.memory[at].backward(parameters, &kept.traces[at], &slopes, gradients)
        };
        let forward = of_memory(0, of_forward, gradients);
        let backward = of_memory(1, of_backward, gradients);
        for (index, (shards, features)) in kept.shards.iter().zip(variables).enumerate() {
            let sum = forward[index].iter().zip(&backward[count - 1 - index]);
            let of_sum: Vec<f64> = sum.map(|(one, other)| one + other).collect();
            for ([first, second], features) in shards.iter().zip(features) {
                let through = |slopes: &[f64], values: &[f64]| -> Vec<f64> {
                    let slopes = slopes.iter().zip(values);
                    slopes.map(|(slope, value)| if *value > 0.0 { *slope } else { 0.0 }).collect()
                };
                let of_second = through(&of_sum, second);
                let mut of_first = vec![0.0; WIDTHS.0];
                let [one, two] = &self.dense;
                let into = Some(&mut of_first[..]);
                two.backward(parameters, &numbered(first), &of_second, gradients, into);
                let of_first = through(&of_first, first);
                one.backward(parameters, features, &of_first, gradients, None);
            }
        }
    }
}

impl super::ranker::Trained for RankRnn {
    fn parameters(&mut self) -> &mut Vec<f64> {
        &mut self.parameters.values
    }

    fn scores(&self, batch: &[&[Vec<Features>]]) -> Vec<f64> {
        batch.iter().map(|it| self.score(it)).collect()
    }

    fn gradients(
        &self,
        batch: &[&[Vec<Features>]],
        slopes: &dyn Fn(&[f64]) -> Vec<f64>,
    ) -> Vec<f64> {
        let run: Vec<(f64, Kept)> = batch.iter().map(|it| self.run(it)).collect();
        let scores: Vec<f64> = run.iter().map(|(score, _)| *score).collect();
        let mut gradients = vec![0.0; self.parameters.values.len()];
        for ((variables, (_, kept)), slope) in batch.iter().zip(&run).zip(slopes(&scores)) {
            self.backward(variables, kept, slope, &mut gradients);
        }
        gradients
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranker::Trained;
    use super::super::ranking;
    use super::*;

    /// Three strategies of two and three variables of one or two shards.
    fn batch() -> Vec<Vec<Vec<Features>>> {
        let random = &mut Random::new(7);
        let mut shard = || -> Features {
            let mut at = 0;
            let mut features = vec![];
            while at + 5 < NUMBERS {
                at += 1 + random.below(5);
                features.push((at, 2.0 * random.unit() - 0.5));
            }
            features
        };
        vec![
            vec![vec![shard()], vec![shard(), shard()]],
            vec![vec![shard(), shard()], vec![shard()], vec![shard()]],
            vec![vec![shard()], vec![shard()], vec![shard(), shard()]],
        ]
    }

    #[test]
    fn derivatives_are_differences_of_the_loss() {
        let mut network = RankRnn::new(3);
        let batch = batch();
        let batch: Vec<&[Vec<Features>]> = batch.iter().map(Vec::as_slice).collect();
        let seconds = [1.0, 3.0, 2.0];
        let gradients = network.gradients(&batch, &|scores| ranking::loss(scores, &seconds).1);
        assert!(gradients.iter().filter(|it| **it != 0.0).count() > gradients.len() / 4);
        let count = network.parameters().len();
        for index in (0..count).step_by(7) {
            let mut at = |step: f64| {
                network.parameters()[index] += step;
                let found = ranking::loss(&network.scores(&batch), &seconds).0;
                network.parameters()[index] -= step;
                found
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            let gradient = gradients[index];
            assert!((difference - gradient).abs() < 1e-7, "{index}: {difference} {gradient}");
        }
    }

    #[test]
    fn the_order_of_variables_counts() {
        let network = RankRnn::new(3);
        let one = &batch()[1];
        let reversed: Vec<Vec<Features>> = one.iter().rev().cloned().collect();
        assert!((network.score(one) - network.score(&reversed)).abs() > 1e-6);
    }
}
