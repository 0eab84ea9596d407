//! A dense layer: y = W x + b.

use super::Parameters;
use crate::system::autosync::random::Random;

/// A dense layer; its weights lie row by row, a row for each output, and behind them its biases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    begin: usize,
    inputs: usize,
    outputs: usize,
}

impl Dense {
    /// Adds one to a network.
    pub fn new(
        parameters: &mut Parameters,
        (inputs, outputs): (usize, usize),
        random: &mut Random,
    ) -> Dense {
        let begin = parameters.add((inputs + 1) * outputs, inputs, random);
        Dense { begin, inputs, outputs }
    }

    /// What it makes of an input, of which zeros are left out.
    pub fn forward(&self, parameters: &[f64], input: &[(usize, f64)]) -> Vec<f64> {
        let weights = &parameters[self.begin..][..self.inputs * self.outputs];
        let biases = &parameters[self.begin + self.inputs * self.outputs..][..self.outputs];
        let output = |(row, bias): (&[f64], &f64)| {
            input.iter().map(|&(at, value)| row[at] * value).sum::<f64>() + bias
        };
        weights.chunks(self.inputs).zip(biases).map(output).collect()
    }

    /// Adds to the gradients of its parameters, and, where asked for, to those of its input.
    pub fn backward(
        &self,
        parameters: &[f64],
        input: &[(usize, f64)],
        output: &[f64],
        gradients: &mut [f64],
        mut of_input: Option<&mut [f64]>,
    ) {
        let biases = self.begin + self.inputs * self.outputs;
        for (row, &slope) in output.iter().enumerate() {
            let begin = self.begin + row * self.inputs;
            for &(at, value) in input {
                gradients[begin + at] += slope * value;
            }
            gradients[biases + row] += slope;
            if let Some(of_input) = of_input.as_deref_mut() {
                let weights = &parameters[begin..begin + self.inputs];
                for (into, weight) in of_input.iter_mut().zip(weights) {
                    *into += slope * weight;
                }
            }
        }
    }
}
