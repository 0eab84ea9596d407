//! Hanayo: one pipeline to and fro.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Schedule, StageMap, check};

use super::{EQUAL, TWICE, refusal, schedule, text, timing};

const KIND: ScheduleKind = ScheduleKind::Hanayo;

#[test]
fn published_makespans() {
    for (devices, makespans) in [(4, [11.0, 9.5, 8.75]), (8, [23.0, 19.5, 17.75])] {
        for (waves, makespan) in [1, 2, 4].into_iter().zip(makespans) {
            let schedule = schedule(KIND, devices, 2 * waves, devices, &EQUAL);
            assert_eq!(timing(&schedule, &EQUAL).makespan, makespan, "{devices} {waves}");
        }
    }
}

#[test]
fn two_devices_order_one_wave_as_the_paper_does() {
    let schedule = schedule(KIND, 2, 2, 2, &EQUAL);
    assert_eq!(text(&schedule, 0), "F0@0 F1@0 F0@1 B0@1 F1@1 B1@1 B0@0 B1@0");
    assert_eq!(text(&schedule, 1), "F0@0 F0@1 F1@0 F1@1 B0@1 B0@0 B1@1 B1@0");
}

#[test]
fn with_equal_passes_the_bubble_is_a_waveth_of_devices_less_one_and_one_buffer_is_enough() {
    for devices in 1..=8 {
        for waves in 1..=4 {
            for microbatches in (devices..=32).step_by(devices) {
                let schedule = schedule(KIND, devices, 2 * waves, microbatches, &EQUAL);
                let bubble = timing(&schedule, &EQUAL).makespan - 2.0 * microbatches as f64;
                let expected = (devices - 1) as f64 / waves as f64;
                let size = (devices, waves, microbatches);
                assert!((bubble - expected).abs() < 1e-9, "{size:?}: {bubble} and {expected}");
                let peaks = check(&schedule, 1).unwrap_or_else(|error| panic!("{size:?}: {error}"));
                assert_eq!(peaks.iter().max(), Some(&(2 * waves * devices)), "{size:?}");
            }
        }
    }
}

#[test]
fn with_slower_backwards_as_many_micro_batches_as_devices_have_twice_that_bubble() {
    for devices in 2..=8 {
        for waves in 1..=4 {
            let formula = 2.0 * (devices - 1) as f64 / waves as f64;
            let work = 3.0 * devices as f64;
            let built = schedule(KIND, devices, 2 * waves, devices, &TWICE);
            let bubble = timing(&built, &TWICE).makespan - work;
            assert!((bubble - formula).abs() < 1e-9, "{devices} {waves}: {bubble} and {formula}");
        }
    }
}

/// By a second implementation of the greedy orders; the three rules for fast messages alone come to 49, 56 and 88.
#[test]
fn slow_messages_cost_no_more_than_with_orders_that_let_fewer_of_them_wait() {
    for (devices, waves, microbatches, makespan) in
        [(4, 1, 8, 43.0), (4, 2, 8, 41.0), (6, 2, 12, 62.5)]
    {
        let times = PassTimes { forward: 2.0, input: 1.0, weight: 1.0, message: 0.5, ..EQUAL };
        let built = schedule(KIND, devices, 2 * waves, microbatches, &times);
        let size = (devices, waves, microbatches);
        assert_eq!(timing(&built, &times).makespan, makespan, "{size:?}");
        check(&built, 2).unwrap_or_else(|error| panic!("{size:?}: {error}"));
    }
}

#[test]
fn with_slower_backwards_more_micro_batches_have_little_more_bubble() {
    for devices in 2..=8 {
        for waves in 1..=4 {
            for times in [2, 3, 4, 8] {
                let microbatches = times * devices;
                // One wave on more than two devices does not idle longer for more micro-batches.
                let times = if waves == 1 && devices > 2 { times.min(3) } else { times };
                let most = ((times + 1) * (devices - 1)) as f64 - 0.5;
                let built = schedule(KIND, devices, 2 * waves, microbatches, &TWICE);
                let bubble = timing(&built, &TWICE).makespan - 3.0 * microbatches as f64;
                let size = (devices, waves, microbatches);
                assert!(bubble <= most / waves as f64 + 1e-9, "{size:?}: {bubble} and {most}");
            }
        }
    }
}

