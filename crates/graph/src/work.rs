//! What an operator costs on the part of its loops that one device runs: arithmetic, memory traffic
//! and the shape of its matrix product.

use crate::gradient::{self, Operand};
use crate::{Extents, Graph, Op, OpId, OpKind, ValueId};

/// Which of an operator's three passes runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// The operator itself.
    Forward,
    /// Gradients of its activations.
    Input,
    /// Gradients of its parameters.
    Weight,
}

/// `batch` products of an `m x k` by a `k x n` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Independent products of this shape.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the inner products.
    pub k: usize,
}

impl MatmulShape {
    /// How long the rows of its matrices are in memory, where it is of `pass`: those of activations and of their
    /// gradients are of one token, also where their product over tokens is the gradient of weights.
    pub fn row_lengths(&self, pass: Pass) -> [usize; 2] {
        match pass {
            Pass::Forward | Pass::Input => [self.n, self.k],
            Pass::Weight => [self.m, self.n],
        }
    }
}

/// The cost of one pass of one operator on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating-point operations, a multiply-add counting two; only matrix products are counted, as
    /// the field does. Attention counts all keys for every query, also those that a causal mask hides; where
    /// queries see a window, as many keys as it has.
    pub flops: f64,
    /// Bytes read and written once each; the weights of a recurrence at every position.
    pub bytes: f64,
    /// Elements of the largest operand, the argument of a measured rate.
    pub elements: usize,
    /// The matrix products in it, all of one shape, and how many there are.
    pub matmul: Option<(MatmulShape, usize)>,
    /// How often these are computed, each time from what the one before gave: for positions of a recurrence; 1
    /// of others.
    pub turns: usize,
}

/// The work of `pass` of `op` where each dimension has the extent of `local` and a real number takes
/// `real_bytes`; none where the operator has no such pass.
pub fn work(
    graph: &Graph,
    op: OpId,
    pass: Pass,
    local: &Extents,
    real_bytes: usize,
) -> Option<Work> {
    work_on_rows(graph, op, pass, local, real_bytes, None)
}

/// How many products a pass of attention that keeps no probabilities takes: forward those of scores and contexts;
/// backward the scores again, and the gradients of probabilities, values, queries and keys.
pub fn attention_products(pass: Pass) -> usize {
    if pass == Pass::Forward { 2 } else { 5 }
}

