//! A long short-term memory (Hochreiter and Schmidhuber 1997, Neural Computation), with forget gates.

use super::Parameters;
use crate::system::autosync::random::Random;

/// One direction of a layer. Its parameters are, for the input gate, the forget gate, the candidate and the output
/// gate in turn, and for each number of them: weights of the input, weights of the last output, a bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lstm {
    begin: usize,
    inputs: usize,
    hidden: usize,
}

/// What a step leaves for its backward pass.
#[derive(Clone, Debug)]
struct Step {
    input: Vec<f64>,
    last_output: Vec<f64>,
    last_cell: Vec<f64>,
    /// Input gate, forget gate, candidate, output gate.
    gates: [Vec<f64>; 4],
    cell: Vec<f64>,
}

/// What a sequence leaves for its backward pass.
#[derive(Clone, Debug)]
pub(crate) struct Trace(Vec<Step>);

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Lstm {
    /// Adds one to a network.
    pub fn new(
        parameters: &mut Parameters,
        (inputs, hidden): (usize, usize),
        random: &mut Random,
    ) -> Lstm {
        let begin = parameters.add(4 * hidden * (inputs + hidden + 1), hidden, random);
        Lstm { begin, inputs, hidden }
    }

    /// Where the parameters of a number of a gate begin.
    fn row(&self, gate: usize, unit: usize) -> usize {
        self.begin + (gate * self.hidden + unit) * (self.inputs + self.hidden + 1)
    }

    /// Its outputs for a sequence of inputs, from nothing.
    pub fn forward<'i>(
        &self,
        parameters: &[f64],
        inputs: impl Iterator<Item = &'i [f64]>,
    ) -> (Vec<Vec<f64>>, Trace) {
        let (mut output, mut cell) = (vec![0.0; self.hidden], vec![0.0; self.hidden]);
        let (mut outputs, mut steps) = (vec![], vec![]);
        for input in inputs {
            let gate = |gate: usize| -> Vec<f64> {
                let unit = |unit: usize| {
                    let row = &parameters[self.row(gate, unit)..][..self.inputs + self.hidden + 1];
                    let read = input.iter().chain(&output);
                    let sum = row.iter().zip(read).map(|(weight, value)| weight * value);
                    let sum = sum.sum::<f64>() + row[self.inputs + self.hidden];
                    if gate == 2 { sum.tanh() } else { sigmoid(sum) }
                };
                (0..self.hidden).map(unit).collect()
            };
            let gates = [0, 1, 2, 3].map(gate);
            let last_cell = cell;
            cell = (0..self.hidden)
                .map(|at| gates[1][at] * last_cell[at] + gates[0][at] * gates[2][at])
                .collect();
            let last_output = output;
            output = (0..self.hidden).map(|at| gates[3][at] * cell[at].tanh()).collect();
            outputs.push(output.clone());
            let (input, cell) = (input.to_vec(), cell.clone());
            steps.push(Step { input, last_output, last_cell, gates, cell });
        }
        (outputs, Trace(steps))
    }

    /// Adds to the gradients of its parameters, and gives those of its inputs, in order, for those of its outputs.
    pub fn backward(
        &self,
        parameters: &[f64],
        trace: &Trace,
        outputs: &[Vec<f64>],
        gradients: &mut [f64],
    ) -> Vec<Vec<f64>> {
        let mut of_output = vec![0.0; self.hidden];
        let mut of_cell = vec![0.0; self.hidden];
        let mut of_inputs = vec![];
        for (step, own) in trace.0.iter().zip(outputs).rev() {
            // By unit: of its gates, and of its last cell.
            let unit = |at: usize| {
                let [input, forget, candidate, output] = [0, 1, 2, 3].map(|it| step.gates[it][at]);
                let slope = of_output[at] + own[at];
                let squashed = step.cell[at].tanh();
                let cell = of_cell[at] + slope * output * (1.0 - squashed * squashed);
                let of_gates = [
                    cell * candidate * input * (1.0 - input),
                    cell * step.last_cell[at] * forget * (1.0 - forget),
                    cell * input * (1.0 - candidate * candidate),
                    slope * squashed * output * (1.0 - output),
                ];
                (of_gates, cell * forget)
            };
            let units: Vec<([f64; 4], f64)> = (0..self.hidden).map(unit).collect();
            of_cell = units.iter().map(|(_, cell)| *cell).collect();
            let mut of_read = vec![0.0; self.inputs + self.hidden];
            for (unit, (of_gates, _)) in units.iter().enumerate() {
                for (gate, &slope) in of_gates.iter().enumerate() {
                    let begin = self.row(gate, unit);
                    let read = step.input.iter().chain(&step.last_output);
                    for (at, value) in read.enumerate() {
                        gradients[begin + at] += slope * value;
                        of_read[at] += slope * parameters[begin + at];
                    }
                    gradients[begin + self.inputs + self.hidden] += slope;
                }
            }
            of_output = of_read.split_off(self.inputs);
            of_inputs.push(of_read);
        }
        of_inputs.reverse();
        of_inputs
    }
}
