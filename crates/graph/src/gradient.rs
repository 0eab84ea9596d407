//! The gradient program: which values each operator's input-gradient and weight-gradient operators
//! read, and which gradients they produce.
//!
//! The loops of a gradient operator are those of its forward operator. A gradient of an operand that
//! lacks a split loop is therefore a partial sum over the devices of that split: data parallelism's
//! all-reduce, Megatron's `f` and `g`, and a norm gain's reduction under sequence parallelism are all
//! this one fact.

use crate::{Graph, OpId, OpKind};

/// A tensor that a gradient operator reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The forward operator's n-th input.
    Input(usize),
    /// The forward operator's n-th output.
    Output(usize),
    /// The gradient of the forward operator's first output.
    OutputGradient,
    /// What the operator's input-gradient pass contributes to the gradient of its n-th input, which no
    /// other operator reads.
    InputGradient(usize),
}

/// One gradient operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradientOp {
    /// What it reads.
    pub reads: Vec<Operand>,
    /// Which inputs of the forward operator it produces gradients of.
    pub produces: Vec<usize>,
}

/// The gradient operators of one forward operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Produces gradients of activations (backward-input).
    pub input: Option<GradientOp>,
    /// Produces gradients of parameters (backward-weight).
    pub weight: Option<GradientOp>,
    /// Inputs whose gradient is the output's gradient, unchanged.
    pub passes: Vec<usize>,
}

/// The gradient operators of `op`. Nothing is produced for data that needs no gradient: inputs,
/// statistics and masks.
pub fn rule(graph: &Graph, op: OpId) -> Rule {
    let inputs = &graph.op(op).inputs;
    let needed = |index: &usize| graph.value(inputs[*index]).differentiable();
    let prune = |gradient: Option<GradientOp>| {
        let mut gradient = gradient?;
        gradient.produces.retain(needed);
        (!gradient.produces.is_empty()).then_some(gradient)
    };
    let Rule { input, weight, mut passes } = full_rule(graph, op);
    passes.retain(needed);
    Rule { input: prune(input), weight: prune(weight), passes }
}

