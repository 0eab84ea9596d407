//! The names under which a machine profile keeps what was measured of operators and collectives.

use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, OpId, OpKind};

/// The rate class of one pass of an operator, such as `layer-norm.forward` or
/// `contract+bias.weight`: its kind, whatever changes the time of an element by much, and the pass.
///
/// Such are, each as a suffix where it holds: `+transposed` weights and a `+bias` of a contraction, a
/// sum with a `+broadcast` parameter, `+causal` attention, a recurrence with a `+projection`, and
/// `+dropout`.
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
        OpKind::Lstm { .. } => mark(node.inputs.len() > 2, "+projection"),
        _ => {}
    }
    mark(node.kind.causal() == Some(true), "+causal");
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shardloom_cluster::rate_class::OPERATORS;
    use shardloom_graph::ModelSpec;

    use super::*;

    const EXPERTS: &str = include_str!("../../../examples/models/routed-experts.toml");

    fn forward_names(model: &str) -> BTreeSet<String> {
        let spec = match model {
            "experts" => ModelSpec::from_toml(EXPERTS, model),
            model => ModelSpec::parse(model),
        };
        let graph = spec.and_then(|spec| spec.graph()).expect("a model");
        graph.ops().map(|(op, _)| rate_name(&graph, op, Pass::Forward)).collect()
    }

    #[test]
    fn a_name_says_what_changes_the_time_of_an_element() {
        let names = forward_names("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16,dropout=0.1");
        let expected = [
            "add+broadcast.forward",
            "attention-context+causal+dropout.forward",
            "attention-probs+causal.forward",
            "bias-dropout-add+dropout.forward",
            "contract+bias.forward",
            "contract+transposed.forward",
            "contract.forward",
            "cross-entropy.forward",
            "dropout+dropout.forward",
            "embed.forward",
            "gelu.forward",
            "layer-norm.forward",
            "logit-max.forward",
            "logit-sum.forward",
        ];
        assert_eq!(names, expected.into_iter().map(str::to_owned).collect());
        let names = forward_names("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16");
        assert!(names.contains("bias-dropout-add.forward"), "{names:?}");
    }

    #[test]
    fn software_stacks_know_every_operator_of_the_families() {
        let families = [
            "gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16,dropout=0.1",
            "llama-3-8b",
            "gemma-2-2b",
            "experts",
            "mlp:inputs=4,hidden=8,layers=2,classes=3",
            "lstm:layers=1,hidden=8,embed=8,seq=4,vocab=64,sampled_softmax=8",
            "dlrm:dense=4,rows=8-9,embed=4,bottom=4,top=4",
        ];
        let found: BTreeSet<String> = families
            .into_iter()
            .flat_map(forward_names)
            .filter_map(|name| Some(name.split(['+', '.']).next()?.to_owned()))
            .collect();
        let known = BTreeSet::from(OPERATORS.map(str::to_owned));
        // Plans choose fused attention; the families' graphs have it in two operators.
        let without: Vec<&String> = known.difference(&found).collect();
        assert_eq!(without, ["fused-attention"]);
        assert!(found.is_subset(&known), "{found:?}");
    }

    #[test]
    fn collectives_are_named_by_algorithm_kind_and_members() {
        let name = collective_rate_name(Algorithm::Direct, Kind::AllReduce, 4);
        assert_eq!(name, "direct.all-reduce.4");
    }
}
