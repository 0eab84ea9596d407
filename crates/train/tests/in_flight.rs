//! How many micro-batches each device holds at once, counted in the log of a real run, is what the
//! schedules' papers say.

mod support;

use std::collections::BTreeMap;

use shardloom_cluster::Cluster;
use shardloom_plan::{PassTimes, ScheduleKind, Uniform};
use shardloom_program::timeline::{Activity, Lane, Track};
use shardloom_train::RunClock;
use support::{Samples, graph, serial, trainer_with_clock};

/// The most passes in flight: stages have run a micro-batch forward and not all of it backward, weight
/// gradients included. Stages of one device count apart.
fn peak(track: &Track) -> usize {
    let passes = track.intervals.iter().filter(|it| it.lane == Lane::Compute);
    let passes: Vec<(Activity, &str)> = passes
        .filter(|it| it.microbatch.is_some())
        .map(|it| (it.activity, &it.label[1..]))
        .collect();
    // A pass may be several intervals, with messages between.
    let (mut begins, mut ends) = (BTreeMap::new(), BTreeMap::new());
    for (at, &(activity, of)) in passes.iter().enumerate() {
        match activity {
            Activity::Forward => {
                begins.entry(of).or_insert(at);
            }
            Activity::Backward | Activity::BackwardWeight => {
                ends.insert(of, at);
            }
            _ => {}
        }
    }
    let begun: Vec<&&str> = begins.keys().collect();
    assert_eq!(begun, ends.keys().collect::<Vec<_>>(), "what began ends");
    let in_flight = |at: usize| {
        let begun = begins.values().filter(|&&begin| begin <= at).count();
        begun - ends.values().filter(|&&end| end < at).count()
    };
    (0..passes.len()).map(in_flight).max().unwrap_or(0)
}

/// The peaks of all devices in a run of one step.
fn peaks(
    schedule: ScheduleKind,
    devices: usize,
    chunks: usize,
    microbatches: usize,
    pass_times: PassTimes,
) -> Vec<usize> {
    let graph = graph("gpt:layers=14,hidden=16,heads=2,seq=16,vocab=64");
    let uniform = Uniform {
        pp: devices,
        global_batch: microbatches,
        microbatches,
        schedule,
        clip_norm: None,
        ..serial()
    };
    let mut plan = uniform
        .plan_in_chunks(&graph, "model", "a100-40g:8", chunks)
        .unwrap_or_else(|error| panic!("{error}"));
    plan.pass_times = pass_times;
    let clock = RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
    let samples = Samples::patterned(32, 16, 64);
    let mut trainer = trainer_with_clock(&graph, &plan, samples, 1e-3, clock);
    let (_, timeline) = trainer.step_recorded().unwrap_or_else(|error| panic!("{error}"));
    timeline.tracks.iter().map(peak).collect()
}

/// Forward and backward passes that take equally long.
const EQUAL: PassTimes = PassTimes { forward: 1.0, input: 0.5, weight: 0.5, message: 0.0 };
/// The three kinds of pass take equally long.
const ALIKE: PassTimes = PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0 };

#[test]
fn afab_has_all_in_flight() {
    for (devices, microbatches) in [(2, 3), (4, 8), (8, 16)] {
        let found = peaks(ScheduleKind::Afab, devices, 1, microbatches, ALIKE);
        assert_eq!(found, vec![microbatches; devices]);
    }
}

#[test]
fn with_1f1b_there_are_as_many_in_flight_as_stages_from_a_stage_on() {
    for (devices, microbatches) in [(2, 3), (4, 2), (4, 8), (4, 16), (8, 16)] {
        let found = peaks(ScheduleKind::OneForwardOneBackward, devices, 1, microbatches, ALIKE);
        let expected = (0..devices).map(|stage| (devices - stage).min(microbatches));
        assert_eq!(found, expected.collect::<Vec<_>>(), "{devices} {microbatches}");
    }
}

#[test]
fn interleaved_has_chunks_times_devices_and_devices_less_one_in_flight_on_the_first() {
    for (devices, chunks, microbatches) in [(2, 2, 4), (4, 2, 8), (4, 3, 16), (4, 4, 8)] {
        let found = peaks(ScheduleKind::Interleaved, devices, chunks, microbatches, ALIKE);
        // Each later device begins backward two passes earlier.
        let expected = |device| chunks * devices + devices - 1 - 2 * device;
        assert_eq!(found, (0..devices).map(expected).collect::<Vec<_>>(), "{devices} {chunks}");
    }
}

#[test]
fn chimera_has_between_half_the_devices_and_one_and_all_of_them_in_flight() {
    for (devices, microbatches) in [(2, 4), (4, 4), (4, 8), (8, 8), (8, 16)] {
        let found = peaks(ScheduleKind::Chimera, devices, 2, microbatches, ALIKE);
        // Stage `i` of one pipeline and stage `p - 1 - i` of the other, each under 1F1B.
        let expected = |device: usize| devices / 2 + 1 + device.min(devices - 1 - device);
        assert_eq!(found, (0..devices).map(expected).collect::<Vec<_>>(), "{devices}");
    }
}

#[test]
fn zero_bubble_has_as_many_in_flight_as_devices_or_twice_as_many_less_one() {
    for (devices, microbatches) in [(2, 6), (4, 8), (4, 16), (8, 16)] {
        let first = peaks(ScheduleKind::ZeroBubbleH1, devices, 1, microbatches, ALIKE);
        assert_eq!(first, vec![devices; devices], "{microbatches}");
        let second = peaks(ScheduleKind::ZeroBubbleH2, devices, 1, microbatches, ALIKE);
        assert_eq!(second, vec![2 * devices - 1; devices], "{microbatches}");
    }
}

#[test]
fn hanayo_has_as_many_whole_micro_batches_in_flight_as_devices() {
    for (devices, waves, rounds) in
        [(2, 1, 1), (2, 2, 2), (4, 1, 2), (4, 2, 1), (8, 1, 1), (8, 1, 2)]
    {
        let found = peaks(ScheduleKind::Hanayo, devices, 2 * waves, rounds * devices, EQUAL);
        // Each is in as many passes as a device has stages. With one round a device runs its first
        // backward pass when devices after it have run one forward more each.
        let fewer = |device: usize| if rounds == 1 { devices - 1 - device } else { 0 };
        let expected = (0..devices).map(|device| 2 * waves * devices - fewer(device));
        assert_eq!(found, expected.collect::<Vec<_>>(), "{devices} {waves} {rounds}");
    }
}

#[test]
fn dualpipe_has_one_more_than_devices_in_flight_everywhere() {
    for (devices, microbatches) in [(2, 4), (4, 8), (4, 12), (8, 16)] {
        let found = peaks(ScheduleKind::DualPipe, devices, 2, microbatches, ALIKE);
        assert_eq!(found, vec![devices + 1; devices], "{microbatches}");
    }
}
