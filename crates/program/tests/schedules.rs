//! Schedules: their published times and peaks, and the checker's promises.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::ScheduleKind;
use shardloom_program::ProgramError;
use shardloom_program::schedule::{
    Cell, Durations, Pass, Timing, check, orders, peak_in_flight, time,
};

const EQUAL: Durations = Durations { forward: 1.0, backward: 1.0 };
const TWICE: Durations = Durations { forward: 1.0, backward: 2.0 };

fn timing(kind: ScheduleKind, stages: usize, microbatches: usize, durations: Durations) -> Timing {
    time(&orders(kind, stages, microbatches), durations).expect("these schedules cannot deadlock")
}

fn forward(microbatch: u32) -> Cell {
    Cell { pass: Pass::Forward, microbatch }
}

fn backward(microbatch: u32) -> Cell {
    Cell { pass: Pass::Backward, microbatch }
}

fn refusal(orders: &[Vec<Cell>], microbatches: usize, buffers: usize) -> String {
    match check(orders, microbatches, buffers) {
        Err(ProgramError::Schedule(message)) => message,
        other => panic!("it should be refused, and is {other:?}"),
    }
}

#[test]
fn four_stages_and_four_microbatches_take_14_and_with_slower_backwards_21() {
    for kind in ScheduleKind::ALL {
        assert_eq!(timing(kind, 4, 4, EQUAL).makespan, 14.0, "{kind:?}");
        assert_eq!(timing(kind, 4, 4, TWICE).makespan, 21.0, "{kind:?}");
    }
}

#[test]
fn eight_stages_and_32_microbatches_take_78() {
    for kind in ScheduleKind::ALL {
        assert_eq!(timing(kind, 8, 32, EQUAL).makespan, 78.0, "{kind:?}");
    }
}

#[test]
fn four_stages_are_used_57_percent_with_4_microbatches_and_73_with_8() {
    for kind in ScheduleKind::ALL {
        for (microbatches, percent) in [(4, 57.1), (8, 72.7)] {
            let utilisation = 1.0 - timing(kind, 4, microbatches, TWICE).bubble_fraction;
            assert_eq!((utilisation * 1000.0).round() / 10.0, percent, "{kind:?}");
        }
    }
}

#[test]
fn the_orders_are_those_of_the_papers() {
    let text = |order: &[Cell]| order.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let alternating = orders(ScheduleKind::OneForwardOneBackward, 3, 4);
    assert_eq!(text(&alternating[0]), "F0 F1 F2 B0 F3 B1 B2 B3");
    assert_eq!(text(&alternating[1]), "F0 F1 B0 F2 B1 F3 B2 B3");
    assert_eq!(text(&alternating[2]), "F0 B0 F1 B1 F2 B2 F3 B3");
    for order in orders(ScheduleKind::Afab, 2, 3) {
        assert_eq!(text(&order), "F0 F1 F2 B2 B1 B0");
    }
}

#[test]
fn cells_start_when_their_stage_and_what_they_wait_for_are_done() {
    let timing = timing(ScheduleKind::OneForwardOneBackward, 2, 2, TWICE);
    let first = vec![(forward(0), 0.0), (forward(1), 1.0), (backward(0), 4.0), (backward(1), 7.0)];
    let second = vec![(forward(0), 1.0), (backward(0), 2.0), (forward(1), 4.0), (backward(1), 5.0)];
    assert_eq!(timing.starts, vec![first, second]);
    assert_eq!(timing.makespan, 9.0);
    assert_eq!(timing.bubble_fraction, 1.0 - 12.0 / 18.0);
}

#[test]
fn a_pass_that_runs_twice_or_belongs_to_no_step_is_refused() {
    let twice = vec![vec![forward(0), forward(0), backward(0)]];
    assert_eq!(refusal(&twice, 1, 1), "stage 0 runs F0 twice or beyond the step");
    let beyond = vec![vec![forward(0), backward(0), forward(7), backward(7)]];
    assert_eq!(refusal(&beyond, 1, 1), "stage 0 runs F7 twice or beyond the step");
}

