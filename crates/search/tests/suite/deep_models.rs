//! What is said of models with thousands of blocks.

use shardloom_plan::{Mesh, Uniform};
use shardloom_search::{Fact, Topic, explain};

use crate::scenario::{h100, model};

/// Each simulation of such a model takes seconds, and changes are dozens.
#[test]
fn of_a_model_of_thousands_of_blocks_no_changes_are_tried_which_is_said() {
    let text = "mlp:inputs=4,hidden=4,layers=3100,classes=2";
    let graph = model(text);
    let cluster = h100(1, 2, 80_000_000_000);
    let uniform = Uniform { mesh: Mesh::of(2, 1, 1), global_batch: 4, ..Uniform::default() };
    let plan = uniform.plan(&graph, text, "c");
    let found = explain(&graph, &cluster, &plan, &[]).expect("an explanation");
    let of = |topic: Topic| found.facts.iter().filter(move |it| it.topic == topic);
    let changes: Vec<&Fact> = of(Topic::Change).collect();
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(changes[0].sentence.contains("not tried of a model with more than 3000 blocks"));
    for topic in [Topic::Machine, Topic::Batch, Topic::Algorithm] {
        assert_eq!(of(topic).count(), 0, "{topic:?}");
    }
    assert!(of(Topic::Memory).count() > 0 && of(Topic::Share).count() > 0);
}
