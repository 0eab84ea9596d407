//! How many micro-batches each device holds at once, and how many updates there are between the passes of
//! one, counted in the log of a real run, are what the schedules' papers say; and the simulator says the
//! same.

use std::collections::BTreeMap;

use crate::support::{Samples, graph, serial, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_plan::{PassTimes, ScheduleKind, Uniform, Weights};
use shardloom_program::timeline::{Activity, Interval, Lane, Track};
use shardloom_sim::{Options, simulate};
use shardloom_train::RunClock;

/// What a device computed, in order.
fn computed(track: &Track) -> impl Iterator<Item = &Interval> {
    track.intervals.iter().filter(|it| it.lane == Lane::Compute)
}

/// The most passes in flight: stages have run a micro-batch forward and not all of it backward, weight
/// gradients included. Stages of one device count apart.
fn peak(track: &Track) -> usize {
    let passes: Vec<(Activity, &str)> = computed(track)
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

/// A schedule with so many micro-batches on so many devices with so many stages each, as the program has
/// it for passes of these times.
#[derive(Clone, Copy, Debug)]
struct Pipeline {
    schedule: ScheduleKind,
    devices: usize,
    chunks: usize,
    microbatches: usize,
    pass_times: PassTimes,
    weights: Weights,
}

impl Pipeline {
    fn new(schedule: ScheduleKind, devices: usize, chunks: usize, microbatches: usize) -> Pipeline {
        let weights = schedule.usual_weights();
        Pipeline { schedule, devices, chunks, microbatches, pass_times: ALIKE, weights }
    }

    /// What all devices do in a run of some steps, measured and simulated.
    fn tracks(self, steps: u32) -> [Vec<Track>; 2] {
        // Two blocks or more in each stage, so that all have weight gradients of matrix products, which
        // split backward passes run apart.
        let layers = 2 * self.devices * self.chunks - 2;
        let graph = graph(&format!("gpt:layers={layers},hidden=16,heads=2,seq=16,vocab=64"));
        let uniform = Uniform {
            pp: self.devices,
            global_batch: self.microbatches,
            microbatches: self.microbatches,
            schedule: self.schedule,
            clip_norm: None,
            ..serial()
        };
        let mut plan = uniform
            .plan_in_chunks(&graph, "model", "a100-40g:8", self.chunks)
            .unwrap_or_else(|error| panic!("{error}"));
        (plan.pass_times, plan.weights) = (self.pass_times, self.weights);
        let cluster = || Cluster::parse("a100-40g:8").expect("a preset");
        let samples = Samples::patterned(32, 16, 64);
        let clock = RunClock::Virtual(cluster());
        let mut trainer = trainer_with_clock(&graph, &plan, samples, 1e-3, clock);
        let measured = trainer.train_steps_recorded(steps);
        let (_, measured) = measured.unwrap_or_else(|error| panic!("{error}"));
        let options = Options { steps, folded: false };
        let simulated = simulate(&graph, &cluster(), trainer.program(), options);
        let simulated = simulated.unwrap_or_else(|error| panic!("{error}")).timeline;
        [measured.tracks, simulated.tracks]
    }

    /// The peaks of all devices: with a flush in one step, without in enough to fill the pipeline.
    fn peaks(self) -> Vec<usize> {
        let full = (2 * self.devices).div_ceil(self.microbatches) as u32 + 2;
        let steps = if self.schedule.flushes() { 1 } else { full };
        let [measured, simulated] =
            self.tracks(steps).map(|tracks| tracks.iter().map(peak).collect::<Vec<_>>());
        assert_eq!(simulated, measured, "simulated and measured: {self:?}");
        measured
    }
}

/// The peaks of all devices.
fn peaks(
    schedule: ScheduleKind,
    devices: usize,
    chunks: usize,
    microbatches: usize,
    pass_times: PassTimes,
) -> Vec<usize> {
    let pipeline = Pipeline::new(schedule, devices, chunks, microbatches);
    Pipeline { pass_times, ..pipeline }.peaks()
}

/// Forward and backward passes that take equally long.
const EQUAL: PassTimes =
    PassTimes { forward: 1.0, input: 0.5, weight: 0.5, message: 0.0, kept: 1.0 };
/// The three kinds of pass take equally long.
const ALIKE: PassTimes =
    PassTimes { forward: 1.0, input: 1.0, weight: 1.0, message: 0.0, kept: 1.0 };

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
    for (kind, together) in [(ScheduleKind::Chimera, 1), (ScheduleKind::ChimeraDoubling, 2)] {
        for (devices, pairs, units) in
            [(2, 1, 2), (4, 1, 1), (4, 1, 2), (4, 2, 1), (8, 1, 1), (8, 2, 2), (8, 4, 1)]
        {
            let microbatches = together * units * devices;
            let found = peaks(kind, devices, 2 * pairs, microbatches, ALIKE);
            // Stage `i` of one pipeline and stage `p - 1 - i` of the other, each under 1F1B. More pairs
            // are as many such pipelines of fewer devices, one beginning where the other ends.
            let period = devices / pairs;
            let expected = |device: usize| {
                let way = device % period;
                together * (devices - period / 2 + 1 + way.min(period - 1 - way))
            };
            let expected: Vec<usize> = (0..devices).map(expected).collect();
            assert_eq!(found, expected, "{kind:?} {devices} {pairs}");
        }
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

#[test]
fn dualpipev_has_one_more_than_twice_the_devices_in_flight_everywhere() {
    for (devices, microbatches) in [(2, 4), (2, 7), (4, 8), (8, 16)] {
        let found = peaks(ScheduleKind::DualPipeV, devices, 2, microbatches, ALIKE);
        assert_eq!(found, vec![2 * devices + 1; devices], "{microbatches}");
    }
}

/// A micro-batch in both stages of a device counts twice.
#[test]
fn down_the_devices_and_back_up_there_are_all_half_or_a_third_of_1f1bs_in_flight() {
    for (devices, microbatches) in [(2, 4), (4, 8), (4, 11), (8, 16)] {
        for (kind, most) in [
            (ScheduleKind::ZeroBubbleV, devices),
            (ScheduleKind::VHalf, (devices + 2) / 2),
            (ScheduleKind::VMin, (devices + 4) / 3),
        ] {
            let found = peaks(kind, devices, 2, microbatches, ALIKE);
            assert_eq!(found.iter().max(), Some(&(2 * most)), "{kind:?} {devices} {microbatches}");
        }
    }
}

/// Without flush: every rule for weights, with the micro-batches of its paper and with more.
fn unflushed() -> impl Iterator<Item = Pipeline> {
    let rules = [
        (Weights::Stash, [1, 3]),
        (Weights::VerticalSync, [1, 3]),
        (Weights::DoubleBuffer, [8, 9]),
        (ScheduleKind::PipeMare.usual_weights(), [1, 3]),
    ];
    [2, 4, 8].into_iter().flat_map(move |devices| {
        rules.into_iter().flat_map(move |(weights, microbatches)| {
            let schedule = match weights {
                Weights::Newest { .. } => ScheduleKind::PipeMare,
                _ => ScheduleKind::PipeDream,
            };
            microbatches.map(|microbatches| {
                let pipeline = Pipeline::new(schedule, devices, 1, microbatches);
                Pipeline { weights, ..pipeline }
            })
        })
    })
}

/// How many micro-batches later a stage runs backward what it runs forward.
fn later(pipeline: Pipeline, stage: usize) -> usize {
    let after = pipeline.devices - 1 - stage;
    if pipeline.schedule == ScheduleKind::PipeMare { 2 * after } else { after }
}

#[test]
fn without_flush_as_many_are_in_flight_as_micro_batches_lie_between_passes_and_one() {
    for pipeline in unflushed() {
        let expected = (0..pipeline.devices).map(|stage| later(pipeline, stage) + 1);
        assert_eq!(pipeline.peaks(), expected.collect::<Vec<_>>(), "{pipeline:?}");
    }
}

/// How many updates a device runs between the forward and the backward pass of each micro-batch.
fn updates_between(track: &Track) -> BTreeMap<u32, u32> {
    let (mut updates, mut updating) = (0, false);
    let (mut begun, mut between) = (BTreeMap::new(), BTreeMap::new());
    for interval in computed(track) {
        let update = interval.activity == Activity::Update;
        // An update may be several intervals.
        updates += u32::from(update && !updating);
        updating = update;
        let Some(microbatch) = interval.microbatch else { continue };
        match interval.activity {
            Activity::Forward => {
                begun.entry(microbatch).or_insert(updates);
            }
            _ => {
                between.entry(microbatch).or_insert(updates - begun[&microbatch]);
            }
        }
    }
    between
}

/// PipeDream's n - 1 - s and pipelined backpropagation's 2 (n - 1 - s) for one micro-batch in a step, a
/// share of which on average for several.
#[test]
fn gradients_are_as_late_as_micro_batches_lie_between_passes() {
    for pipeline in unflushed() {
        let many = pipeline.microbatches as u32;
        let fill = (2 * pipeline.devices as u32).div_ceil(many);
        for tracks in pipeline.tracks(fill + 4) {
            for (stage, track) in tracks.iter().enumerate() {
                let between = updates_between(track);
                // From a step on whose forward passes began when the pipeline was full.
                let full =
                    between.range(fill * many..(fill + 4) * many).map(|(_, updates)| updates);
                let delays: u32 = full.sum();
                assert_eq!(delays, 4 * later(pipeline, stage) as u32, "{pipeline:?} {stage}");
            }
        }
    }
}