#[test]
fn a_pass_that_never_runs_is_refused() {
    let mut missing = orders(ScheduleKind::OneForwardOneBackward, 2, 3);
    missing[1].retain(|&cell| cell != backward(1));
    assert_eq!(refusal(&missing, 3, 1), "stage 1 never runs B1");
}

#[test]
fn a_backward_before_its_forward_deadlocks() {
    let orders = vec![vec![backward(0), forward(0)]];
    assert_eq!(refusal(&orders, 1, 1), "deadlock with 1 buffers: stage 0 at B0");
    let message = time(&orders, EQUAL).expect_err("it never starts").to_string();
    assert_eq!(message, "schedule: deadlock: stage 0 waits at B0");
}

#[test]
fn stages_that_wait_for_each_other_deadlock() {
    // Stage 0 wants the gradient of 0 before it sends 1; stage 1 wants 1 first.
    let orders = vec![
        vec![forward(0), backward(0), forward(1), backward(1)],
        vec![forward(0), forward(1), backward(1), backward(0)],
    ];
    assert_eq!(refusal(&orders, 2, 9), "deadlock with 9 buffers: stage 0 at B0, stage 1 at F1");
    assert!(time(&orders, EQUAL).is_err());
}

#[test]
fn too_few_buffers_deadlock_where_more_would_do() {
    // Stage 1 takes micro-batches in reverse, so both forwards must be on their way at once.
    let orders = vec![
        vec![forward(0), forward(1), backward(1), backward(0)],
        vec![forward(1), forward(0), backward(1), backward(0)],
    ];
    assert_eq!(refusal(&orders, 2, 1), "deadlock with 1 buffers: stage 0 at F1, stage 1 at F1");
    assert_eq!(check(&orders, 2, 2), Ok(vec![2, 2]));
}

#[test]
fn without_a_buffer_nothing_can_be_sent() {
    let orders = orders(ScheduleKind::Afab, 2, 1);
    assert_eq!(refusal(&orders, 1, 0), "deadlock with 0 buffers: stage 0 at F0, stage 1 at F0");
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_runs_each_pass_once_with_one_buffer_and_the_peak_it_claims(
        stages in 1usize..=8,
        microbatches in 1usize..=16,
    ) {
        for kind in ScheduleKind::ALL {
            let peaks = check(&orders(kind, stages, microbatches), microbatches, 1)?;
            for (stage, &peak) in peaks.iter().enumerate() {
                prop_assert_eq!(peak, peak_in_flight(kind, stage, stages, microbatches));
                let expected = match kind {
                    ScheduleKind::Afab => microbatches,
                    ScheduleKind::OneForwardOneBackward => (stages - stage).min(microbatches),
                };
                prop_assert_eq!(peak, expected);
            }
        }
    }

    #[test]
    fn the_bubble_is_stages_less_one_over_microbatches_of_the_ideal_time(
        stages in 1usize..=8,
        microbatches in 1usize..=16,
        forward in 1u32..=5,
        backward in 1u32..=9,
    ) {
        let durations = Durations { forward: forward.into(), backward: backward.into() };
        let ideal = f64::from(microbatches as u32 * (forward + backward));
        for kind in ScheduleKind::ALL {
            let timing = timing(kind, stages, microbatches, durations);
            let bubble = timing.makespan - ideal;
            prop_assert_eq!(bubble * microbatches as f64, ideal * (stages as f64 - 1.0));
            let fraction = (stages as f64 - 1.0) / (microbatches + stages - 1) as f64;
            prop_assert!((timing.bubble_fraction - fraction).abs() < 1e-12);
        }
    }

    #[test]
    fn with_enough_buffers_an_order_is_refused_just_where_it_never_ends(
        stages in 1usize..=4,
        microbatches in 1usize..=5,
        stage in 0usize..4,
        first in 0usize..10,
        second in 0usize..10,
    ) {
        let mut swapped = orders(ScheduleKind::OneForwardOneBackward, stages, microbatches);
        let order = &mut swapped[stage % stages];
        let (first, second) = (first % order.len(), second % order.len());
        order.swap(first, second);
        let checked = check(&swapped, microbatches, microbatches);
        prop_assert_eq!(checked.is_ok(), time(&swapped, EQUAL).is_ok());
    }
}
