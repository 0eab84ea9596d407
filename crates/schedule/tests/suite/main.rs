//! Schedules: their published times and peaks, and the checker's promises.

mod bounds;
mod checker;
mod chimera;
mod dualpipe;
mod hanayo;
mod interleaved;
mod meeting;
mod pipedream;
mod pipemare;
mod single_stage;
mod succession;
mod table;
mod taking_turns;
mod v_shape;
mod zb_1p_2p;
mod zero_bubble;

use proptest::prelude::*;
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_schedule::{Action, Pass, PassKind, Schedule, StageMap, Timing, time};

/// f = b = 1, all of the backward pass counted.
const EQUAL: PassTimes =
    PassTimes { forward: 1.0, input: 0.5, weight: 0.5, message: 0.0, kept: 1.0 };
/// b = 2f, all of the backward pass counted.
const TWICE: PassTimes =
    PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0, kept: 1.0 };
/// The published examples of split backward passes.
const ALIKE: PassTimes =
    PassTimes { forward: 10.0, input: 10.0, weight: 10.0, message: 0.0, kept: 1.0 };

/// The schedule on its usual places.
fn schedule(
    kind: ScheduleKind,
    devices: usize,
    chunks: usize,
    microbatches: usize,
    times: &PassTimes,
) -> Schedule {
    let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
    let map = StageMap::arranged(arrangement, devices, chunks, microbatches);
    let map = map.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    Schedule::build(kind, map, times).unwrap_or_else(|error| panic!("{kind:?}: {error}"))
}

/// Why there is no such schedule.
fn refusal(kind: ScheduleKind, devices: usize, chunks: usize, microbatches: usize) -> String {
    let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
    let built = StageMap::arranged(arrangement, devices, chunks, microbatches)
        .and_then(|map| Schedule::build(kind, map, &EQUAL));
    built.expect_err("this size should be refused").to_string()
}

/// One step's times.
fn timing(schedule: &Schedule, times: &PassTimes) -> Timing {
    time(schedule, 1, times).expect("these schedules cannot deadlock")
}

/// How long a device works in a step, all as long.
fn work(schedule: &Schedule, times: &PassTimes) -> f64 {
    let all = f64::from(schedule.map.microbatches());
    all * (times.forward + times.input + times.weight)
}

/// How long the device that idles most does so between its own start and its own end.
fn idle(schedule: &Schedule, times: &PassTimes) -> f64 {
    timing(schedule, times).longest_span() - work(schedule, times)
}

/// A device's order as people write it.
fn text(schedule: &Schedule, device: usize) -> String {
    let actions = schedule.orders[device].iter();
    actions.map(|&action| schedule.map.text(device, action)).collect::<Vec<_>>().join(" ")
}

/// How many backward passes each stage runs between a micro-batch's forward and its own backward once the
/// pipeline is full, in a schedule without flush.
fn delays(schedule: &Schedule) -> Vec<usize> {
    let microbatches = schedule.map.microbatches();
    let steps = 2 * schedule.ahead() + 2;
    // Early micro-batches find the pipeline empty; from this one on it is full.
    let full = schedule.ahead() * microbatches;
    let delay = |order: Vec<Action>| {
        let passes: Vec<Pass> = order.iter().flat_map(|action| action.passes()).collect();
        let at = |kind, microbatch| {
            passes.iter().position(|pass| (pass.kind, pass.microbatch) == (kind, microbatch))
        };
        let delays: Vec<usize> = (full..full + microbatches)
            .filter_map(|microbatch| {
                let between =
                    at(PassKind::Forward, microbatch)? + 1..at(PassKind::Backward, microbatch)?;
                Some(passes[between].iter().filter(|pass| pass.kind == PassKind::Backward).count())
            })
            .collect();
        assert!(delays.iter().all(|delay| *delay == delays[0]), "{delays:?}");
        delays[0]
    };
    schedule.unrolled(steps).into_iter().map(delay).collect()
}

/// What a further step takes in a schedule without flush once the pipeline is full.
fn steady_seconds(schedule: &Schedule, forward: f64, backward: f64, message: f64) -> f64 {
    let times = PassTimes { forward, input: 0.0, weight: backward, message, kept: 1.0 };
    let makespan = |steps| {
        let timing = time(schedule, steps, &times).expect("these schedules cannot deadlock");
        timing.makespan
    };
    let full = 2 * schedule.ahead() + 2;
    (makespan(full + 4) - makespan(full)) / 4.0
}

/// Times without messages, whole so that sums are exact.
fn times() -> impl Strategy<Value = PassTimes> {
    (1u32..=10, 1u32..=10, 1u32..=10).prop_map(|(forward, input, weight)| PassTimes {
        forward: f64::from(forward),
        input: f64::from(input),
        weight: f64::from(weight),
        ..ALIKE
    })
}