/// The same, where `rows` of the slots that experts have are filled; all of them if none is said, which is
/// the most that there can be.
pub fn work_on_rows(
    graph: &Graph,
    op: OpId,
    pass: Pass,
    local: &Extents,
    real_bytes: usize,
    rows: Option<f64>,
) -> Option<Work> {
    let rule = gradient::rule(graph, op);
    let node = graph.op(op);
    let out = node.outputs[0];
    let operands: Vec<ValueId> = match pass {
        Pass::Forward => node.inputs.iter().chain(&node.outputs).copied().collect(),
        Pass::Input | Pass::Weight => {
            let gradient = if pass == Pass::Input { rule.input? } else { rule.weight? };
            let reads = gradient.reads.iter().map(|read| match *read {
                Operand::Input(index) => node.inputs[index],
                Operand::Output(index) => node.outputs[index],
                Operand::OutputGradient => out,
                Operand::InputGradient(index) => node.inputs[index],
            });
            reads.chain(gradient.produces.iter().map(|&index| node.inputs[index])).collect()
        }
    };
    let mut bytes = 0.0;
    let mut elements = 0;
    for &operand in &operands {
        let value = graph.value(operand);
        let count = match (value.counts, rows) {
            (Some(_), Some(rows)) => {
                let row = value.axes.last().map_or(1, |&dim| local.get(dim));
                (rows * row as f64).round() as usize
            }
            _ => local.elements(&value.axes),
        };
        // A table lookup touches only the rows it needs, and so does a loss over drawn classes.
        let touched = match node.kind {
            OpKind::SampledCrossEntropy { samples, .. } if node.inputs[2..].contains(&operand) => {
                let rows = local.elements(&graph.value(node.inputs[1]).axes) + samples;
                rows * value.axes[1..].iter().map(|&dim| local.get(dim)).product::<usize>()
            }
            OpKind::Embed if operand == node.inputs[1] => local.elements(&graph.value(out).axes),
            _ => count,
        };
        let times = match node.kind {
            // A recurrence goes through its weights at every position that has one before it, through a
            // projection at all.
            OpKind::Lstm { .. } if pass != Pass::Weight && value.parameter().is_some() => {
                let projects = operand != node.inputs[1];
                recurrent_positions(graph, node, local) + usize::from(projects)
            }
            _ => 1,
        };
        bytes += (times * touched * value.dtype.bytes(real_bytes)) as f64;
        elements = elements.max(touched);
    }
    if let OpKind::Lstm { .. } = node.kind {
        let (flops, matmul, turns) = recurrence(graph, node, pass, local);
        return Some(Work { flops, bytes, elements, matmul, turns });
    }
    if let OpKind::DotInteraction { .. } = node.kind {
        // Many products of a few rows: what is timed is their multiplications and additions, of which the
        // gradient has two for each of forward.
        let each = local.elements(&graph.value(node.inputs[0]).axes[1..]);
        let elements = local.elements(&graph.value(out).axes) * each;
        let passes = if pass == Pass::Forward { 2.0 } else { 4.0 };
        let flops = passes * elements as f64;
        return Some(Work { flops, bytes, elements, matmul: None, turns: 1 });
    }
    if node.kind == OpKind::ExpertContract {
        let (flops, shape) = expert_products(graph, op, pass, local, rows);
        return Some(Work { flops, bytes, elements, matmul: Some((shape, 1)), turns: 1 });
    }
    let matmul = matmul(graph, op, pass, local);
    let flops = matmul.map_or(0.0, |(shape, count)| {
        2.0 * count as f64 * shape.batch as f64 * shape.m as f64 * shape.n as f64 * shape.k as f64
    });
    Some(Work { flops, bytes, elements, matmul, turns: 1 })
}

/// Positions of a recurrence that have one before them.
fn recurrent_positions(graph: &Graph, node: &Op, local: &Extents) -> usize {
    local.get(graph.value(node.inputs[0]).axes[1]) - 1
}

/// The products of a recurrence: its operations, the shape of those with the recurrent weights, and how many there
/// are, one after the other. Forward and in the input gradient there is one for each position that has one
/// before it, in the weight gradient one for each sample. Products with a projection have another shape, and
/// count among the operations.
fn recurrence(
    graph: &Graph,
    node: &Op,
    pass: Pass,
    local: &Extents,
) -> (f64, Option<(MatmulShape, usize)>, usize) {
    let extents = |value: ValueId| graph.value(value).axes.iter().map(|&dim| local.get(dim));
    let gates: Vec<usize> = extents(node.inputs[0]).collect();
    let units = extents(node.outputs[0]).next_back().unwrap_or(1);
    let (batch, seq, columns, hidden) = (gates[0], gates[1], gates[2] * gates[3], gates[3]);
    let steps = recurrent_positions(graph, node, local);
    let recurrent = 2.0 * (batch * steps) as f64 * units as f64 * columns as f64;
    let projection = match node.inputs.len() > 2 {
        true => 2.0 * (batch * seq) as f64 * hidden as f64 * units as f64,
        false => 0.0,
    };
    // The gradient of what a projection gives is not kept but computed again from that of the gates.
    let again = if projection > 0.0 && pass == Pass::Weight { recurrent } else { 0.0 };
    let (shape, turns) = match pass {
        Pass::Forward => (MatmulShape { batch: 1, m: batch, n: columns, k: units }, steps),
        Pass::Input => (MatmulShape { batch: 1, m: batch, n: units, k: columns }, steps),
        Pass::Weight => (MatmulShape { batch: 1, m: units, n: columns, k: steps }, batch),
    };
    let any = recurrent > 0.0;
    (recurrent + again + projection, any.then_some((shape, 1)), if any { turns } else { 1 })
}

