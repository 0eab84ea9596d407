//! Published makespans, bubbles and peaks, from the engine on lowered programs: what the crate `schedule`
//! says of an order is what a simulation of the plan comes to.

use crate::scenario::fixed::Fixed;
use crate::scenario::{gpt, h100, uniform};
use shardloom_plan::{Arrangement, PassTimes, ScheduleKind, Uniform};
use shardloom_program::lower;
use shardloom_program::timeline::{Interval, Lane, Picos, Track};
use shardloom_schedule::{Action, Pass, PassKind, Schedule, StageMap, time_with};
use shardloom_sim::{Options, Simulation, run};

/// What is simulated: a schedule of some devices, stages on each and micro-batches.
type Case = (ScheduleKind, [usize; 3]);

/// Times of a stage's forward pass, input gradients and weight gradients.
type Times = [u64; 3];

/// What devices take for all their stages, which is what schedules are made for.
fn pass_times(kind: ScheduleKind, chunks: usize, [forward, input, weight]: Times) -> PassTimes {
    let stages = match kind.arrangement() {
        Some(Arrangement::Bidirectional) | None => 1.0,
        Some(_) => chunks as f64,
    };
    let all = |of_stage: u64| stages * of_stage as f64;
    PassTimes {
        forward: all(forward),
        input: all(input),
        weight: all(weight),
        ..PassTimes::default()
    }
}

fn simulated(
    (kind, [devices, chunks, microbatches]): Case,
    times: Times,
    steps: u32,
) -> Simulation {
    let [forward, input, weight] = times;
    let stages = match kind.arrangement() {
        Some(Arrangement::Bidirectional) | None => devices,
        Some(_) => devices * chunks,
    };
    // Two blocks to a stage, so that each half of each backward pass has something to compute.
    let graph = gpt(2 * stages - 2, false);
    let numbers =
        Uniform { schedule: kind, clip_norm: None, ..uniform(devices, 1, 1, microbatches) };
    let mut plan = numbers.plan_in_chunks(&graph, "gpt", "cluster", chunks).expect("a plan");
    for pipeline in &mut plan.pipeline {
        for (stage, run) in pipeline.stage.iter_mut().enumerate() {
            run.blocks = (2 * stage, 2 * stage + 2);
        }
    }
    plan.pass_times = pass_times(kind, chunks, times);
    let program = lower(&graph, &plan, devices).expect("the plan fits");
    let mut driver = Fixed { backward: [input, weight], ..Fixed::passes(&program, forward, 0) };
    let options = Options { steps, folded: false };
    run(&program, &h100(devices), options, &mut driver).expect("it runs")
}

fn passes(track: &Track) -> Vec<&Interval> {
    track.intervals.iter().filter(|it| it.lane == Lane::Compute).collect()
}

/// How long the device that idles most does so between its own start and its own end.
fn idle(found: &Simulation) -> u64 {
    let of = |track: &Track| {
        let passes = passes(track);
        let (first, last) = (passes.first()?, passes.last()?);
        Some(last.end.since(first.start).0 - track.busy().0)
    };
    found.timeline.tracks.iter().filter_map(of).max().expect("there are devices")
}

#[test]
fn makespans_are_the_published_ones() {
    use ScheduleKind::{Chimera, Hanayo, Interleaved};
    for (kind, shape, times, makespan) in [
        // Half a unit for a pass of half a device: 19 units.
        (Interleaved, [4, 2, 8], [1, 0, 1], 2 * 19),
        (Chimera, [4, 2, 4], [1, 0, 1], 10),
        (Chimera, [4, 2, 4], [1, 1, 1], 16),
        (Chimera, [8, 2, 8], [1, 0, 1], 22),
        (Chimera, [8, 2, 8], [1, 1, 1], 36),
        (Chimera, [8, 4, 8], [1, 0, 1], 18),
        (Chimera, [8, 8, 8], [1, 0, 1], 16),
        // A wave is two stages on a device: 11, 9.5 and 8.75 units of 2, 4 and 8 stages.
        (Hanayo, [4, 2, 4], [1, 0, 1], 22),
        (Hanayo, [4, 4, 4], [1, 0, 1], 38),
        (Hanayo, [4, 8, 4], [1, 0, 1], 70),
        (Hanayo, [8, 2, 8], [1, 0, 1], 46),
        (Hanayo, [8, 4, 8], [1, 0, 1], 78),
        (Hanayo, [8, 8, 8], [1, 0, 1], 142),
    ] {
        let found = simulated((kind, shape), times, 1);
        assert_eq!(found.timeline.makespan(), Picos(makespan), "{kind:?} {shape:?} {times:?}");
    }
}