/// The gradients of all operands, needed or not.
fn full_rule(graph: &Graph, op: OpId) -> Rule {
    use Operand::{Input, InputGradient, Output, OutputGradient};
    let op = graph.op(op);
    let masked = op.kind.dropout().is_some();
    let mask = |mut reads: Vec<Operand>| {
        if masked {
            reads.insert(0, Output(1));
        }
        reads
    };
    let some = |reads: Vec<Operand>, produces: Vec<usize>| Some(GradientOp { reads, produces });
    let input = |reads, produces| Rule { input: some(reads, produces), ..Rule::default() };
    match op.kind {
        OpKind::Embed => {
            Rule { weight: some(vec![Input(0), OutputGradient], vec![1]), ..Rule::default() }
        }
        OpKind::Contract { .. } => Rule {
            input: some(vec![Input(1), OutputGradient], vec![0]),
            weight: some(vec![Input(0), OutputGradient], (1..op.inputs.len()).collect()),
            passes: vec![],
        },
        OpKind::Add if graph.value(op.inputs[1]).parameter().is_some() => {
            Rule { input: None, weight: some(vec![OutputGradient], vec![1]), passes: vec![0] }
        }
        OpKind::Add => Rule { passes: vec![0, 1], ..Rule::default() },
        OpKind::Concat { .. } => input(vec![OutputGradient], (0..op.inputs.len()).collect()),
        OpKind::Dropout { .. } if masked => input(vec![Output(1), OutputGradient], vec![0]),
        OpKind::Dropout { .. } => Rule { passes: vec![0], ..Rule::default() },
        OpKind::BiasDropoutAdd { .. } => Rule {
            input: if masked { some(mask(vec![OutputGradient]), vec![0]) } else { None },
            weight: some(mask(vec![OutputGradient]), vec![1]),
            passes: if masked { vec![2] } else { vec![0, 2] },
        },
        OpKind::LayerNorm { .. } => Rule {
            input: some(vec![Input(0), Input(1), Output(1), OutputGradient], vec![0]),
            weight: some(vec![Input(0), Output(1), OutputGradient], vec![1, 2]),
            passes: vec![],
        },
        OpKind::RmsNorm { .. } => Rule {
            input: some(vec![Input(0), Input(1), Output(1), OutputGradient], vec![0]),
            weight: some(vec![Input(0), Output(1), OutputGradient], vec![1]),
            passes: vec![],
        },
        OpKind::Pointwise(_) if op.inputs.len() > 1 => {
            input(vec![Input(0), Input(1), OutputGradient], vec![0])
        }
        OpKind::Pointwise(_) => input(vec![Input(0), OutputGradient], vec![0]),
        OpKind::Route { .. } => {
            input(vec![Input(0), Output(0), Output(1), OutputGradient], vec![0])
        }
        OpKind::Dispatch => input(vec![Input(1), Input(2), Input(3), OutputGradient], vec![0]),
        OpKind::ExpertContract => Rule {
            input: some(vec![Input(1), Input(2), OutputGradient], vec![0]),
            weight: some(vec![Input(0), Input(1), OutputGradient], vec![2]),
            passes: vec![],
        },
        OpKind::Combine => {
            let reads = (0..5).map(Input).chain([OutputGradient]).collect();
            input(reads, vec![0, 4])
        }
        OpKind::Glu(_) => input(vec![Input(0), Input(1), OutputGradient], vec![0, 1]),
        OpKind::Scale { .. } | OpKind::Rotary { .. } => input(vec![OutputGradient], vec![0]),
        // The slope follows from what is capped, which is read again anyway.
        OpKind::SoftCap { .. } => input(vec![Output(0), OutputGradient], vec![0]),
        OpKind::AttentionProbs { .. } => {
            input(vec![Input(0), Input(1), Output(0), OutputGradient], vec![0, 1])
        }
        OpKind::AttentionContext { .. } => {
            input(mask(vec![Input(0), Input(1), OutputGradient]), vec![0, 1])
        }
        OpKind::FusedAttention { .. } => {
            let reads = (0..op.inputs.len()).map(Input).chain([OutputGradient]).collect();
            input(reads, vec![0, 1, 2])
        }
        OpKind::Lstm { .. } => {
            // Weights, activated gates and cells; with a projection that as well.
            let projection = (op.inputs.len() > 2).then_some(Input(2));
            let reads = [Input(1), Output(1), Output(2), OutputGradient].into_iter();
            let of_weights = match projection {
                None => vec![Output(0), InputGradient(0)],
                // What the projection gave has a gradient from the next position as well, by way of the weights.
                Some(_) => vec![Output(0), InputGradient(0), Input(1), Output(3), OutputGradient],
            };
            Rule {
                input: some(reads.chain(projection).collect(), vec![0]),
                weight: some(of_weights, (1..op.inputs.len()).collect()),
                passes: vec![],
            }
        }
        OpKind::DotInteraction { .. } => {
            let all = 0..op.inputs.len();
            input(all.clone().map(Input).chain([OutputGradient]).collect(), all.collect())
        }
        OpKind::LogitMax { .. } | OpKind::LogitSum { .. } => Rule::default(),
        OpKind::CrossEntropy { .. } => input(vec![Input(0), Input(1), Input(2), Input(4)], vec![0]),
        OpKind::SampledCrossEntropy { .. } => Rule {
            input: some(vec![Input(1), Input(2), Output(1), Output(2)], vec![0]),
            weight: some(vec![Input(0), Input(1), Output(1), Output(2)], vec![2, 3]),
            passes: vec![],
        },
        OpKind::SigmoidCrossEntropy => input(vec![Input(0), Input(1)], vec![0]),
    }
}
