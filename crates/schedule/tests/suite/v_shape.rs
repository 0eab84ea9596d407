//! ZB-V, V-Half and V-Min: one pipeline down the devices and back up.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Schedule, StageMap, check};

use super::{ALIKE, idle, schedule, text, times, timing};

const ZERO: ScheduleKind = ScheduleKind::ZeroBubbleV;
const HALF: ScheduleKind = ScheduleKind::VHalf;
const LEAST: ScheduleKind = ScheduleKind::VMin;

/// Activations of a stage that a device has room for.
fn memory(kind: ScheduleKind, devices: usize) -> usize {
    match kind {
        ScheduleKind::VHalf => 2 * ((devices + 2) / 2),
        ScheduleKind::VMin => 2 * ((devices + 4) / 3),
        _ => 2 * devices,
    }
}

#[test]
fn the_memory_is_that_of_the_papers() {
    for (devices, half, least) in [(4, 3, 2), (8, 5, 4), (16, 9, 6)] {
        for (kind, microbatches) in [(ZERO, devices), (HALF, half), (LEAST, least)] {
            let peaks =
                check(&schedule(kind, devices, 2, 2 * devices, &ALIKE), 1).expect("no deadlock");
            assert_eq!(peaks.into_iter().max(), Some(2 * microbatches), "{kind:?} on {devices}");
        }
    }
}

#[test]
fn bubbles_in_passes_of_a_stage() {
    // 1F1B's are 6 (p - 1).
    let expected = [
        (ZERO, [0, 0, 0, 0, 0, 0, 0, 0]),
        (HALF, [0, 0, 5, 5, 11, 11, 17, 17]),
        (LEAST, [0, 3, 5, 11, 15, 17, 23, 27]),
    ];
    for (kind, bubbles) in expected {
        for (devices, bubble) in (1..).zip(bubbles) {
            for microbatches in [2 * devices, 2 * devices + 1, 32] {
                let built = schedule(kind, devices, 2, microbatches, &ALIKE);
                let found = idle(&built, &ALIKE) / 5.0;
                assert_eq!(found, f64::from(bubble), "{kind:?} on {devices}, {microbatches}");
            }
        }
    }
}

#[test]
fn no_order_is_longer_than_that_of_the_authors_scheduler() {
    let text = include_str!("v_shape_spans.csv");
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    for row in rows {
        let numbers: Vec<u32> = row.split(',').map(|it| it.parse().expect("a number")).collect();
        let [devices, microbatches, times @ .., zero, half, least] = &numbers[..] else {
            panic!("{row}: nine columns");
        };
        // A device has two stages.
        let [forward, input, weight] = [0, 1, 2].map(|kind| 2.0 * f64::from(times[kind]));
        let times = PassTimes { forward, input, weight, message: times[3].into(), ..ALIKE };
        for (kind, theirs) in [(ZERO, zero), (HALF, half), (LEAST, least)] {
            let built = schedule(kind, *devices as usize, 2, *microbatches as usize, &times);
            let span = timing(&built, &times).longest_span();
            assert!(span <= f64::from(*theirs), "{kind:?} {row}: {span}");
            let limit = memory(kind, *devices as usize);
            let peaks = check(&built, 1).expect("no deadlock");
            assert!(peaks.iter().all(|&peak| peak <= limit), "{kind:?} {row}: {peaks:?}");
        }
    }
}

#[test]
fn orders_of_zb_v_on_two_devices() {
    let zero = schedule(ZERO, 2, 2, 3, &ALIKE);
    assert_eq!(
        text(&zero, 0),
        "F0@0 F1@0 F2@0 F0@1 I0@1 W0@1 F1@1 I1@1 W1@1 I0@0 W0@0 F2@1 I2@1 W2@1 I1@0 W1@0 I2@0 W2@0"
    );
    assert_eq!(
        text(&zero, 1),
        "F0@0 F0@1 F1@0 F1@1 I0@1 W0@1 F2@0 I0@0 W0@0 F2@1 I1@1 W1@1 I1@0 I2@1 I2@0 W1@0 W2@1 W2@0"
    );
}

#[test]
fn with_slower_forwards_weight_gradients_of_zb_v_move_into_the_gaps() {
    let times = PassTimes { forward: 12.0, input: 10.0, weight: 8.0, ..ALIKE };
    let alike = schedule(ZERO, 4, 2, 12, &ALIKE);
    let made = schedule(ZERO, 4, 2, 12, &times);
    assert_ne!(alike.orders, made.orders);
    assert!(idle(&made, &times) < idle(&alike, &times));
}

#[test]
fn one_stage_on_a_device_or_four_are_refused() {
    for kind in [ZERO, HALF, LEAST] {
        for stages in [1, 4] {
            let map = StageMap::arranged(Arrangement::Wave, 2, stages, 4).expect("a map");
            let message =
                Schedule::build(kind, map, &ALIKE).expect_err("not two stages").to_string();
            let expected =
                format!("{} wants 2 stages on each device, and there are {stages}", kind.name());
            assert_eq!(message, format!("schedule: {expected}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        rng_seed: RngSeed::Fixed(6),
        ..ProptestConfig::default()
    })]

    #[test]
    fn one_buffer_and_the_memory_are_enough_whatever_passes_take(
        devices in 1usize..=8,
        microbatches in 1usize..=32,
        times in times(),
        message in 0u32..=3,
    ) {
        let times = PassTimes { message: f64::from(message), ..times };
        for kind in [ZERO, HALF, LEAST] {
            let limit = memory(kind, devices);
            let peaks = check(&schedule(kind, devices, 2, microbatches, &times), 1)?;
            prop_assert!(peaks.iter().all(|&peak| peak <= limit), "{:?} {:?}", kind, peaks);
            let peaks = check(&schedule(kind, devices, 2, microbatches, &ALIKE), 1)?;
            if microbatches >= devices {
                prop_assert_eq!(peaks.into_iter().max(), Some(limit), "{:?}", kind);
            }
        }
    }

    #[test]
    fn zb_v_idles_no_longer_than_1f1b(devices in 1usize..=8, extra in 0usize..=16, times in times()) {
        let built = schedule(ZERO, devices, 2, 2 * devices + extra, &times);
        let most = (devices as f64 - 1.0) * (times.forward + times.input + times.weight);
        prop_assert!(idle(&built, &times) <= most);
    }

    #[test]
    fn more_microbatches_add_no_idle_time_within_the_papers_bounds(
        devices in 1usize..=8,
        extra in 4usize..=12,
        times in times(),
    ) {
        let PassTimes { forward, input, weight, .. } = times;
        let bounded = weight + 2.0 * input >= 2.0 * forward && weight + 2.0 * forward >= 2.0 * input;
        for kind in [ZERO, HALF] {
            if kind == ZERO || bounded {
                let fewer = schedule(kind, devices, 2, 2 * devices + 4, &times);
                let more = schedule(kind, devices, 2, 2 * devices + 4 + extra, &times);
                prop_assert!(idle(&more, &times) <= idle(&fewer, &times), "{:?}", kind);
            }
        }
    }
}
