//! Reductions beside backward passes, where ranks that compute and communicate on the same cores have a thread
//! for collectives.

use crate::scenario::fixed::Fixed;
use crate::scenario::{cores, gpt, h100, uniform};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Communication, Plan, Precision, Sync, Uniform};
use shardloom_program::timeline::{Activity, Interval, Lane, Picos, Track};
use shardloom_program::{Program, lower};
use shardloom_sim::{Options, Simulation, run, simulate};

const OPTIONS: Options = Options { steps: 1, folded: false };

fn lowered(graph: &Graph, uniform: &Uniform, communication: Communication) -> Program {
    let plan = Uniform { precision: Precision::FP32, ..uniform.clone() };
    let plan = Plan { communication, ..plan.plan(graph, "gpt", "cluster") };
    lower(graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

fn simulated(graph: &Graph, cluster: &Cluster, program: &Program) -> Simulation {
    simulate(graph, cluster, program, OPTIONS).unwrap_or_else(|error| panic!("{error}"))
}

/// How long a rank computes backward while it takes part in a collective.
fn beside(track: &Track) -> Picos {
    let of = |lane: Lane, activity: Activity| {
        track.intervals.iter().filter(move |it| (it.lane, it.activity) == (lane, activity))
    };
    let shared = |one: &Interval, other: &Interval| {
        one.end.min(other.end).0.saturating_sub(one.start.max(other.start).0)
    };
    let all = of(Lane::Compute, Activity::Backward).flat_map(|pass| {
        of(Lane::CommunicationIn, Activity::Collective).map(move |it| shared(pass, it))
    });
    Picos(all.sum())
}

#[test]
fn reductions_run_beside_backward_passes_with_a_thread_and_never_without() {
    let graph = gpt(6, false);
    for zero in 0..4 {
        let sync = Sync { zero, ..uniform(1, 2, 1, 1).sync };
        let uniform = Uniform { sync, ..uniform(1, 2, 1, 2) };
        let in_line = lowered(&graph, &uniform, Communication::InLine);
        let program = lowered(&graph, &uniform, Communication::Thread);
        let in_line = simulated(&graph, &cores(2), &in_line);
        let found = simulated(&graph, &cores(2), &program);
        for track in &in_line.timeline.tracks {
            assert_eq!(beside(track), Picos::ZERO, "ZeRO {zero}");
        }
        for track in &found.timeline.tracks {
            assert!(beside(track) > Picos::ZERO, "ZeRO {zero}");
        }
        assert!(found.step_time() < in_line.step_time(), "ZeRO {zero}");
    }
}

#[test]
fn a_thread_runs_one_collective_at_a_time() {
    let graph = gpt(6, false);
    let sync = Sync { zero: 2, ..uniform(1, 2, 2, 1).sync };
    let program = lowered(&graph, &Uniform { sync, ..uniform(1, 2, 2, 2) }, Communication::Thread);
    let mut longest = Picos::ZERO;
    for track in &simulated(&graph, &cores(4), &program).timeline.tracks {
        let mut collectives: Vec<(Picos, Picos)> = vec![];
        for it in track.intervals.iter().filter(|it| it.activity == Activity::Collective) {
            collectives.push((it.start, it.end));
        }
        collectives.sort_unstable();
        assert!(collectives.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{}", track.place);
        longest = longest.max(beside(track));
    }
    assert!(longest > Picos::ZERO);
}

/// A step of one micro-batch on two replicas that computes backward for 100 at once and then reduces several
/// buckets: one after the other, whoever runs them.
#[test]
fn what_nothing_computes_beside_takes_as_long_as_in_line() {
    let graph = gpt(2, false);
    let uniform = uniform(1, 2, 1, 1);
    let [in_line, thread] = [Communication::InLine, Communication::Thread].map(|communication| {
        let program = lowered(&graph, &uniform, communication);
        let mut fixed = Fixed { reduce: 10, norm: 3, ..Fixed::passes(&program, 50, 100) };
        let found = run(&program, &cores(2), OPTIONS, &mut fixed).expect("it runs");
        found.timeline.makespan()
    });
    assert_eq!(thread, in_line);
    assert!(in_line > Picos(150 + 3 + 10), "several buckets: {in_line:?}");
}

#[test]
fn where_lanes_overlap_the_time_is_the_same() {
    let graph = gpt(6, false);
    for zero in [0, 1] {
        let sync = Sync { zero, ..uniform(1, 2, 1, 1).sync };
        let uniform = Uniform { sync, ..uniform(1, 2, 1, 2) };
        let [in_line, thread] =
            [Communication::InLine, Communication::Thread].map(|communication| {
                let program = lowered(&graph, &uniform, communication);
                simulated(&graph, &h100(2), &program).step_time()
            });
        assert_eq!(thread, in_line, "ZeRO {zero}");
    }
}

/// What collectives touch that are under way is there until they are waited for, at the latest at the end of
/// the step.
#[test]
fn a_step_ends_with_the_memory_that_it_began_with() {
    let graph = gpt(6, false);
    for zero in 0..4 {
        let sync = Sync { zero, ..uniform(1, 2, 1, 1).sync };
        let uniform = Uniform { sync, ..uniform(1, 2, 1, 2) };
        let program = lowered(&graph, &uniform, Communication::Thread);
        let class = &program.classes[0];
        let always = class.persistent_bytes(0).total();
        let options = Options { steps: 3, folded: false };
        let found = simulate(&graph, &cores(2), &program, options).expect("it runs");
        for (track, ends) in found.timeline.tracks.iter().zip(&found.step_ends) {
            let least = track.memory.iter().map(|&(_, bytes)| bytes).min();
            assert_eq!(least, Some(always), "ZeRO {zero}");
            for end in ends {
                // The next step may begin at once.
                let next = track.memory.iter().map(|(time, _)| time).skip(1).chain([&Picos::MAX]);
                let mut at_end = track.memory.iter().zip(next);
                let at_end = at_end.any(|(it, next)| it.0 <= *end && end <= next && it.1 == always);
                assert!(at_end, "ZeRO {zero}");
                let mut both = track.intervals.iter().filter(|it| it.start < *end && it.end > *end);
                assert_eq!(both.next(), None, "ZeRO {zero}: it belongs to two steps");
            }
            let peak = class.memory_use(&program, 0).peak_bytes;
            assert_eq!(track.peak_bytes, peak, "ZeRO {zero}");
        }
    }
}