#[test]
fn of_one_wave_with_slower_backwards_only_3_devices_and_21_micro_batches_idle_4_forwards_of_others()
{
    for devices in 3..=8 {
        for times in 1..=8 {
            let microbatches = times * devices;
            let built = schedule(KIND, devices, 2, microbatches, &TWICE);
            let bubble = timing(&built, &TWICE).makespan - 3.0 * microbatches as f64;
            let others = (devices - 1) as f64;
            match (devices, microbatches) {
                (3, 21) => assert_eq!(bubble, 4.25 * others),
                size => assert!(bubble < 4.0 * others, "{size:?}: {bubble}"),
            }
        }
    }
}

#[test]
fn four_and_eight_devices_with_slower_backwards() {
    for (devices, bubbles) in [(4, [6.0, 3.0, 1.5]), (8, [14.0, 7.0, 3.5])] {
        for (waves, bubble) in [1, 2, 4].into_iter().zip(bubbles) {
            let schedule = schedule(KIND, devices, 2 * waves, devices, &TWICE);
            let makespan = 3.0 * devices as f64 + bubble;
            assert_eq!(timing(&schedule, &TWICE).makespan, makespan, "{devices} {waves}");
        }
    }
}

/// The second device of two has both stages in the middle. It can begin after a forward of the first stage
/// and its message, and behind its last pass come a message and the first stage's backward. In between
/// it need not wait, though all it gets from the first device was on the way for a while.
#[test]
fn in_one_wave_on_two_devices_the_second_never_waits_for_messages() {
    for (microbatches, forward, input, weight, message) in [
        (3, 4.0, 2.0, 2.0, 1.0),
        (4, 4.0, 6.0, 2.0, 3.0),
        (8, 4.0, 2.0, 4.0, 3.0),
        (3, 8.0, 2.0, 4.0, 2.0),
        (6, 8.0, 6.0, 6.0, 3.0),
        (9, 8.0, 4.0, 2.0, 2.0),
    ] {
        let times = PassTimes { forward, input, weight, message, ..EQUAL };
        let built = schedule(KIND, 2, 2, microbatches, &times);
        let both_ways = forward / 2.0 + message + message + (input + weight) / 2.0;
        let work = microbatches as f64 * (forward + input + weight);
        assert_eq!(timing(&built, &times).makespan, both_ways + work, "{times:?}");
    }
}

#[test]
fn an_odd_number_of_stages_on_a_device_and_impossible_times_are_refused() {
    assert_eq!(
        refusal(KIND, 4, 3, 4),
        "schedule: hanayo wants an even number of stages on each device, two for each wave, not 3"
    );
    for wrong in [-1.0, f64::NAN, f64::INFINITY] {
        let map = StageMap::arranged(Arrangement::Wave, 2, 2, 2).expect("a map");
        assert!(Schedule::build(KIND, map, &PassTimes { forward: wrong, ..EQUAL }).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

    #[test]
    fn two_buffers_are_enough_for_any_times(
        devices in 1usize..=8,
        waves in 1usize..=3,
        microbatches in 1usize..=32,
        forward in 0u8..=4,
        input in 0u8..=9,
        weight in 0u8..=9,
        message in 0u8..=2,
    ) {
        let [forward, input, weight, message] = [forward, input, weight, message].map(f64::from);
        let times = PassTimes { forward, input, weight, message, ..EQUAL };
        check(&schedule(KIND, devices, 2 * waves, microbatches, &times), 2)?;
    }

    #[test]
    fn with_slower_backwards_less_than_two_micro_batches_for_each_device_are_in_flight(
        devices in 1usize..=8,
        waves in 1usize..=3,
        microbatches in 1usize..=32,
    ) {
        let peaks = check(&schedule(KIND, devices, 2 * waves, microbatches, &TWICE), 2)?;
        // Stages of one device count apart.
        prop_assert!(peaks.iter().all(|&peak| peak < 2 * 2 * waves * devices), "{:?}", peaks);
    }
}
