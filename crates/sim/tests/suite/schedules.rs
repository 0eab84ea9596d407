//! The engine against numbers that can be worked out by hand.

use crate::scenario::fixed::Fixed;
use crate::scenario::{cores, exchanged, gpt, h100, lowered, uniform};
use shardloom_plan::{ScheduleKind, Uniform};
use shardloom_program::timeline::{Activity, Clock, Interval, Lane, Picos};
use shardloom_program::{Action, BodyKind, ClassId, Content, Group, Instruction, Program};
use shardloom_sim::{Call, Driver, Options, SimError, Simulation, run};

const UNFOLDED: Options = Options { steps: 1, folded: false };

fn pipeline(
    schedule: ScheduleKind,
    (stages, microbatches): (usize, usize),
    (forward, backward, message): (u64, u64, u64),
) -> Simulation {
    let mut plan = uniform(stages, 1, 1, microbatches);
    plan.schedule = schedule;
    let program = lowered(&gpt(stages - 1, false), &plan);
    let mut driver = Fixed { message, ..Fixed::passes(&program, forward, backward) };
    run(&program, &h100(stages), UNFOLDED, &mut driver).expect("it runs")
}

#[test]
fn both_schedules_take_the_closed_form_makespan_and_bubble() {
    // (m + p - 1)(f + b), and a bubble of (p - 1) / (m + p - 1) of it.
    for (stages, microbatches, backward, makespan) in
        [(4, 4, 1, 14), (4, 4, 2, 21), (8, 32, 1, 78), (2, 1, 1, 4), (3, 7, 3, 36)]
    {
        for schedule in ScheduleKind::PLAIN {
            let found = pipeline(schedule, (stages, microbatches), (1, backward, 0));
            assert_eq!(found.timeline.makespan(), Picos(makespan), "{schedule:?}");
            assert_eq!(found.step_time(), Picos(makespan), "{schedule:?}");
            let bubble = (stages - 1) as f64 / (microbatches + stages - 1) as f64;
            assert!((found.timeline.bubble_fraction() - bubble).abs() < 1e-12, "{schedule:?}");
            assert!((found.summary().bubble_fraction - bubble).abs() < 1e-12, "{schedule:?}");
        }
    }
}

#[test]
fn rows_are_those_of_one_forward_one_backward() {
    let found = pipeline(ScheduleKind::OneForwardOneBackward, (3, 3), (1, 1, 0));
    let row = |rank: usize| -> Vec<(&str, u64)> {
        let intervals = found.timeline.tracks[rank].intervals.iter();
        intervals.map(|it| (it.label.as_str(), it.start.0)).collect()
    };
    assert_eq!(row(0), [("F0", 0), ("F1", 1), ("F2", 2), ("B0", 5), ("B1", 7), ("B2", 9)]);
    assert_eq!(row(1), [("F0", 1), ("F1", 2), ("B0", 4), ("F2", 5), ("B1", 6), ("B2", 8)]);
    assert_eq!(row(2), [("F0", 2), ("B0", 3), ("F1", 4), ("B1", 5), ("F2", 6), ("B2", 7)]);
}

#[test]
fn a_message_delays_the_next_stage_by_its_time() {
    let found = pipeline(ScheduleKind::Afab, (2, 1), (1, 2, 10));
    assert_eq!(found.timeline.makespan(), Picos(1 + 10 + 1 + 2 + 10 + 2));
    let of = |rank: usize, activity: Activity| -> Vec<(u64, u64)> {
        let intervals = found.timeline.tracks[rank].intervals.iter();
        let those = intervals.filter(|it| it.activity == activity);
        those.map(|it| (it.start.0, it.end.0)).collect()
    };
    assert_eq!(of(0, Activity::Send), [(1, 11)]);
    assert_eq!(of(1, Activity::Receive), [(1, 11)]);
    assert_eq!(of(1, Activity::Send), [(14, 24)]);
    assert_eq!(of(0, Activity::Receive), [(14, 24)]);
}

/// Also those that take no time, which no lane shows.
#[test]
fn every_message_is_known_at_both_ends() {
    for message in [0, 3] {
        let found = pipeline(ScheduleKind::OneForwardOneBackward, (3, 4), (1, 1, message));
        let ends = |activity: Activity| {
            let all = found.timeline.tracks.iter().flat_map(|track| &track.messages);
            let those = all.filter(|it| it.interval.activity == activity);
            let mut ends: Vec<_> = those.map(|it| (it.route, it.interval.microbatch)).collect();
            ends.sort();
            ends
        };
        assert_eq!(ends(Activity::Send).len(), 2 * 2 * 4, "messages of {message}");
        assert_eq!(ends(Activity::Send), ends(Activity::Receive), "messages of {message}");
    }
}

