//! A small GPT, a plan for it, and what is said of the plan once it is changed.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{LayoutRules, Mesh, Plan, PlanError, Uniform};

pub(crate) const DEVICES: usize = 8;

pub(crate) fn graph() -> Graph {
    let spec = ModelSpec::parse("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96");
    spec.and_then(|spec| spec.graph()).expect("a valid model")
}

/// Two stages of dp 2 x tp 2.
pub(crate) fn plan() -> Plan {
    let uniform = Uniform {
        pp: 2,
        mesh: Mesh::of(2, 1, 2),
        global_batch: 8,
        microbatches: 4,
        clip_norm: Some(1.0),
        ..Uniform::default()
    };
    uniform.plan(&graph(), "model", "local")
}

/// The complaint about the plan after `change`.
pub(crate) fn complaint(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = plan();
    change(&mut plan);
    match plan.validate(&graph(), DEVICES) {
        Err(error @ PlanError::Field { .. }) => error.to_string(),
        other => panic!("it should be refused, and is {other:?}"),
    }
}

pub(crate) fn rules(text: &str) -> LayoutRules {
    LayoutRules::try_from(text.to_owned()).expect("valid rules")
}
