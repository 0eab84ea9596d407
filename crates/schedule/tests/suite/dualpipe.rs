//! DualPipe and DualPipeV: forward passes overlapped with backward passes.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Action, PassKind, Schedule, StageMap, check, time_with};

use super::{TWICE, schedule, text, timing};

const BOTH: ScheduleKind = ScheduleKind::DualPipe;
const HALF: ScheduleKind = ScheduleKind::DualPipeV;

#[test]
fn four_devices_with_8_microbatches_take_26_and_hold_5_and_eight_with_20_take_66_and_hold_9() {
    for (devices, microbatches, makespan, peak) in [(4, 8, 26.0, 5), (8, 20, 66.0, 9)] {
        let built = schedule(BOTH, devices, 2, microbatches, &TWICE);
        assert_eq!(timing(&built, &TWICE).makespan, makespan);
        assert_eq!(check(&built, 1), Ok(vec![peak; devices]));
    }
}

#[test]
fn half_the_devices_with_twice_the_stages_take_as_long_in_times_of_a_stage() {
    // As many micro-batches down and up as DualPipe has in each direction.
    for (devices, microbatches, makespan, peak) in [(2, 4, 26.0, 5), (4, 10, 66.0, 9)] {
        let built = schedule(HALF, devices, 2, microbatches, &TWICE);
        assert_eq!(2.0 * timing(&built, &TWICE).makespan, makespan);
        assert_eq!(check(&built, 1), Ok(vec![peak; devices]));
    }
}

#[test]
fn the_eight_steps_are_those_of_the_published_code() {
    let built = schedule(BOTH, 4, 2, 8, &TWICE);
    let outer = "F0 F2 F4 F1< I1< W1< F3< F6+B3< F5<+B0 B5< F7<+B2 B7< I4 W4 I6 W6";
    let inner = "F0 F1< F2 F3< F4 B1< F5<+B0 F6+B3< F7<+B2 B5< B4 I7< I6 W7< W6";
    assert_eq!(text(&built, 0), outer);
    assert_eq!(text(&built, 1), inner);
    let half = schedule(HALF, 2, 2, 4, &TWICE);
    let outer = "F0@0 F1@0 F2@0 F0@1 I0@1 W0@1 F1@1 F3@0+B1@1 F2@1+B0@0 B2@1 F3@1+B1@0 B3@1 I2@0 \
                 W2@0 I3@0 W3@0";
    assert_eq!(text(&half, 0), outer);
}

#[test]
fn other_sizes_are_refused_with_what_would_be_right() {
    let refusal = |kind, arrangement, devices, stages, microbatches| {
        let map = StageMap::arranged(arrangement, devices, stages, microbatches).expect("a map");
        let refused = Schedule::build(kind, map, &TWICE).expect_err("this should be refused");
        refused.to_string()
    };
    assert_eq!(
        refusal(BOTH, Arrangement::Bidirectional, 4, 2, 6),
        "schedule: dualpipe wants at least 8 micro-batches on 4 devices, and these are 6"
    );
    assert_eq!(
        refusal(BOTH, Arrangement::Bidirectional, 4, 4, 8),
        "schedule: dualpipe wants one pipeline in each direction, 2 stages on each device; these are 4 \
         pipelines"
    );
    assert_eq!(
        refusal(HALF, Arrangement::Wave, 3, 2, 5),
        "schedule: dualpipev wants at least 6 micro-batches on 3 devices, and these are 5"
    );
    assert_eq!(
        refusal(HALF, Arrangement::Wave, 3, 4, 6),
        "schedule: dualpipev wants 2 stages on each device, and there are 4"
    );
    let odd = StageMap::arranged(Arrangement::Bidirectional, 3, 2, 6);
    assert!(odd.is_err(), "an odd number of devices has no middle");
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

    #[test]
    fn one_more_than_the_devices_are_in_flight_and_one_buffer_is_enough(
        half in 1usize..=4,
        extra in 0usize..=8,
    ) {
        let devices = 2 * half;
        let built = schedule(BOTH, devices, 2, 2 * devices + 2 * extra, &TWICE);
        prop_assert_eq!(check(&built, 1)?, vec![devices + 1; devices]);
        for devices in [half, devices] {
            let built = schedule(HALF, devices, 2, 2 * devices + extra, &TWICE);
            prop_assert_eq!(check(&built, 1)?, vec![2 * devices + 1; devices]);
        }
    }

    #[test]
    fn the_bubble_is_the_published_formula(
        half in 1usize..=4,
        extra in 0usize..=8,
        forward in 1u32..=6,
        weight in 1u32..=6,
        hidden in 0u32..=2,
    ) {
        // Exact where a forward takes as long as input gradients, and no less than weight gradients.
        let (forward, weight) = (f64::from(forward.max(weight)), f64::from(weight));
        let times = PassTimes { forward, input: forward, weight, ..TWICE };
        let backward = forward + weight;
        let overlapped = (forward + backward) * (1.0 - 0.125 * f64::from(hidden));
        let bubble = (half as f64 - 1.0) * (overlapped + backward - 3.0 * weight);
        let duration = |action| match action {
            Action::Overlapped(..) => overlapped,
            Action::Alone(pass) => match pass.kind {
                PassKind::Forward => forward,
                PassKind::Backward => backward,
                PassKind::BackwardInput => times.input,
                PassKind::BackwardWeight => weight,
            },
        };
        let both = schedule(BOTH, 2 * half, 2, 4 * half + 2 * extra, &times);
        let folded = schedule(HALF, half, 2, 2 * half + extra, &times);
        for built in [both, folded] {
            let timing = time_with(&built, 1, 0.0, duration)?;
            // The innermost devices overlap one pair less and idle most.
            let inner = &timing.actions[half - 1];
            let busy: f64 = inner.iter().map(|timed| timed.end - timed.start).sum();
            prop_assert_eq!(timing.makespan - busy, bubble);
        }
    }
}
