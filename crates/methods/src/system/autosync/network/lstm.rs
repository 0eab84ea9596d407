//! A long short-term memory (Hochreiter and Schmidhuber 1997, Neural Computation), with forget gates.

use shardloom_kernels::lstm::{Lstm as Recurrence, lstm, lstm_input_grad, lstm_weight_grad};

use super::{Dense, Parameters};
use crate::system::autosync::random::Random;

/// Input gate, forget gate, candidate, output gate.
const GATES: usize = 4;

/// One direction of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lstm {
    /// What inputs contribute to gates, with their biases.
    gates: Dense,
    /// Where the weights of the last outputs begin: a row for each, of all gates in turn.
    begin: usize,
    hidden: usize,
}

/// What a sequence leaves for its backward pass.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    inputs: Vec<f32>,
    /// Gates after activation.
    activated: Vec<f32>,
    cells: Vec<f32>,
    /// By position.
    pub outputs: Vec<f32>,
}

impl Lstm {
    /// Adds one to a network.
    pub fn new(
        parameters: &mut Parameters,
        (inputs, hidden): (usize, usize),
        random: &mut Random,
    ) -> Lstm {
        let gates = Dense::with_range(parameters, (inputs, GATES * hidden), hidden, random);
        let begin = parameters.add(GATES * hidden * hidden, hidden, random);
        Lstm { gates, begin, hidden }
    }

    fn recurrence(&self, seq: usize) -> Recurrence {
        let hidden = self.hidden;
        Recurrence { batch: 1, seq, hidden, units: hidden, forget_bias: 0.0 }
    }

    fn weights<'p>(&self, parameters: &'p [f32]) -> &'p [f32] {
        &parameters[self.begin..][..GATES * self.hidden * self.hidden]
    }

    /// Runs through a sequence of inputs, of which there is one, from nothing.
    pub fn forward(&self, parameters: &[f32], inputs: Vec<f32>) -> Trace {
        let gates = self.gates.forward(parameters, &inputs);
        let seq = gates.len() / (GATES * self.hidden);
        let mut outputs = vec![0.0; seq * self.hidden];
        let mut cells = outputs.clone();
        let mut activated = vec![0.0; gates.len()];
        let shape = self.recurrence(seq);
        let weights = self.weights(parameters);
        lstm(&shape, &gates, weights, None, &mut outputs, &mut activated, &mut cells, None);
        Trace { inputs, activated, cells, outputs }
    }

    /// Adds to the gradients of its parameters, and gives those of its inputs, for those of its outputs.
    pub fn backward(
        &self,
        parameters: &[f32],
        trace: &Trace,
        of_outputs: &[f32],
        gradients: &mut [f32],
    ) -> Vec<f32> {
        let Trace { inputs, activated, cells, outputs } = trace;
        let shape = self.recurrence(outputs.len() / self.hidden);
        let weights = self.weights(parameters);
        let mut of_gates = vec![0.0; activated.len()];
        let mut scratch = vec![0.0; shape.input_grad_scratch()];
        let into = &mut of_gates;
        lstm_input_grad(&shape, weights, activated, cells, of_outputs, None, into, &mut scratch);
        let of_weights = &mut gradients[self.begin..][..GATES * self.hidden * self.hidden];
        lstm_weight_grad(&shape, outputs, &of_gates, of_weights, true);
        self.gates.backward(inputs, &of_gates, gradients);
        self.gates.of_inputs(parameters, &of_gates)
    }
}
