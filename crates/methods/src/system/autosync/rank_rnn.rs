//! RankRNN: shards' features go through two dense layers, are added up by variable, and run through a long
//! short-term memory over the variables in both directions; a score is a linear function of the mean of what comes
//! out.

use shardloom_kernels::activation::{relu, relu_input_grad};
use shardloom_kernels::elementwise::scale_in_place;
use shardloom_kernels::reduce::sum_into;

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
    /// By shard, variable by variable.
    features: Vec<f32>,
    dense: [Layer; 2],
    traces: [Trace; 2],
    mean: Vec<f32>,
}

/// What a dense layer puts out, and that with 0 where it is negative.
struct Layer {
    outputs: Vec<f32>,
    positive: Vec<f32>,
}

impl Layer {
    fn of(outputs: Vec<f32>) -> Layer {
        let mut positive = vec![0.0; outputs.len()];
        relu(&outputs, &mut positive);
        Layer { outputs, positive }
    }

    /// The gradients of its outputs for those of what is positive.
    fn of_outputs(&self, of_positive: &[f32]) -> Vec<f32> {
        let mut of_outputs = vec![0.0; of_positive.len()];
        relu_input_grad(&self.outputs, of_positive, &mut of_outputs, false);
        of_outputs
    }
}

/// Rows of so many numbers in the reverse order.
fn reversed(rows: &[f32], width: usize) -> Vec<f32> {
    rows.chunks(width).rev().flatten().copied().collect()
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

    /// The parameters in the format of the kernels.
    fn rounded(&self) -> Vec<f32> {
        self.parameters.values.iter().map(|&it| it as f32).collect()
    }

    /// The score of a strategy with these features, by rounded parameters.
    fn run(&self, parameters: &[f32], variables: &[Vec<Features>]) -> (f32, Kept) {
        let (_, width, hidden) = WIDTHS;
        let shards = || variables.iter().flatten();
        let mut features = vec![0.0; shards().count() * NUMBERS];
        for (row, known) in features.chunks_mut(NUMBERS).zip(shards()) {
            known.iter().for_each(|&(at, value)| row[at] = value as f32);
        }
        let first = Layer::of(self.dense[0].forward(parameters, &features));
        let second = Layer::of(self.dense[1].forward(parameters, &first.positive));
        let mut sums = vec![0.0; variables.len() * width];
        let mut of_shards = second.positive.chunks(width);
        for (sum, shards) in sums.chunks_mut(width).zip(variables) {
            of_shards.by_ref().take(shards.len()).for_each(|shard| sum_into(sum, shard));
        }
        let backward = reversed(&sums, width);
        let runs = [(&self.memory[0], sums), (&self.memory[1], backward)];
        let traces = runs.map(|(memory, sums)| memory.forward(parameters, sums));
        let mut mean = vec![0.0; 2 * hidden];
        for (trace, mean) in traces.iter().zip(mean.chunks_mut(hidden)) {
            trace.outputs.chunks(hidden).for_each(|output| sum_into(mean, output));
        }
        scale_in_place(&mut mean, 1.0 / variables.len() as f32);
        let score = self.score.forward(parameters, &mean)[0];
        (score, Kept { features, dense: [first, second], traces, mean })
    }

    /// Adds to `gradients` what a change of the score by `slope` comes to.
    fn backward(
        &self,
        parameters: &[f32],
        variables: &[Vec<Features>],
        kept: &Kept,
        slope: f32,
        gradients: &mut [f32],
    ) {
        let (_, width, hidden) = WIDTHS;
        self.score.backward(&kept.mean, &[slope], gradients);
        let mut of_mean = self.score.of_inputs(parameters, &[slope]);
        scale_in_place(&mut of_mean, 1.0 / variables.len() as f32);
        let mut of_inputs = |direction: usize| {
            let of_outputs = of_mean[direction * hidden..][..hidden].repeat(variables.len());
            let trace = &kept.traces[direction];
            self.memory[direction].backward(parameters, trace, &of_outputs, gradients)
        };
        let mut of_sums = of_inputs(0);
        sum_into(&mut of_sums, &reversed(&of_inputs(1), width));
        // Each shard of a variable has those of its sum.
        let of_variables = of_sums.chunks(width).zip(variables);
        let of_second: Vec<f32> =
            of_variables.flat_map(|(of_sum, shards)| of_sum.repeat(shards.len())).collect();
        let ([one, two], [first, second]) = (&self.dense, &kept.dense);
        let of_second = second.of_outputs(&of_second);
        two.backward(&first.positive, &of_second, gradients);
        let of_first = first.of_outputs(&two.of_inputs(parameters, &of_second));
        one.backward(&kept.features, &of_first, gradients);
    }
}

impl super::ranker::Trained for RankRnn {
    fn parameters(&mut self) -> &mut Vec<f64> {
        &mut self.parameters.values
    }

    fn scores(&self, batch: &[&[Vec<Features>]]) -> Vec<f64> {
        let parameters = self.rounded();
        batch.iter().map(|it| f64::from(self.run(&parameters, it).0)).collect()
    }

