//! An expert with more rows than slots is named with the step in which that was, also in a row of steps.

use crate::support::{Samples, serial, trainer};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::Optimizer;

/// The example with so many slots of an expert for the rows of one sample: 16 are enough for all.
fn graph(slots: usize) -> Graph {
    let text = include_str!("../../../../examples/models/routed-experts.toml")
        .replace("slot = 8 ", &format!("slot = {slots} "))
        .replace("overflow = \"drop\"", "overflow = \"stop\"");
    let spec = ModelSpec::from_toml(&text, "routed-experts.toml");
    spec.and_then(|spec| spec.graph()).unwrap_or_else(|error| panic!("{error}"))
}

const STEPS: u32 = 24;

#[test]
fn the_step_of_a_row_that_overflows_is_named() {
    let uniform =
        shardloom_plan::Uniform { optimizer: Optimizer::sgd(0.9), clip_norm: None, ..serial() };
    let run = |slots: usize| {
        let graph = graph(slots);
        let plan = uniform.plan(&graph, "model", "local");
        trainer(&graph, &plan, Samples::patterned(64, 16, 64), 0.2)
    };
    // The step at which a run of single steps stops; none where slots are enough.
    let stops = |slots: usize| {
        let mut trainer = run(slots);
        (0..STEPS).find(|_| trainer.step().is_err())
    };
    let mut later = 0;
    for slots in 4..16 {
        let Some(step) = stops(slots) else { continue };
        later += usize::from(step > 0);
        let text = run(slots).train_steps(STEPS).expect_err("too few slots").to_string();
        assert!(text.contains(&format!("step {step}, layer.")), "{slots} slots, {step}: {text}");
    }
    assert!(later > 0, "all stop at once");
}
