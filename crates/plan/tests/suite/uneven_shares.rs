//! Which schedules may give one pipeline a micro-batch more than another.

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Plan, ScheduleKind, Uniform, Weights};

fn graph() -> Graph {
    let spec = ModelSpec::parse("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96");
    spec.and_then(|spec| spec.graph()).expect("a valid model")
}

/// Two pipelines of two stages in both directions, with so many micro-batches of one sample.
fn plan(microbatches: usize, schedule: ScheduleKind, weights: Weights) -> Plan {
    let uniform = Uniform {
        pp: 2,
        global_batch: microbatches,
        microbatches,
        schedule: ScheduleKind::Chimera,
        ..Uniform::default()
    };
    let plan = uniform.plan(&graph(), "model", "local");
    assert_eq!(plan.pipeline.len(), 2);
    let order = match schedule {
        ScheduleKind::Table => vec!["F0".to_owned(), "F1".to_owned()],
        _ => vec![],
    };
    Plan { schedule, weights, order, ..plan }
}

#[test]
fn an_odd_number_of_micro_batches_is_for_schedules_with_a_flush_that_say_who_gets_it() {
    let uneven = [
        (ScheduleKind::Chimera, Weights::Flush, true),
        (ScheduleKind::Table, Weights::Flush, true),
        // In the next step the other pipeline would have to get the one more.
        (ScheduleKind::Table, Weights::Stash, false),
        (ScheduleKind::PipeDream, Weights::Stash, false),
        (ScheduleKind::DualPipe, Weights::Flush, false),
    ];
    for (schedule, weights, takes) in uneven {
        assert_eq!(plan(4, schedule, weights).validate(&graph(), 2), Ok(()));
        let found = plan(3, schedule, weights).validate(&graph(), 2).map_err(|it| it.to_string());
        let rule =
            "microbatches = 3: micro-batches are dealt to 2 pipelines, so a multiple of that";
        let expected = if takes { Ok(()) } else { Err(rule.to_owned()) };
        assert_eq!(found, expected, "{schedule:?} {weights:?}");
    }
}

#[test]
fn the_first_pipelines_get_one_more_of_what_does_not_divide_unless_they_say_otherwise() {
    let even = plan(3, ScheduleKind::Chimera, Weights::Flush);
    assert_eq!(even.shares(), [2, 1]);
    assert_eq!(plan(4, ScheduleKind::Chimera, Weights::Flush).shares(), [2, 2]);
    let mut own = even;
    own.pipeline[0].microbatches = Some(1);
    own.pipeline[1].microbatches = Some(2);
    assert_eq!(own.shares(), [1, 2]);
}