    fn gradients(
        &self,
        batch: &[&[Vec<Features>]],
        slopes: &dyn Fn(&[f64]) -> Vec<f64>,
    ) -> Vec<f64> {
        let parameters = self.rounded();
        let run: Vec<(f32, Kept)> = batch.iter().map(|it| self.run(&parameters, it)).collect();
        let scores: Vec<f64> = run.iter().map(|(score, _)| f64::from(*score)).collect();
        let mut gradients = vec![0.0; parameters.len()];
        for ((variables, (_, kept)), slope) in batch.iter().zip(&run).zip(slopes(&scores)) {
            self.backward(&parameters, variables, kept, slope as f32, &mut gradients);
        }
        gradients.into_iter().map(f64::from).collect()
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

    /// A dense layer by definition, of the parameters from `begin` on; it moves that behind them.
    fn dense(all: &[f64], begin: &mut usize, outputs: usize, input: &[f64]) -> Vec<f64> {
        let (weights, behind) = all[*begin..].split_at(outputs * input.len());
        *begin += outputs * (input.len() + 1);
        let products = |row: &[f64]| row.iter().zip(input).map(|(a, b)| a * b).sum::<f64>();
        weights.chunks(input.len()).zip(behind).map(|(row, bias)| products(row) + bias).collect()
    }

    /// One direction of the memory by definition: what it puts out, added up.
    fn memory(all: &[f64], begin: &mut usize, inputs: &[Vec<f64>]) -> Vec<f64> {
        let hidden = WIDTHS.2;
        let (of_gates, own) = (*begin, *begin + 4 * hidden * (WIDTHS.1 + 1));
        *begin = own + 4 * hidden * hidden;
        let (mut output, mut cell) = (vec![0.0; hidden], vec![0.0; hidden]);
        let mut sum = output.clone();
        for input in inputs {
            let mut gates = dense(all, &mut of_gates.clone(), 4 * hidden, input);
            for (from, row) in all[own..*begin].chunks(4 * hidden).enumerate() {
                gates.iter_mut().zip(row).for_each(|(gate, weight)| *gate += output[from] * weight);
            }
            let gate =
                |which: usize, unit: usize| 1.0 / (1.0 + (-gates[which * hidden + unit]).exp());
            for unit in 0..hidden {
                let candidate = gates[2 * hidden + unit].tanh();
                cell[unit] = gate(1, unit) * cell[unit] + gate(0, unit) * candidate;
                output[unit] = gate(3, unit) * cell[unit].tanh();
                sum[unit] += output[unit];
            }
        }
        sum
    }

    /// The score by definition.
    fn plain_score(all: &[f64], variables: &[Vec<Features>]) -> f64 {
        let (first, second, _) = WIDTHS;
        let mut begin = 0;
        let mut sums = vec![];
        for shards in variables {
            let mut sum = vec![0.0; second];
            for features in shards {
                let mut input = vec![0.0; NUMBERS];
                features.iter().for_each(|&(at, value)| input[at] = value);
                begin = 0;
                for outputs in [first, second] {
                    input = dense(all, &mut begin, outputs, &input);
                    input.iter_mut().for_each(|it| *it = it.max(0.0));
                }
                sum.iter_mut().zip(&input).for_each(|(sum, it)| *sum += it);
            }
            sums.push(sum);
        }
        let mut outputs = memory(all, &mut begin, &sums);
        sums.reverse();
        outputs.extend(memory(all, &mut begin, &sums));
        outputs.iter_mut().for_each(|it| *it /= variables.len() as f64);
        let score = dense(all, &mut begin, 1, &outputs)[0];
        assert_eq!(begin, all.len(), "all parameters are used");
        score
    }

    /// The kernels compute in fp32.
    #[test]
    fn scores_and_derivatives_are_those_of_the_definition() {
        let mut network = RankRnn::new(3);
        let batch = batch();
        let batch: Vec<&[Vec<Features>]> = batch.iter().map(Vec::as_slice).collect();
        let seconds = [1.0, 3.0, 2.0];
        let mut all = network.parameters().clone();
        for (found, variables) in network.scores(&batch).into_iter().zip(&batch) {
            let expected = plain_score(&all, variables);
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        let gradients = network.gradients(&batch, &|scores| ranking::loss(scores, &seconds).1);
        assert!(gradients.iter().filter(|it| **it != 0.0).count() > gradients.len() / 4);
        let largest = gradients.iter().fold(0.0f64, |largest, it| largest.max(it.abs()));
        for index in 0..all.len() {
            let mut at = |step: f64| {
                let kept = all[index];
                all[index] += step;
                let scores: Vec<f64> = batch.iter().map(|it| plain_score(&all, it)).collect();
                all[index] = kept;
                ranking::loss(&scores, &seconds).0
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            let gradient = gradients[index];
            let near = (difference - gradient).abs() < 1e-5 * largest;
            assert!(near, "{index}: {difference} {gradient}, largest {largest}");
        }
    }

    #[test]
    fn the_order_of_variables_counts() {
        let network = RankRnn::new(3);
        let one = &batch()[1];
        let reversed: Vec<Vec<Features>> = one.iter().rev().cloned().collect();
        let scores = network.scores(&[one, &reversed]);
        assert!((scores[0] - scores[1]).abs() > 1e-6, "{scores:?}");
    }
}
