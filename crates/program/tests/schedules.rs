//! Schedules: their published times and peaks, and the checker's promises.

#[path = "schedules/checker.rs"]
mod checker;
#[path = "schedules/chimera.rs"]
mod chimera;
#[path = "schedules/hanayo.rs"]
mod hanayo;
#[path = "schedules/interleaved.rs"]
mod interleaved;
#[path = "schedules/single_stage.rs"]
mod single_stage;

use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom_program::schedule::{Schedule, StageMap, Timing, time};

/// f = b = 1, all of the backward pass counted.
const EQUAL: PassTimes = PassTimes { forward: 1.0, input: 0.5, weight: 0.5, message: 0.0 };
/// b = 2f, all of the backward pass counted.
const TWICE: PassTimes = PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0 };

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

/// A device's order as people write it.
fn text(schedule: &Schedule, device: usize) -> String {
    let turns = schedule.orders[device].iter();
    turns.map(|&turn| schedule.map.text(device, turn)).collect::<Vec<_>>().join(" ")
}
