//! What every schedule keeps to, and what none can beat, whatever passes take.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Action, Instance, PassKind, Schedule, StageMap, check, time_with};

/// The schedule if it exists for this size.
fn existing(
    kind: ScheduleKind,
    devices: usize,
    chunks: usize,
    microbatches: usize,
    times: &PassTimes,
) -> Option<Schedule> {
    let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
    let map = StageMap::arranged(arrangement, devices, chunks, microbatches).ok()?;
    Schedule::build(kind, map, times).ok()
}

/// What a stage's passes take: forward, input gradients, weight gradients.
type Stages = BTreeMap<Instance, [f64; 3]>;

fn pass_seconds([forward, input, weight]: [f64; 3], kind: PassKind) -> f64 {
    match kind {
        PassKind::Forward => forward,
        PassKind::Backward => input + weight,
        PassKind::BackwardInput => input,
        PassKind::BackwardWeight => weight,
    }
}

/// For each stage, what must run before a micro-batch gets there, and what must run after its gradients
/// leave; whole backward passes if `whole`, else input gradients only, as weight gradients hold nobody up.
fn around(
    map: &StageMap,
    stages: &Stages,
    message: f64,
    whole: bool,
) -> BTreeMap<Instance, (f64, f64)> {
    let mut around = BTreeMap::new();
    let backward = if whole { PassKind::Backward } else { PassKind::BackwardInput };
    // The stage before comes first among a pipeline's.
    for instance in map.instances() {
        let both = map.before(instance).map_or((0.0, 0.0), |before| {
            let (head, tail) = around[&before];
            let travels = map.device(before) != map.device(instance);
            let message = if travels { message } else { 0.0 };
            let seconds = |kind| pass_seconds(stages[&before], kind) + message;
            (head + seconds(PassKind::Forward), tail + seconds(backward))
        });
        around.insert(instance, both);
    }
    around
}

/// The most of: a micro-batch's way through its pipeline and back; a device's work, between the earliest
/// that it can begin and the least that is left to others after it.
fn bound(schedule: &Schedule, steps: u32, stages: &Stages, message: f64) -> f64 {
    let map = &schedule.map;
    let mut passes = schedule.orders.iter().flatten().flat_map(|action| action.passes());
    let whole = passes.all(|pass| matches!(pass.kind, PassKind::Forward | PassKind::Backward));
    let around = around(map, stages, message, whole);
    let way = |instance: Instance| {
        let [forward, input, weight] = stages[&instance];
        let (head, tail) = around[&instance];
        head + forward + input + if whole { weight } else { 0.0 } + tail
    };
    let path = map.instances().map(way).fold(0.0, f64::max);
    let device = |device: usize| {
        let least = |values: Vec<f64>| values.into_iter().fold(f64::INFINITY, f64::min);
        let head = least(map.instances_on(device).map(|it| around[&it].0).collect());
        // A weight gradient, which nobody waits for, may come last.
        let tail = match whole {
            true => least(map.instances_on(device).map(|it| around[&it].1).collect()),
            false => 0.0,
        };
        let work = |instance: Instance| {
            let each = stages[&instance].iter().sum::<f64>();
            f64::from(steps) * map.microbatches_of(instance).len() as f64 * each
        };
        head + map.instances_on(device).map(work).sum::<f64>() + tail
    };
    (0..map.devices()).map(device).fold(path, f64::max)
}

fn makespan(schedule: &Schedule, steps: u32, stages: &Stages, message: f64) -> f64 {
    let duration = |action: Action| {
        action.passes().map(|it| pass_seconds(stages[&it.instance], it.kind)).sum()
    };
    time_with(schedule, steps, message, duration).expect("schedules cannot deadlock").makespan
}

#[test]
fn every_kind_exists_for_some_of_the_sizes_below() {
    for kind in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        let sizes = (1..=8).flat_map(|devices| (1..=4).map(move |chunks| (devices, chunks)));
        let exist = sizes
            .flat_map(|(devices, chunks)| (1..=32).map(move |many| (devices, chunks, many)))
            .filter(|&(devices, chunks, microbatches)| {
                existing(kind, devices, chunks, microbatches, &PassTimes::default()).is_some()
            });
        assert!(exist.count() >= 40, "{kind:?}");
    }
}

#[test]
fn one_slow_stage_between_two_keeps_1f1b_to_the_bound() {
    let schedule = existing(ScheduleKind::OneForwardOneBackward, 3, 1, 4, &PassTimes::default())
        .expect("a schedule");
    let stages = [1.0, 5.0, 1.0].map(|seconds| [seconds, seconds, seconds]);
    let stages: Stages = schedule.map.instances().zip(stages).collect();
    // To the slow stage, its work, and back.
    assert_eq!(bound(&schedule, 1, &stages, 0.5), 1.5 + 4.0 * 15.0 + 2.5);
    assert_eq!(makespan(&schedule, 1, &stages, 0.5), 64.0);
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), ..ProptestConfig::default() })]

    #[test]
    fn all_pass_the_checker_and_no_makespan_is_below_the_longest_path_or_the_busiest_device(
        devices in 1usize..=8,
        chunks in 1usize..=4,
        groups in 1usize..=4,
        seconds in prop::collection::vec([1u32..100, 1u32..100, 1u32..100], 64),
        message in 0u32..50,
    ) {
        let message = f64::from(message);
        // Orders are made for the mean times, as one would.
        let mean = |index: usize| {
            let sum: u32 = seconds.iter().map(|it| it[index]).sum();
            f64::from(sum) / seconds.len() as f64
        };
        let times =
            PassTimes { forward: mean(0), input: mean(1), weight: mean(2), message, kept: 1.0 };
        for kind in ScheduleKind::ALL {
            // Multiples that most kinds exist for; some want one stage on each device.
            let sizes = [(1, groups), (chunks, devices * groups), (2, 2 * devices * groups)];
            for (chunks, microbatches) in sizes {
                let built = existing(kind, devices, chunks, microbatches, &times);
                let Some(schedule) = built else { continue };
                let steps = match schedule.ahead() {
                    0 => 1,
                    ahead => ahead + 2,
                };
                let stages: Stages = schedule
                    .map
                    .instances()
                    .zip(seconds.iter().cycle())
                    .map(|(instance, seconds)| (instance, seconds.map(f64::from)))
                    .collect();
                let peaks = check(&schedule, steps as usize * microbatches);
                prop_assert!(peaks.is_ok(), "{kind:?}: {peaks:?}");
                let least = bound(&schedule, steps, &stages, message);
                let makespan = makespan(&schedule, steps, &stages, message);
                prop_assert!(makespan >= least, "{kind:?}: {makespan} and {least}");
            }
        }
    }
}
