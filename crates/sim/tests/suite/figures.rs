//! What is simulated for its figures only has the figures of the whole simulation.

use crate::scenario::{gpt, h100, lowered, uniform};
use shardloom_cluster::{Cluster, Stack};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{
    Averaging, Negotiation, Precision, ScheduleKind, Servers, Staleness, Summation, Sync, Uniform,
};
use shardloom_program::Program;
use shardloom_sim::{Options, Simulation, simulate, simulate_figures};

/// All figures, of the whole simulation and of that for figures.
#[track_caller]
fn assert_same(graph: &Graph, cluster: &Cluster, program: &Program, what: &str) {
    for folded in [true, false] {
        for steps in [1, 2, 3] {
            let options = Options { steps, folded };
            let whole = simulate(graph, cluster, program, options).expect("it simulates");
            let figures = simulate_figures(graph, cluster, program, options).expect("it simulates");
            let of = |it: &Simulation| {
                let fits = it.memory_fits(program, cluster).expect("devices are known");
                let sent: Vec<u64> =
                    it.timeline.tracks.iter().map(|track| track.sent_bytes_by_all()).collect();
                (it.step_time(), it.step_ends.clone(), fits, sent, format!("{:?}", it.summary()))
            };
            assert_eq!(of(&figures), of(&whole), "{what}, {steps} steps, folded: {folded}");
            let kept = |it: &Simulation| -> usize {
                it.timeline.tracks.iter().map(|track| track.intervals.len()).sum()
            };
            assert!(kept(&figures) <= kept(&whole), "{what}");
            let has_servers = program.classes.iter().any(|class| class.place().contains("server"));
            if steps == 3 && whole.period == 1 && whole.draining == 0 {
                // Nearly all that is kept is of the last of three steps; servers may be a step behind.
                let most = if has_servers { kept(&whole) } else { kept(&whole) / 2 };
                assert!(kept(&figures) < most, "{what}");
            }
            let tracks = &figures.timeline.tracks;
            assert!(tracks.iter().all(|it| it.messages.is_empty() && it.memory.is_empty()));
        }
    }
}

#[test]
fn figures_of_every_schedule_are_those_of_the_whole_simulation() {
    let graph = gpt(14, false);
    let kinds = ScheduleKind::ALL.into_iter().filter(|&it| it != ScheduleKind::Table);
    for schedule in kinds {
        let plan = Uniform { schedule, ..uniform(2, 2, 1, 8) };
        let program = lowered(&graph, &plan);
        for stack in ["shardloom", "megatron"] {
            let cluster = h100(4).under(Stack::parse(stack).expect("a stack"));
            assert_same(&graph, &cluster, &program, schedule.name());
        }
    }
}

#[test]
fn figures_are_the_same_however_replicas_stay_equal() {
    let graph = gpt(4, true);
    let zeros = (0..=3).map(|zero| (2, Sync { zero, ..Sync::default() }));
    let negotiation = Some(Negotiation::default());
    let averaging = |averaging| Sync { averaging: Some(averaging), ..Sync::default() };
    let servers = Servers { colocated: true, ..Servers::of(0, Staleness::SYNCHRONOUS) };
    let summation = Summation { colocated: true, ..Summation::of(0) };
    let others = [
        (1, Sync { negotiation, ..Sync::default() }),
        (1, averaging(Averaging::local_sgd(3))),
        (1, averaging(Averaging::PAIRS)),
        (1, Sync { servers: Some(servers), ..Sync::default() }),
        (1, Sync { summation: Some(summation), ..Sync::default() }),
        (2, Sync { algorithm: Algorithm::BinaryTree, ..Sync::default() }),
    ];
    for (pp, sync) in zeros.chain(others) {
        let sync = Sync { bucket_bytes: 20_000, ..sync };
        // Servers have no other format.
        let precision = if sync.has_servers() { Precision::FP32 } else { Precision::MIXED };
        let plan = Uniform { sync, precision, clip_norm: None, ..uniform(pp, 2, 1, 2) };
        let program = lowered(&graph, &plan);
        for stack in ["shardloom", "nanotron"] {
            let cluster = h100(8).under(Stack::parse(stack).expect("a stack"));
            assert_same(&graph, &cluster, &program, &format!("{sync:?} under {stack}"));
        }
    }
}
