//! AFAB and 1F1B: one stage per device.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{PassTimes, ScheduleKind};
use shardloom_schedule::{PassKind, Schedule, StageMap, check};

use super::{EQUAL, TWICE, schedule, text, timing};

const KINDS: [ScheduleKind; 2] = [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward];

#[test]
fn four_stages_and_four_microbatches_take_14_and_with_slower_backwards_21() {
    for kind in KINDS {
        let schedule = schedule(kind, 4, 1, 4, &EQUAL);
        assert_eq!(timing(&schedule, &EQUAL).makespan, 14.0, "{kind:?}");
        assert_eq!(timing(&schedule, &TWICE).makespan, 21.0, "{kind:?}");
    }
}

#[test]
fn eight_stages_and_32_microbatches_take_78() {
    for kind in KINDS {
        assert_eq!(timing(&schedule(kind, 8, 1, 32, &EQUAL), &EQUAL).makespan, 78.0, "{kind:?}");
    }
}

#[test]
fn four_stages_are_used_57_percent_with_4_microbatches_and_73_with_8() {
    for kind in KINDS {
        for (microbatches, percent) in [(4, 57.1), (8, 72.7)] {
            let timing = timing(&schedule(kind, 4, 1, microbatches, &TWICE), &TWICE);
            let utilisation = 1.0 - timing.bubble_fraction;
            assert_eq!((utilisation * 1000.0).round() / 10.0, percent, "{kind:?}");
        }
    }
}

#[test]
fn the_orders_are_those_of_the_papers() {
    let alternating = schedule(ScheduleKind::OneForwardOneBackward, 3, 1, 4, &EQUAL);
    assert_eq!(text(&alternating, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
    assert_eq!(text(&alternating, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
    assert_eq!(text(&alternating, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
    let all_forward = schedule(ScheduleKind::Afab, 2, 1, 3, &EQUAL);
    for device in 0..2 {
        assert_eq!(text(&all_forward, device), "F0 F1 F2 B2 B1 B0");
    }
}

#[test]
fn passes_start_when_their_device_and_what_they_wait_for_are_done() {
    let schedule = schedule(ScheduleKind::OneForwardOneBackward, 2, 1, 2, &TWICE);
    let timing = timing(&schedule, &TWICE);
    let starts = |device: usize| -> Vec<(String, f64)> {
        let timed = timing.actions[device].iter();
        timed.map(|it| (schedule.map.text(device, it.action), it.start)).collect()
    };
    let passes = |passes: [(&str, f64); 4]| passes.map(|(pass, start)| (pass.to_owned(), start));
    assert_eq!(starts(0), passes([("F0", 0.0), ("F1", 1.0), ("B0", 4.0), ("B1", 7.0)]));
    assert_eq!(starts(1), passes([("F0", 1.0), ("B0", 2.0), ("F1", 4.0), ("B1", 5.0)]));
    assert_eq!(timing.makespan, 9.0);
    assert_eq!(timing.bubble_fraction, 1.0 - 12.0 / 18.0);
}

#[test]
fn where_nothing_takes_time_nobody_is_idle() {
    let never = PassTimes { forward: 0.0, input: 0.0, weight: 0.0, ..EQUAL };
    let timing = timing(&schedule(ScheduleKind::Afab, 2, 1, 2, &EQUAL), &never);
    assert_eq!((timing.makespan, timing.bubble_fraction), (0.0, 0.0));
    assert_eq!((timing.longest_span(), timing.span_bubble_fraction()), (0.0, 0.0));
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

    #[test]
    fn every_pass_runs_once_with_one_buffer_and_the_peak_the_papers_claim(
        stages in 1usize..=8,
        microbatches in 1usize..=16,
    ) {
        for kind in KINDS {
            let peaks = check(&schedule(kind, stages, 1, microbatches, &EQUAL), 1)?;
            for (stage, &peak) in peaks.iter().enumerate() {
                let expected = match kind {
                    ScheduleKind::Afab => microbatches,
                    _ => (stages - stage).min(microbatches),
                };
                prop_assert_eq!(peak, expected, "{:?}", kind);
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
        let (forward, weight) = (f64::from(forward), f64::from(backward) - 0.5);
        let times = PassTimes { forward, input: 0.5, weight, ..EQUAL };
        let ideal = microbatches as f64 * (forward + f64::from(backward));
        for kind in KINDS {
            let timing = timing(&schedule(kind, stages, 1, microbatches, &times), &times);
            let bubble = timing.makespan - ideal;
            prop_assert_eq!(bubble * microbatches as f64, ideal * (stages as f64 - 1.0));
            let fraction = (stages as f64 - 1.0) / (microbatches + stages - 1) as f64;
            prop_assert!((timing.bubble_fraction - fraction).abs() < 1e-12);
        }
    }
}

/// Activations of the last stage are the first to go, so that a device which holds several stages runs forwards from
/// its first stage to its last, and backwards from the last to the first, in whichever direction pipelines run.
#[test]
fn all_forward_all_backward_goes_through_a_device_s_stages_in_order() {
    let places = vec![vec![0, 1], vec![1, 0]];
    let map = StageMap::new(places, 4).expect("two pipelines in opposite directions");
    let schedule = Schedule::build(ScheduleKind::Afab, map, &EQUAL).expect("on any map");
    for (device, order) in schedule.orders.iter().enumerate() {
        let passes: Vec<(PassKind, u16)> = order
            .iter()
            .flat_map(|it| it.passes())
            .map(|it| (it.kind, it.instance.stage))
            .collect();
        let (forwards, backwards) = passes.split_at(4);
        let expected = [0, 0, 1, 1].map(|stage| (PassKind::Forward, stage));
        assert_eq!(forwards, expected, "device {device}");
        let expected = [1, 1, 0, 0].map(|stage| (PassKind::Backward, stage));
        assert_eq!(backwards, expected, "device {device}");
    }
}

/// Only pipelines that take their replicas of stages in turn have to keep step.
#[test]
fn pipelines_that_share_stages_otherwise_may_get_unequal_shares() {
    // Two of three pipelines have the same first stage, and the third gets as many as both.
    let places = vec![vec![0, 2], vec![0, 2], vec![1, 2]];
    let map = StageMap::with_shares(places, &[1, 1, 2]).expect("a map");
    let schedule = Schedule::build(ScheduleKind::Afab, map, &EQUAL).expect("on any map");
    assert_eq!(check(&schedule, 1), Ok(vec![2, 2, 4]));
    let in_turn = StageMap::with_shares(vec![vec![0, 2], vec![1, 2]], &[3, 1]);
    let error = in_turn.expect_err("the second stage is one device").to_string();
    assert!(error.contains("4 micro-batches cannot be dealt evenly to 2 pipelines"), "{error}");
}
