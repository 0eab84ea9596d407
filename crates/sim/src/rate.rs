//! The names under which a machine profile keeps what was measured of operators and collectives.

use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, OpId, OpKind};

/// The rate class of one pass of an operator, such as `layer-norm.forward` or
/// `contract+bias.weight`: its kind, whatever changes the time of an element by much, and the pass.
///
/// Such are, each as a suffix where it holds: `+transposed` weights and a `+bias` of a contraction, a
/// sum with a `+broadcast` parameter, `+causal` attention, and `+dropout`.
pub fn rate_name(graph: &Graph, op: OpId, pass: Pass) -> String {
    let node = graph.op(op);
    let mut name = node.kind.name().to_owned();
    let mut mark = |holds: bool, suffix: &str| {
        if holds {
            name += suffix;
        }
    };
    match node.kind {
        OpKind::Contract { transposed } => {
            mark(transposed, "+transposed");
            mark(node.inputs.len() > 2, "+bias");
        }
        OpKind::Add => {
            let broadcast = graph.value(node.inputs[1]).parameter().is_some();
            mark(broadcast, "+broadcast");
        }
        OpKind::AttentionProbs { causal, .. } | OpKind::AttentionContext { causal, .. } => {
            mark(causal, "+causal");
        }
        _ => {}
    }
    mark(node.kind.dropout().is_some(), "+dropout");
    let pass = match pass {
        Pass::Forward => "forward",
        Pass::Input => "input",
        Pass::Weight => "weight",
    };
    format!("{name}.{pass}")
}

/// The rate class of a collective among `members` ranks on one node, such as `direct.all-reduce.2`.
pub fn collective_rate_name(algorithm: Algorithm, kind: Kind, members: usize) -> String {
    format!("{algorithm}.{kind}.{members}")
}