/// The products of experts with their rows: how many operations they are together, and their shape if all
/// experts had equally many, rounded up.
fn expert_products(
    graph: &Graph,
    op: OpId,
    pass: Pass,
    local: &Extents,
    rows: Option<f64>,
) -> (f64, MatmulShape) {
    let node = graph.op(op);
    let [x, w] = [0, 2].map(|index| &graph.value(node.inputs[index]).axes);
    let [batch, inner, outer] = [w[0], w[1], w[2]].map(|dim| local.get(dim));
    let rows = rows.unwrap_or_else(|| local.elements(&x[..3]) as f64);
    let each = (rows / batch as f64).ceil() as usize;
    let shape = match pass {
        Pass::Forward => MatmulShape { batch, m: each, n: outer, k: inner },
        Pass::Input => MatmulShape { batch, m: each, n: inner, k: outer },
        Pass::Weight => MatmulShape { batch, m: inner, n: outer, k: each },
    };
    (2.0 * rows * inner as f64 * outer as f64, shape)
}

fn matmul(graph: &Graph, op: OpId, pass: Pass, local: &Extents) -> Option<(MatmulShape, usize)> {
    let node = graph.op(op);
    let axes = |value: ValueId| &graph.value(value).axes;
    let elements = |value: ValueId| local.elements(axes(value));
    match node.kind {
        OpKind::Contract { .. } => {
            let (x, w, y) = (node.inputs[0], node.inputs[1], node.outputs[0]);
            let inner = axes(x).iter().filter(|dim| axes(w).contains(dim));
            let k: usize = inner.map(|&dim| local.get(dim)).product();
            let (m, n) = (elements(x) / k, elements(w) / k);
            debug_assert_eq!(m * n, elements(y));
            let shape = match pass {
                Pass::Forward => MatmulShape { batch: 1, m, n, k },
                Pass::Input => MatmulShape { batch: 1, m, n: k, k: n },
                Pass::Weight => MatmulShape { batch: 1, m: k, n, k: m },
            };
            Some((shape, 1))
        }
        OpKind::SampledCrossEntropy { samples, .. } => {
            // A row is multiplied with the weights of the drawn classes and of its target.
            let m = elements(node.inputs[1]);
            let (n, k) = (samples + 1, elements(node.inputs[0]) / m);
            let shape = match pass {
                Pass::Forward => MatmulShape { batch: 1, m, n, k },
                Pass::Input => MatmulShape { batch: 1, m, n: k, k: n },
                Pass::Weight => MatmulShape { batch: 1, m: n, n: k, k: m },
            };
            Some((shape, 1))
        }
        OpKind::AttentionProbs { visibility, .. } | OpKind::AttentionContext { visibility, .. } => {
            let probs = match node.kind {
                OpKind::AttentionProbs { .. } => node.outputs[0],
                _ => node.inputs[0],
            };
            let keys = local.get(*axes(probs).last()?);
            let head_dim = local.get(*axes(node.inputs[1]).last()?);
            let seq = local.get(axes(probs)[axes(probs).len() - 2]);
            let batch = elements(probs) / (keys * seq);
            let keys = visibility.most(keys);
            let (m, n, k) = match node.kind {
                OpKind::AttentionProbs { .. } => (seq, keys, head_dim),
                _ => (seq, head_dim, keys),
            };
            // Scores that are capped are computed again for their gradients.
            let again = matches!(node.kind, OpKind::AttentionProbs { soft_cap: Some(_), .. });
            let count = if pass == Pass::Forward { 1 } else { 2 + usize::from(again) };
            (pass != Pass::Weight).then_some((MatmulShape { batch, m, n, k }, count))
        }
        OpKind::FusedAttention { visibility, .. } => {
            // Of k elements in an inner product.
            let q = axes(node.inputs[0]);
            let (seq, head_dim) = (local.get(q[1]), local.get(*q.last()?));
            let keys = node.signature.inputs[1][1];
            let keys = visibility.most(local.get(node.signature.loops[keys].dim));
            let batch = elements(node.inputs[0]) / (seq * head_dim);
            let shape = MatmulShape { batch, m: seq, n: keys, k: head_dim };
            (pass != Pass::Weight).then_some((shape, attention_products(pass)))
        }
        _ => None,
    }
}
