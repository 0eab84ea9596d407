//! How a batch is cut into micro-batches, and how many of them each pipeline gets.

use shardloom_plan::{DeviceList, Mesh, Pipeline, Plan, ScheduleKind, Stage, Uniform, Weights};

use crate::scenario::{DEVICES, complaint, graph, plan};

#[test]
fn batches_are_at_least_one_sample_and_divide() {
    assert_eq!(complaint(|it| it.global_batch = 0), "global_batch = 0: at least 1");
    assert_eq!(complaint(|it| it.microbatches = 0), "microbatches = 0: at least 1");
    assert_eq!(
        complaint(|it| it.microbatches = 3),
        "microbatches = 3: micro-batches must divide global_batch = 8"
    );
    assert_eq!(
        complaint(|it| it.microbatches = 8),
        "pipeline[0].stage[0].mesh.dp = 2: it must divide a micro-batch of 1 sample (global batch 8 \
         in 8 micro-batches)"
    );
}

#[test]
fn micro_batches_are_dealt_evenly_to_pipelines() {
    let mut two = plan();
    two.pipeline.push(two.pipeline[0].clone());
    assert_eq!(two.validate(&graph(), DEVICES), Ok(()));
    two.pipeline.push(two.pipeline[0].clone());
    assert_eq!(
        complaint(|it| *it = two.clone()),
        "microbatches = 4: micro-batches are dealt to 3 pipelines, so a multiple of that"
    );
}

/// Two pipelines of two stages in both directions, with so many micro-batches of one sample.
fn in_both_directions(microbatches: usize, schedule: ScheduleKind, weights: Weights) -> Plan {
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
        assert_eq!(in_both_directions(4, schedule, weights).validate(&graph(), 2), Ok(()));
        let found = in_both_directions(3, schedule, weights)
            .validate(&graph(), 2)
            .map_err(|it| it.to_string());
        let rule =
            "microbatches = 3: micro-batches are dealt to 2 pipelines, so a multiple of that";
        let expected = if takes { Ok(()) } else { Err(rule.to_owned()) };
        assert_eq!(found, expected, "{schedule:?} {weights:?}");
    }
}

#[test]
fn the_first_pipelines_get_one_more_of_what_does_not_divide_unless_they_say_otherwise() {
    let even = in_both_directions(3, ScheduleKind::Chimera, Weights::Flush);
    assert_eq!(even.shares(), [2, 1]);
    assert_eq!(in_both_directions(4, ScheduleKind::Chimera, Weights::Flush).shares(), [2, 2]);
    let mut own = even;
    own.pipeline[0].microbatches = Some(1);
    own.pipeline[1].microbatches = Some(2);
    assert_eq!(own.shares(), [1, 2]);
}

/// Two pipelines of one stage, with these shares of four micro-batches.
fn apart(schedule: ScheduleKind, shares: [Option<usize>; 2]) -> Result<(), String> {
    let mut plan = plan();
    plan.schedule = schedule;
    plan.weights = schedule.usual_weights();
    plan.clip_norm = None;
    let pipeline = |(from, microbatches): (u32, Option<usize>)| {
        let devices = DeviceList((from..from + 4).collect());
        let stage = Stage::new((0, 4), Mesh::of(2, 1, 2), devices);
        Pipeline { microbatches, ..Pipeline::of(vec![stage]) }
    };
    plan.pipeline = [0, 4].into_iter().zip(shares).map(pipeline).collect();
    plan.validate(&graph(), DEVICES).map_err(|error| error.to_string())
}

#[test]
fn shares_of_pipelines_are_those_of_the_step() {
    use ScheduleKind::{Afab, Chimera, OneForwardOneBackward, PipeDream};
    for schedule in [Afab, OneForwardOneBackward] {
        for shares in [[None, None], [Some(2), Some(2)], [Some(3), Some(1)], [Some(1), Some(3)]] {
            assert_eq!(apart(schedule, shares), Ok(()), "{schedule:?} {shares:?}");
        }
    }
    let complaint = |schedule, shares| apart(schedule, shares).expect_err("no such shares");
    assert_eq!(complaint(Afab, [Some(3), Some(2)]), "microbatches = 4: the pipelines' come to 5");
    assert_eq!(complaint(Afab, [Some(4), Some(0)]), "pipeline[1].microbatches = 0: at least 1");
    assert_eq!(
        complaint(Afab, [None, Some(2)]),
        "pipeline[0].microbatches = absent: all pipelines say how many they get, or none does"
    );
    for schedule in [PipeDream, Chimera] {
        let message = complaint(schedule, [Some(3), Some(1)]);
        assert!(
            message.starts_with("pipeline[0].microbatches = 3: unequal shares are"),
            "{message}"
        );
    }
}
