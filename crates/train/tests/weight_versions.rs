//! How many versions of its weights each rank holds, counted in the allocator.

mod support;

use shardloom_graph::Graph;
use shardloom_plan::{Corrections, Optimizer, Prediction, ScheduleKind, Uniform, Weights};
use support::{Samples, graph, serial, trainer};

/// Big weights, small activations, so that versions show.
fn wide() -> Graph {
    graph("gpt:layers=6,hidden=64,heads=2,seq=4,vocab=32")
}

const NONE: Corrections = Corrections {
    anneal_steps: None,
    discrepancy: None,
    synchronous_steps: 0,
    spike: None,
    prediction: None,
};

const NEWEST: Weights = Weights::Newest { corrections: NONE };

/// Trains with four stages and gives for each the versions that its program holds, after checking that
/// its allocator counted as many.
fn versions(schedule: ScheduleKind, weights: Weights, microbatches: usize) -> Vec<u32> {
    let graph = wide();
    let uniform = Uniform {
        pp: 4,
        global_batch: microbatches,
        microbatches,
        schedule,
        optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
        clip_norm: None,
        ..serial()
    };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.weights = weights;
    let mut trainer = trainer(&graph, &plan, Samples::patterned(32, 4, 32), 1e-2);
    trainer.train_steps(12).unwrap_or_else(|error| panic!("{error}"));
    let program = trainer.program();
    let count = |(class, &counted): (_, &u64)| {
        let (_, class): (_, &shardloom_program::Class) = class;
        let memory = class.memory_use(program, 0);
        let near = memory.peak_bytes..memory.peak_bytes + memory.peak_bytes / 50;
        assert!(near.contains(&counted), "{schedule:?}: {counted} of {memory:?}");
        let one: usize = class.buckets.iter().map(|bucket| 4 * bucket.elements).sum();
        assert_eq!(memory.persistent.weights % one as u64, 0);
        (memory.persistent.weights / one as u64) as u32
    };
    program.classes().zip(trainer.peak_bytes_per_rank()).map(count).collect()
}

#[test]
fn a_schedule_with_a_flush_holds_one_version() {
    assert_eq!(versions(ScheduleKind::OneForwardOneBackward, Weights::Flush, 4), [1, 1, 1, 1]);
}

#[test]
fn pipedream_holds_a_version_for_each_stage_from_its_own_on() {
    assert_eq!(versions(ScheduleKind::PipeDream, Weights::Stash, 1), [4, 3, 2, 1]);
}

#[test]
fn vertical_sync_has_every_stage_hold_as_many_as_the_first() {
    assert_eq!(versions(ScheduleKind::PipeDream, Weights::VerticalSync, 1), [4, 4, 4, 4]);
}

#[test]
fn double_buffering_holds_two_versions() {
    for microbatches in [3, 4, 8] {
        let found = versions(ScheduleKind::PipeDream, Weights::DoubleBuffer, microbatches);
        assert_eq!(found, [2, 2, 2, 2]);
    }
}

#[test]
fn double_buffering_wants_micro_batches_for_all_later_stages() {
    let graph = wide();
    let schedule = ScheduleKind::PipeDream;
    let uniform =
        Uniform { pp: 4, global_batch: 2, microbatches: 2, schedule, clip_norm: None, ..serial() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.weights = Weights::DoubleBuffer;
    let error = shardloom_program::lower(&graph, &plan, 4).expect_err("three would be needed");
    let message = error.to_string();
    assert!(message.contains("two versions of weights do not suffice"), "{message}");
}

#[test]
fn without_versions_there_is_one_copy() {
    assert_eq!(versions(ScheduleKind::PipeMare, NEWEST, 1), [1, 1, 1, 1]);
    assert_eq!(versions(ScheduleKind::PipeMare, NEWEST, 4), [1, 1, 1, 1]);
}

#[test]
fn a_discrepancy_correction_is_a_copy_more_where_gradients_are_late() {
    let corrections = Corrections { discrepancy: Some(0.135), ..NONE };
    let found = versions(ScheduleKind::PipeMare, Weights::Newest { corrections }, 4);
    assert_eq!(found, [2, 2, 2, 1]);
}

#[test]
fn predicting_from_the_last_update_keeps_the_weights_before_it() {
    let corrections = Corrections { prediction: Some(Prediction::Weights), ..NONE };
    let found = versions(ScheduleKind::PipeMare, Weights::Newest { corrections }, 1);
    assert_eq!(found, [2, 2, 2, 1]);
}

#[test]
fn a_row_of_more_microbatches_than_can_be_numbered_is_refused() {
    let graph = wide();
    let uniform = Uniform { pp: 2, global_batch: 8, microbatches: 8, ..serial() };
    let plan = uniform.plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(8, 4, 32), 1e-2);
    let error = trainer.train_steps(1 << 29).expect_err("2^32 micro-batches");
    assert!(error.to_string().contains("536870912 steps of 8 micro-batches"), "{error}");
    assert_eq!(trainer.train_steps(1).expect("a step").len(), 1);
}
