//! 1F1B without flush, for PipeDream and PipeDream-2BW.

use shardloom_plan::ScheduleKind;
use shardloom_schedule::check;

use super::{EQUAL, delays, schedule, steady_seconds, text};

const KIND: ScheduleKind = ScheduleKind::PipeDream;

/// Stages and micro-batches of all sizes up to 8 devices and 32 micro-batches.
pub fn sizes() -> impl Iterator<Item = (usize, usize)> {
    (1..=8).flat_map(|stages| (1..=32).map(move |microbatches| (stages, microbatches)))
}

#[test]
fn the_orders_are_those_of_the_papers() {
    let single = schedule(KIND, 4, 1, 1, &EQUAL);
    for (stage, order) in ["F3 B0", "F2 B0", "F1 B0", "F0 B0"].into_iter().enumerate() {
        assert_eq!(text(&single, stage), order);
    }
    let batch = schedule(KIND, 4, 1, 4, &EQUAL);
    assert_eq!(text(&batch, 0), "F3 B0 F4 B1 F5 B2 F6 B3");
    assert_eq!(text(&batch, 3), "F0 B0 F1 B1 F2 B2 F3 B3");
}

#[test]
fn one_buffer_is_enough_and_as_many_are_in_flight_as_there_are_stages_from_there_on() {
    for (stages, microbatches) in sizes() {
        let peaks = check(&schedule(KIND, stages, 1, microbatches, &EQUAL), 1);
        assert_eq!(peaks, Ok((1..=stages).rev().collect()), "{stages} {microbatches}");
    }
}

#[test]
fn the_delay_is_the_number_of_stages_after() {
    for (stages, microbatches) in sizes() {
        let delays = delays(&schedule(KIND, stages, 1, microbatches, &EQUAL));
        assert_eq!(delays, (0..stages).rev().collect::<Vec<_>>(), "{stages} {microbatches}");
    }
}

#[test]
fn a_stage_runs_ahead_into_the_next_step_only_if_it_has_a_micro_batch_for_each_later_stage() {
    for (stages, microbatches) in sizes() {
        let ahead = schedule(KIND, stages, 1, microbatches, &EQUAL).ahead();
        let expected = match (stages, microbatches) {
            (1, _) => 0,
            (_, many) if many >= stages - 1 => 1,
            (stages, few) => (stages - 1).div_ceil(few),
        };
        assert_eq!(ahead as usize, expected, "{stages} {microbatches}");
    }
}

#[test]
fn balanced_stages_are_always_busy_once_the_pipeline_is_full() {
    for (stages, microbatches) in sizes() {
        for (forward, backward) in [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)] {
            let schedule = schedule(KIND, stages, 1, microbatches, &EQUAL);
            let seconds = steady_seconds(&schedule, forward, backward, 0.0);
            let work = microbatches as f64 * (forward + backward);
            assert_eq!(seconds, work, "{stages} {microbatches}");
        }
    }
}

#[test]
fn messages_hold_up_every_stage_but_a_single_one() {
    let alone = schedule(KIND, 1, 1, 4, &EQUAL);
    assert_eq!(steady_seconds(&alone, 1.0, 1.0, 0.5), 8.0);
    let two = schedule(KIND, 2, 1, 4, &EQUAL);
    // Two micro-batches go round both stages and two messages.
    assert_eq!(steady_seconds(&two, 1.0, 1.0, 0.5), 8.0 * (4.0 + 1.0) / 4.0);
}
