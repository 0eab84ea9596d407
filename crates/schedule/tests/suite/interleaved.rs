//! Interleaved 1F1B: several stages on each device, in the same direction.

use shardloom_plan::{PassTimes, ScheduleKind};
use shardloom_schedule::check;

use super::{EQUAL, refusal, schedule, text, timing};

const KIND: ScheduleKind = ScheduleKind::Interleaved;

/// Devices, chunks and micro-batches of all sizes up to 8 devices and 32 micro-batches.
fn sizes() -> impl Iterator<Item = (usize, usize, usize)> {
    let chunks = |devices: usize| (2..=4).map(move |chunks| (devices, chunks));
    (1..=8).flat_map(chunks).flat_map(|(devices, chunks)| {
        (devices..=32).map(move |microbatches| (devices, chunks, microbatches))
    })
}

/// How many micro-batches go through a chunk before the next: the least number, from as many as there
/// are devices, which leaves none over or as many as there are devices.
fn group(devices: usize, microbatches: usize) -> usize {
    let fits = |group: &usize| {
        let over = microbatches - microbatches / group * group;
        over == 0 || over >= devices
    };
    (devices..).find(fits).expect("all of them are one group")
}

#[test]
fn four_devices_with_two_chunks_take_19_for_8_microbatches_of_which_16_are_work() {
    let schedule = schedule(KIND, 4, 2, 8, &EQUAL);
    let timing = timing(&schedule, &EQUAL);
    assert_eq!(timing.makespan, 19.0);
    assert_eq!(timing.bubble_fraction, 1.0 - 16.0 / 19.0);
}

#[test]
fn the_orders_are_those_of_the_paper() {
    let schedule = schedule(KIND, 2, 2, 4, &EQUAL);
    let first = "F0@0 F1@0 F0@1 F1@1 F2@0 B0@1 F3@0 B1@1 F2@1 B0@0 F3@1 B1@0 B2@1 B3@1 B2@0 B3@0";
    assert_eq!(text(&schedule, 0), first);
    let last = "F0@0 F1@0 F0@1 B0@1 F1@1 B1@1 F2@0 B0@0 F3@0 B1@0 F2@1 B2@1 F3@1 B3@1 B2@0 B3@0";
    assert_eq!(text(&schedule, 1), last);
}

/// Megatron-LM's own example of its table, PP2 N3M5 with VP2.
#[test]
fn five_microbatches_go_through_two_devices_in_groups_of_three_and_two() {
    let schedule = schedule(KIND, 2, 2, 5, &EQUAL);
    assert_eq!(
        text(&schedule, 0),
        "F0@0 F1@0 F2@0 F0@1 F1@1 F2@1 B0@1 F3@0 B1@1 F4@0 B2@1 F3@1 B0@0 F4@1 B1@0 B2@0 B3@1 B4@1 \
         B3@0 B4@0"
    );
    assert_eq!(
        text(&schedule, 1),
        "F0@0 F1@0 F2@0 F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 F3@0 B0@0 F4@0 B1@0 F3@1 B2@0 F4@1 B3@1 B4@1 \
         B3@0 B4@0"
    );
}

#[test]
fn with_as_many_microbatches_as_devices_backwards_begin_before_all_forwards_are_through() {
    let schedule = schedule(KIND, 4, 2, 4, &EQUAL);
    assert_eq!(check(&schedule, 1).expect("no deadlock"), [8, 8, 7, 5]);
    assert_eq!(
        text(&schedule, 3),
        "F0@0 F1@0 F2@0 F3@0 F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 F3@1 B3@1 B0@0 B1@0 B2@0 B3@0"
    );
}

#[test]
fn the_bubble_is_a_chunkth_of_that_of_1f1b() {
    for (devices, chunks, microbatches) in sizes() {
        for (forward, weight) in [(1.0, 0.5), (1.0, 1.5), (3.0, 0.5), (2.0, 6.5)] {
            let times = PassTimes { forward, input: 0.5, weight, ..EQUAL };
            let schedule = schedule(KIND, devices, chunks, microbatches, &times);
            let ideal = microbatches as f64 * (forward + 0.5 + weight);
            let bubble = timing(&schedule, &times).makespan - ideal;
            let expected = (devices - 1) as f64 / (chunks * microbatches) as f64 * ideal;
            let size = (devices, chunks, microbatches, forward, weight);
            assert!((bubble - expected).abs() < 1e-9, "{size:?}: {bubble} and {expected}");
        }
    }
}

#[test]
fn a_group_less_the_other_devices_are_enough_buffers_and_a_device_holds_its_warm_up_and_one_more() {
    for (devices, chunks, microbatches) in sizes() {
        let schedule = schedule(KIND, devices, chunks, microbatches, &EQUAL);
        let size = (devices, chunks, microbatches);
        let group = group(devices, microbatches);
        let peaks = check(&schedule, group - devices + 1)
            .unwrap_or_else(|error| panic!("{size:?}: {error}"));
        let passes = chunks * microbatches;
        // Where the devices divide the micro-batches: chunks times devices, and devices less one.
        let expected =
            |device: usize| ((chunks - 1) * group + 2 * devices - 1 - 2 * device).min(passes);
        assert_eq!(peaks, (0..devices).map(expected).collect::<Vec<_>>(), "{size:?}");
    }
}

#[test]
fn fewer_microbatches_than_devices_and_single_chunks_are_refused() {
    assert_eq!(
        refusal(KIND, 4, 2, 3),
        "schedule: interleaved wants at least as many micro-batches as the 4 devices, not 3"
    );
    assert_eq!(
        refusal(KIND, 4, 1, 8),
        "chunks = 1: interleaved wants at least two stages on each device; with one it is 1f1b"
    );
}
