//! Orders for steps that wait for each other, and for steps that do not.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, Plan, ScheduleKind};
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

/// A step's updates wait for all gradients where a norm is looked at before, and not where it is afterwards.
#[test]
fn steps_of_a_plan_wait_for_each_other_where_updates_depend_on_a_norm() {
    let plan = |clips: bool, skips: bool, post_validation: bool| {
        let clip = if clips { "clip_norm = 1.0" } else { "" };
        let text = format!(
            "format = 1\nmodel = \"m\"\ncluster = \"c\"\nglobal_batch = 18\nmicrobatches = 18\nschedule = \"zb-h1\"\n\
             recompute = \"none\"\nlayout = \"\"\n{clip}\nskip_non_finite = {skips}\npost_validation = {post_validation}\n\
             pass_times = {{ forward = 4.0, input = 1.0, weight = 9.0, message = 3.0 }}\n\
             [sync]\nalgorithm = \"ring\"\nzero = 0\nbucket_bytes = 1\n\
             [precision]\ncompute = \"fp32\"\ngradients = \"fp32\"\nmaster = false\n\
             [optimizer]\nkind = \"sgd\"\nmomentum = 0.9\nweight_decay = 0.0\n\
             [[pipeline]]\n[[pipeline.stage]]\nblocks = [0, 1]\nmesh = {{}}\ndevices = \"0\"\n"
        );
        Plan::from_toml(&text, "plan.toml").unwrap_or_else(|error| panic!("{error}"))
    };
    let times = PassTimes { forward: 4.0, input: 1.0, weight: 9.0, message: 3.0, ..ALIKE };
    let map = || StageMap::arranged(Arrangement::Chain, 4, 1, 18).expect("a map");
    let built = |succession| {
        let kind = ScheduleKind::ZeroBubbleH1;
        Schedule::build_for(kind, map(), &times, succession).expect("a schedule")
    };
    assert_ne!(built(Succession::Own), built(Succession::Common));
    for bits in 0..8 {
        let [clips, skips, afterwards] = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
        let succession = match (clips || skips) && !afterwards {
            true => Succession::Common,
            false => Succession::Own,
        };
        let found = Schedule::of(&plan(clips, skips, afterwards), map()).expect("a schedule");
        assert_eq!(found, built(succession), "{clips} {skips} {afterwards}");
    }
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
