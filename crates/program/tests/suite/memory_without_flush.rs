//! Without a flush the most memory is that of a full pipeline, however few micro-batches a step has.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Plan, ScheduleKind, Uniform, Weights};
use shardloom_program::{Class, MemoryTracker, Program, lower};

fn graph() -> Graph {
    let spec = "gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1";
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn program(schedule: ScheduleKind, weights: Weights, microbatches: usize) -> Program {
    let uniform =
        Uniform { pp: 4, global_batch: microbatches, microbatches, schedule, ..Uniform::default() };
    let graph = graph();
    let plan = Plan { weights, ..uniform.plan(&graph, "model", "local") };
    lower(&graph, &plan, 4).unwrap_or_else(|error| panic!("{error}"))
}

/// The most that a rank of a class holds in a row of so many steps.
fn peak_bytes(program: &Program, class: &Class, steps: u32) -> u64 {
    let mut tracker = MemoryTracker::new(class, 0);
    for run in program.cursor(class, steps).runs(true) {
        for instruction in &class.body_of(&run.entry).instructions {
            tracker.begin(instruction, run.microbatch);
            tracker.end(instruction, run.microbatch);
        }
    }
    tracker.peak_bytes()
}

#[test]
fn memory_is_that_of_a_long_row_of_steps() {
    for (schedule, weights) in [
        (ScheduleKind::PipeDream, Weights::Stash),
        (ScheduleKind::PipeDream, Weights::VerticalSync),
        (ScheduleKind::PipeDream, Weights::DoubleBuffer),
        (ScheduleKind::PipeMare, ScheduleKind::PipeMare.usual_weights()),
    ] {
        for microbatches in [1, 2, 3, 8] {
            // Two versions are enough for a step that fills the pipeline.
            if weights == Weights::DoubleBuffer && microbatches < 4 {
                continue;
            }
            let program = program(schedule, weights, microbatches);
            let used = |class: &Class| class.memory_use(&program, 0).peak_bytes;
            for class in &program.classes {
                let long = peak_bytes(&program, class, 20);
                let place = class.place();
                assert_eq!(used(class), long, "{schedule:?} of {microbatches}, {place}");
            }
            // One step by itself does not fill the pipeline with so few.
            if microbatches == 1 {
                let first = &program.classes[0];
                assert!(peak_bytes(&program, first, 1) < used(first), "{schedule:?}");
            }
        }
    }
}
