//! Dimensions have the names that whoever builds a network gives them; nothing depends on them.

use crate::support::{Samples, losses, mesh, trainer};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{LayoutRules, Mesh, Plan, Uniform};

const OWN: &str = include_str!("../../../../examples/models/own-network.toml");

/// The example of a network of one's own, made smaller, with these names of its sequence and its
/// vocabulary.
fn network(sequence: &str, vocabulary: &str) -> Graph {
    let text = OWN
        .replace("seq = 128", "seq = 16")
        .replace("keys = 128", "keys = 16")
        .replace("vocab = 256", "vocab = 64")
        .replace("repeat = 3", "repeat = 1")
        .replace("seq =", &format!("{sequence} ="))
        .replace("\"seq\"", &format!("{sequence:?}"))
        .replace("vocab =", &format!("{vocabulary} ="))
        .replace("\"vocab\"", &format!("{vocabulary:?}"));
    let spec = ModelSpec::from_toml(&text, "own-network.toml").expect("a network");
    spec.graph().expect("a graph")
}

fn run(graph: &Graph, mesh: Mesh, rules: &str) -> Vec<f64> {
    let uniform = Uniform { mesh, global_batch: 4, ..crate::support::serial() };
    let mut plan: Plan = uniform.plan(graph, "model", "local");
    plan.layout = LayoutRules::try_from(rules.to_owned()).expect("valid rules");
    losses(&mut trainer(graph, &plan, Samples::patterned(16, 16, 64), 1e-2), 4)
}

#[test]
fn a_split_sequence_and_vocabulary_are_found_by_what_operators_say_and_not_by_their_names() {
    let (usual, own) = (network("seq", "vocab"), network("place", "letter"));
    let whole = run(&usual, mesh(1, 1, 1), "batch:dp");
    for (mesh, usual_rules, own_rules) in [
        (mesh(1, 1, 2), "batch:dp, vocab:tp", "batch:dp, letter:tp"),
        (mesh(1, 2, 1), "batch:dp, seq:cp", "batch:dp, place:cp"),
    ] {
        let found = run(&own, mesh, own_rules);
        assert_eq!(found, run(&usual, mesh, usual_rules), "{own_rules}");
        for (loss, expected) in found.iter().zip(&whole) {
            assert!((loss - expected).abs() < 1e-4 * expected, "{own_rules}: {loss}, {expected}");
        }
    }
}
