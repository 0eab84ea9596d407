//! ZB-H1 and ZB-H2: split backward passes, one stage per device.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Schedule, StageMap, Succession, check};

use super::{ALIKE, idle, schedule, text, times, timing, work};

const H1: ScheduleKind = ScheduleKind::ZeroBubbleH1;
const H2: ScheduleKind = ScheduleKind::ZeroBubbleH2;

#[test]
fn with_times_of_10_h1_idles_30_on_4_devices_and_70_on_8_and_h2_not_at_all() {
    for (devices, bubble) in [(4, 30.0), (8, 70.0)] {
        for microbatches in [2 * devices, 32] {
            assert_eq!(idle(&schedule(H1, devices, 1, microbatches, &ALIKE), &ALIKE), bubble);
            assert_eq!(idle(&schedule(H2, devices, 1, microbatches, &ALIKE), &ALIKE), 0.0);
        }
    }
}

#[test]
fn h2_adds_just_its_work_with_each_step() {
    let schedule = schedule(H2, 4, 1, 8, &ALIKE);
    let makespan =
        |steps| shardloom_schedule::time(&schedule, steps, &ALIKE).expect("no deadlock").makespan;
    // The last device starts three forwards after the first, once.
    assert_eq!(makespan(1), 240.0 + 30.0);
    assert_eq!(makespan(2), 480.0 + 30.0);
}

/// The last device begins after three forwards and messages, and then works without a gap.
#[test]
fn with_messages_as_long_as_passes_h2_of_4_devices_and_8_microbatches_takes_the_least_time_there_is()
 {
    let times = PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 1.0, ..ALIKE };
    let built = schedule(H2, 4, 1, 8, &times);
    assert_eq!(timing(&built, &times).makespan, 3.0 * 2.0 + 8.0 * 3.0);
    let peaks = check(&built, 4).expect("no deadlock");
    assert_eq!(peaks.into_iter().max(), Some(7));
}

/// The first gradient is at the first device when all devices have run a forward, the others an input gradient,
/// and messages have gone there and back. Until then memory lets the first device run five forwards; all else
/// it does without a break.
#[test]
fn with_slow_messages_h2_on_3_devices_idles_only_until_the_first_gradient_is_there() {
    for (forward, input, weight, message) in [
        (1.0, 3.0, 3.0, 4.0),
        (2.0, 1.0, 3.0, 2.0),
        (2.0, 2.0, 2.0, 1.0),
        (3.0, 3.0, 3.0, 2.0),
        (3.0, 4.0, 3.0, 1.0),
        (4.0, 3.0, 4.0, 3.0),
    ] {
        let times = PassTimes { forward, input, weight, message, ..ALIKE };
        let arrival = 3.0 * forward + 2.0 * (input + 2.0 * message);
        let built = schedule(H2, 3, 1, 6, &times);
        assert_eq!(idle(&built, &times), arrival - 5.0 * forward, "{times:?}");
    }
}

#[test]
fn orders_for_equal_times() {
    let first = schedule(H1, 4, 1, 8, &ALIKE);
    assert_eq!(
        text(&first, 0),
        "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"
    );
    assert_eq!(
        text(&first, 3),
        "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"
    );
    let second = schedule(H2, 3, 1, 6, &ALIKE);
    assert_eq!(text(&second, 0), "F0 F1 F2 F3 F4 I0 W0 F5 I1 I2 W1 W2 I3 I4 W3 W4 I5 W5");
    assert_eq!(text(&second, 2), "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        rng_seed: RngSeed::Fixed(6),
        ..ProptestConfig::default()
    })]

    #[test]
    fn memory_of_p_and_of_2p_less_1_is_enough(
        devices in 1usize..=8,
        microbatches in 1usize..=32,
        times in times(),
        message in 0u32..=3,
    ) {
        let times = PassTimes { message: f64::from(message), ..times };
        for (kind, limit) in [(H1, devices), (H2, 2 * devices - 1)] {
            let built = schedule(kind, devices, 1, microbatches, &times);
            // More than one message waits only where gradients come back late.
            let late = times.input + 2.0 * times.message > times.forward;
            let peaks = check(&built, if late { devices } else { 1 })?;
            prop_assert!(peaks.iter().all(|&peak| peak <= limit), "{:?} {:?}", kind, peaks);
            let alike = schedule(kind, devices, 1, microbatches, &ALIKE);
            let peak = check(&alike, 1)?.into_iter().max();
            prop_assert_eq!(peak, Some(limit.min(microbatches)), "{:?}", kind);
        }
    }

    #[test]
    fn any_memory_is_enough_and_never_exceeded(
        devices in 1usize..=8,
        microbatches in 1usize..=24,
        limit in 1usize..=20,
        times in times(),
        message in 0u32..=3,
    ) {
        let times = PassTimes { message: f64::from(message), ..times };
        let map = StageMap::arranged(Arrangement::Chain, devices, 1, microbatches).expect("a map");
        let built = Schedule::zero_bubble(map, &times, limit, Succession::Own).expect("a schedule");
        let peaks = check(&built, microbatches)?;
        prop_assert!(peaks.iter().all(|&peak| peak <= limit), "{limit}: {peaks:?}");
        if limit == devices {
            prop_assert_eq!(built.orders, schedule(H1, devices, 1, microbatches, &times).orders);
        }
    }

    #[test]
    fn the_bubble_is_the_papers_formula_where_memory_lets_it_be(
        devices in 1usize..=8,
        extra in 0usize..=16,
        times in times(),
    ) {
        let microbatches = 2 * devices + extra;
        let others = devices as f64 - 1.0;
        let PassTimes { forward, input, weight, .. } = times;
        // Memory lets p or 2p - 1 forwards run before the first gradient is there, and until then there
        // are no weight gradients to fill the rest with.
        let first = (forward + input - weight).max(input);
        let second = (forward + input - 2.0 * weight).max(input - forward).max(0.0);
        for (kind, bubble) in [(H1, first), (H2, second)] {
            let built = schedule(kind, devices, 1, microbatches, &times);
            prop_assert_eq!(idle(&built, &times), others * bubble, "{:?}", kind);
        }
    }

    #[test]
    fn h1_is_never_slower_than_1f1b(
        devices in 1usize..=8,
        microbatches in 1usize..=32,
        times in times(),
        message in 0u32..=3,
    ) {
        let times = PassTimes { message: f64::from(message), ..times };
        let alternating = schedule(ScheduleKind::OneForwardOneBackward, devices, 1, microbatches, &times);
        let built = schedule(H1, devices, 1, microbatches, &times);
        let most = timing(&alternating, &times).makespan - work(&alternating, &times);
        prop_assert!(idle(&built, &times) <= most);
    }
}