#[test]
fn a_rank_s_message_sets_out_only_when_the_one_before_it_has_arrived() {
    // Passes end every 1, messages take 3: each waits for the one before it, both ways.
    let found = pipeline(ScheduleKind::Afab, (2, 4), (1, 1, 3));
    let of = |rank: usize, lane: Lane| -> Vec<(u64, u64)> {
        let intervals = found.timeline.tracks[rank].intervals.iter();
        intervals.filter(|it| it.lane == lane).map(|it| (it.start.0, it.end.0)).collect()
    };
    let there = [(1, 4), (4, 7), (7, 10), (10, 13)];
    let back = [(15, 18), (18, 21), (21, 24), (24, 27)];
    assert_eq!(of(0, Lane::CommunicationOut), there);
    assert_eq!(of(1, Lane::CommunicationIn), there);
    assert_eq!(of(1, Lane::CommunicationOut), back);
    assert_eq!(of(0, Lane::CommunicationIn), back);
    assert_eq!(found.timeline.makespan(), Picos(28));
}

#[test]
fn steps_follow_each_other() {
    let plan = uniform(4, 1, 1, 4);
    let program = lowered(&gpt(3, false), &plan);
    let options = Options { steps: 3, folded: true };
    let mut driver = Fixed { norm: 1, ..Fixed::passes(&program, 1, 1) };
    let found = run(&program, &h100(4), options, &mut driver).expect("it runs");
    // The norm makes all ranks end their step together.
    let ends = [Picos(15), Picos(30), Picos(45)];
    assert!(found.step_ends.iter().all(|each| each == &ends));
    assert_eq!((found.steps(), found.step_time()), (3, Picos(15)));
    assert_eq!(found.timeline.clock, Clock::Virtual);
}

#[test]
fn without_flush_a_step_takes_what_its_slowest_stage_is_busy() {
    for (schedule, microbatches) in
        [(ScheduleKind::PipeDream, 1), (ScheduleKind::PipeDream, 4), (ScheduleKind::PipeMare, 1)]
    {
        for (stages, backward) in [(2, 1), (4, 2), (8, 3)] {
            let uniform =
                Uniform { schedule, clip_norm: None, ..uniform(stages, 1, 1, microbatches) };
            let program = lowered(&gpt(stages - 1, false), &uniform);
            let mut driver = Fixed::passes(&program, 1, backward);
            let options = Options { steps: 2 + 2 * program.ahead, folded: true };
            let found = run(&program, &h100(stages), options, &mut driver).expect("it runs");
            let busy = microbatches as u64 * (1 + backward);
            assert_eq!(found.step_time(), Picos(busy), "{schedule:?} of {stages}");
        }
    }
}

#[test]
fn a_single_step_without_flush_takes_until_its_end() {
    for stages in [2, 4] {
        let schedule = ScheduleKind::PipeDream;
        let uniform = Uniform { schedule, clip_norm: None, ..uniform(stages, 1, 1, 1) };
        let program = lowered(&gpt(stages - 1, false), &uniform);
        assert!(program.ahead > 0);
        let mut driver = Fixed::passes(&program, 1, 2);
        let found = run(&program, &h100(stages), UNFOLDED, &mut driver).expect("it runs");
        // Its micro-batch goes through all stages and back.
        assert_eq!(found.step_time(), Picos(stages as u64 * (1 + 2)), "{stages}");
    }
}

/// The instructions of the first class's last backward pass.
fn last_backward(program: &Program) -> &[Instruction] {
    let class = &program.classes[0];
    let passes: Vec<_> = class.entries().map(|entry| class.body_of(entry)).collect();
    let mut backward = passes.into_iter().rev().filter(|body| body.kind == BodyKind::Backward);
    &backward.next().expect("a step goes backward").instructions
}

/// A single stage of two replicas whose backward pass is over at 4 and whose reductions take 10 each.
fn reducing(cluster: &shardloom_cluster::Cluster) -> (usize, Simulation) {
    let plan = uniform(1, 2, 1, 1);
    let program = lowered(&gpt(2, false), &plan);
    let reduces = last_backward(&program).iter();
    let class = &program.classes[0];
    let reduces = reduces.filter(|it| exchanged(class, it) == Some(Content::Gradient)).count();
    let mut driver = Fixed { reduce: 10, norm_share: 3, norm: 5, ..Fixed::passes(&program, 1, 3) };
    (reduces, run(&program, cluster, UNFOLDED, &mut driver).expect("it runs"))
}

fn on(found: &Simulation, lane: Lane) -> Vec<&Interval> {
    found.timeline.tracks[0].intervals.iter().filter(|it| it.lane == lane).collect()
}

#[test]
fn the_norm_waits_for_all_reductions_and_then_for_its_share() {
    let (reduces, found) = reducing(&h100(2));
    assert!(reduces > 1, "the model has several buckets");
    let share = 4 + 10 * reduces as u64;
    let update = on(&found, Lane::Compute).pop().expect("there is computation");
    assert_eq!((update.label.as_str(), update.start.0, update.end.0), ("update", share, share + 3));
    let norm = on(&found, Lane::CommunicationIn).pop().expect("there is communication");
    assert_eq!(
        (norm.label.as_str(), norm.start.0, norm.end.0),
        ("gradient norm", share + 3, share + 8)
    );
    assert_eq!(found.step_time(), Picos(share + 8));
}