#[test]
fn dualpipe_takes_no_longer_than_published() {
    // The published times have both passes of a pair begin when both can.
    for (shape, work, makespan) in [([4, 2, 8], 24, 26), ([8, 2, 20], 60, 66)] {
        let found = simulated((ScheduleKind::DualPipe, shape), [1, 1, 1], 1);
        let takes = found.timeline.makespan().0;
        assert!((work..=makespan).contains(&takes), "{shape:?}: {takes}");
    }
}

#[test]
fn zero_bubble_pipelines_idle_as_published() {
    use ScheduleKind::{OneForwardOneBackward, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV};
    for (kind, shape, idles) in [
        (OneForwardOneBackward, [4, 1, 8], 90),
        (ZeroBubbleH1, [4, 1, 8], 30),
        (ZeroBubbleH1, [8, 1, 16], 70),
        (ZeroBubbleH2, [4, 1, 8], 0),
        (ZeroBubbleH2, [8, 1, 16], 0),
        (ZeroBubbleV, [4, 2, 8], 0),
        (ZeroBubbleV, [8, 2, 16], 0),
    ] {
        assert_eq!(idle(&simulated((kind, shape), [10, 10, 10], 1)), idles, "{kind:?} {shape:?}");
    }
}

#[test]
fn every_pass_of_every_schedule_runs_when_its_order_says() {
    // An action of two passes begins when both can: the engine may begin its first before.
    let pairs = [ScheduleKind::DualPipe, ScheduleKind::DualPipeV];
    let kinds = ScheduleKind::ALL.into_iter();
    for kind in kinds.filter(|kind| *kind != ScheduleKind::Table && !pairs.contains(kind)) {
        let arrangement = kind.arrangement().unwrap_or(Arrangement::Chain);
        let mut cases = 0;
        for (devices, times) in [(2, [3, 2, 4]), (3, [2, 5, 1]), (4, [10, 10, 10]), (4, [1, 1, 1])]
        {
            for chunks in arrangement.least_chunks()..=4 {
                let microbatches = 2 * devices;
                let made_for = pass_times(kind, chunks, times);
                let map = StageMap::arranged(arrangement, devices, chunks, microbatches);
                let built = map.and_then(|map| Schedule::build(kind, map, &made_for));
                let Ok(schedule) = built else { continue };
                let steps = 1 + schedule.ahead();
                let [forward, input, weight] = times;
                let duration = |action: Action| {
                    let of = |pass: Pass| match pass.kind {
                        PassKind::Forward => forward,
                        PassKind::Backward => input + weight,
                        PassKind::BackwardInput => input,
                        PassKind::BackwardWeight => weight,
                    };
                    action.passes().map(of).sum::<u64>() as f64
                };
                let timing = time_with(&schedule, steps, 0.0, duration).expect("no deadlock");
                let found = simulated((kind, [devices, chunks, microbatches]), times, steps);
                for (actions, track) in timing.actions.iter().zip(&found.timeline.tracks) {
                    let said = actions.iter().map(|it| (it.start as u64, it.end as u64));
                    let ran = passes(track).into_iter().map(|it| (it.start.0, it.end.0));
                    assert!(said.eq(ran), "{kind:?} {devices} {chunks} {times:?}: {track:?}");
                }
                cases += 1;
            }
        }
        assert!(cases >= 4, "{kind:?} in {cases} cases");
    }
}
