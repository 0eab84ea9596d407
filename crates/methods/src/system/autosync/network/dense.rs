//! A dense layer: y = W x + b.

use shardloom_kernels::matmul::{
    Linear, WeightLayout, bias_grad, linear, linear_input_grad, linear_weight_grad,
};

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
        Dense::with_range(parameters, (inputs, outputs), inputs, random)
    }

    /// Adds one whose parameters begin in the range that is right for so many `summed` numbers.
    pub fn with_range(
        parameters: &mut Parameters,
        (inputs, outputs): (usize, usize),
        summed: usize,
        random: &mut Random,
    ) -> Dense {
        let begin = parameters.add((inputs + 1) * outputs, summed, random);
        Dense { begin, inputs, outputs }
    }

    /// For so many numbers of input rows.
    fn shape(&self, inputs: usize) -> Linear {
        let Dense { inputs: width, outputs, .. } = *self;
        let layout = WeightLayout::OutputsByInputs;
        Linear { rows: inputs / width, inputs: width, outputs, layout }
    }

    /// What it makes of rows of inputs.
    pub fn forward(&self, parameters: &[f32], inputs: &[f32]) -> Vec<f32> {
        let shape = self.shape(inputs.len());
        let (weights, behind) = parameters[self.begin..].split_at(self.inputs * self.outputs);
        let mut outputs = vec![0.0; shape.rows * self.outputs];
        linear(shape, inputs, weights, Some(&behind[..self.outputs]), &mut outputs);
        outputs
    }

    /// Adds to the gradients of its parameters, for those of its outputs.
    pub fn backward(&self, inputs: &[f32], of_outputs: &[f32], gradients: &mut [f32]) {
        let (weights, behind) = gradients[self.begin..].split_at_mut(self.inputs * self.outputs);
        linear_weight_grad(self.shape(inputs.len()), inputs, of_outputs, weights, true);
        bias_grad(of_outputs, &mut behind[..self.outputs], true);
    }

    /// The gradients of its inputs, for those of its outputs.
    pub fn of_inputs(&self, parameters: &[f32], of_outputs: &[f32]) -> Vec<f32> {
        let mut of_inputs = vec![0.0; of_outputs.len() / self.outputs * self.inputs];
        let shape = self.shape(of_inputs.len());
        let weights = &parameters[self.begin..][..self.inputs * self.outputs];
        linear_input_grad(shape, of_outputs, weights, &mut of_inputs, false);
        of_inputs
    }
}