/// Gives each backward operator 1, and each reduction 100 in the first stage, 10,000 in the second and
/// 7 across stages.
struct Backward<'p>(&'p Program);

impl Driver for Backward<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let kind = self.0.class(call.actor.class).body_of(&call.run.entry).kind;
        let computes = matches!(call.instruction.action, Action::Kernel { .. });
        Ok(Picos(u64::from(kind == BodyKind::Backward && computes)))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let messages = self.0.route(route).sent_by(call.actor.position);
        durations.extend(messages.map(|_| Picos::ZERO));
        Ok(())
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let Call { actor, instruction, .. } = members[0];
        let reduces = exchanged(self.0.class(actor.class), instruction) == Some(Content::Gradient);
        Ok(Picos(match &instruction.action {
            Action::Collective { group: Group::Mesh(_), .. } if reduces => match actor.class {
                ClassId(0) => 100,
                _ => 10_000,
            },
            Action::Collective { group: Group::Classes(_), .. } if reduces => 7,
            _ => 0,
        }))
    }
}

#[test]
fn reductions_hold_computation_back_only_where_lanes_do_not_overlap() {
    let program = lowered(&gpt(2, false), &uniform(1, 2, 1, 1));
    let computes = last_backward(&program).iter();
    let computes = computes.filter(|it| matches!(it.action, Action::Kernel { .. })).count();
    let of = |cluster| run(&program, &cluster, UNFOLDED, &mut Backward(&program)).expect("it runs");
    let (overlapping, blocking) = (of(h100(2)), of(cores(2)));
    let passes = on(&overlapping, Lane::Compute);
    assert_eq!(passes.len(), 1, "one stretch without gaps");
    assert_eq!(passes[0].end, Picos(computes as u64));
    assert!(on(&blocking, Lane::Compute).len() > 1, "stretches between reductions");
    for found in [&overlapping, &blocking] {
        assert_eq!(found.timeline.tracks[0].busy(), Picos(computes as u64));
    }
    let occupied = |found: &Simulation| -> u64 {
        let track = &found.timeline.tracks[0];
        track.busy().0 + track.communicating().0
    };
    assert_eq!(blocking.step_time(), Picos(occupied(&blocking)));
    assert!(overlapping.step_time() < Picos(occupied(&overlapping)));
}

#[test]
fn gradients_are_not_overwritten_before_they_are_reduced() {
    let mut plan = uniform(1, 2, 1, 2);
    plan.sync.zero = 2;
    let program = lowered(&gpt(2, false), &plan);
    let found = run(&program, &h100(2), UNFOLDED, &mut Backward(&program)).expect("it runs");
    let mut second = on(&found, Lane::Compute).into_iter().filter(|it| it.label == "B1");
    let last = second.next_back().expect("two micro-batches go backward");
    // Every bucket is reduced after each backward pass, and the last one of the first pass is also the
    // last that the second pass writes.
    let reduced = 100 * program.classes[0].buckets.len() as u64;
    assert!(last.start > Picos(reduced), "{} is before {reduced}", last.start.0);
}

#[test]
fn a_collective_starts_with_its_latest_member() {
    let program = lowered(&gpt(2, true), &uniform(2, 2, 1, 1));
    let found = run(&program, &h100(4), UNFOLDED, &mut Backward(&program)).expect("it runs");
    // The second stage is through with its gradients first, and comes to the sum of tied weights first,
    // but it waits longest for its own replicas.
    let ends = |rank: usize, length: u64| -> Vec<Picos> {
        let intervals = found.timeline.tracks[rank].intervals.iter();
        let tied = intervals.filter(|it| it.label == "all-reduce embedding");
        let those = tied.filter(|it| it.end.since(it.start) == Picos(length));
        those.map(|it| it.end).collect()
    };
    let (first, second) = (ends(0, 100), ends(2, 10_000));
    assert!(second.len() == 1 && first.iter().all(|end| *end < second[0]));
    for rank in 0..4 {
        assert_eq!(ends(rank, 7), [second[0] + Picos(7)]);
    }
}

#[test]
fn a_lane_shows_one_thing_at_a_time() {
    let mut plan = uniform(2, 2, 2, 4);
    plan.sequence_parallel = true;
    plan.sync.zero = 2;
    let graph = gpt(4, false);
    let program = lowered(&graph, &plan);
    let found = shardloom_sim::simulate(&graph, &h100(8), &program, UNFOLDED).expect("it runs");
    for track in &found.timeline.tracks {
        for lane in [Lane::Compute, Lane::CommunicationIn, Lane::CommunicationOut] {
            let those: Vec<_> = track.intervals.iter().filter(|it| it.lane == lane).collect();
            assert!(those.iter().all(|it| it.start < it.end));
            assert!(those.windows(2).all(|pair| pair[0].end <= pair[1].start), "{lane:?}");
        }
    }
}
