//! Orders for steps that wait for each other, and for steps that do not.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Schedule, StageMap, Succession, check};

use super::{ALIKE, times, timing};

/// The schedules that choose from several orders.
const KINDS: [ScheduleKind; 8] = [
    ScheduleKind::ZeroBubbleH1,
    ScheduleKind::ZeroBubbleH2,
    ScheduleKind::ZeroBubbleOneP,
    ScheduleKind::ZeroBubbleTwoP,
    ScheduleKind::ZeroBubbleV,
    ScheduleKind::VHalf,
    ScheduleKind::VMin,
    ScheduleKind::Hanayo,
];

/// The longest time of a device's own, and the makespan.
fn lengths(
    kind: ScheduleKind,
    (devices, microbatches): (usize, usize),
    times: &PassTimes,
    succession: Succession,
) -> (f64, f64) {
    let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
    let map = StageMap::arranged(arrangement, devices, arrangement.least_chunks(), microbatches);
    let built = Schedule::build_for(kind, map.expect("a map"), times, succession);
    let built = built.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    check(&built, 2 * microbatches).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    let timing = timing(&built, times);
    (timing.longest_span(), timing.makespan)
}

#[test]
fn where_devices_wait_for_each_other_h1_ends_earlier_though_a_device_idles_longer() {
    let times = PassTimes { forward: 4.0, input: 1.0, weight: 9.0, message: 3.0, ..ALIKE };
    let h1 = |succession| lengths(ScheduleKind::ZeroBubbleH1, (4, 18), &times, succession);
    assert_eq!(h1(Succession::Own), (276.0, 291.0));
    assert_eq!(h1(Succession::Common), (277.0, 282.0));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        rng_seed: RngSeed::Fixed(10),
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_way_is_shortest_in_what_counts_for_it(
        devices in 1usize..=6,
        microbatches in 1usize..=16,
        times in times(),
        message in 0u32..=3,
    ) {
        let times = PassTimes { message: f64::from(message), ..times };
        for kind in KINDS {
            let [own, common] = [Succession::Own, Succession::Common]
                .map(|succession| lengths(kind, (devices, microbatches), &times, succession));
            prop_assert!(own.0 <= common.0 && common.1 <= own.1, "{kind:?}: {own:?} {common:?}");
        }
    }
}
