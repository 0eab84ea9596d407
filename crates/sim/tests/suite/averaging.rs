//! Averages of replicas in simulated time: what a step takes on average, and what it sends.

use crate::scenario::{gpt, h100, uniform};
use shardloom_graph::Graph;
use shardloom_plan::{Averaging, Mesh, Plan, Sync, Uniform};
use shardloom_program::timeline::Picos;
use shardloom_program::{ClassId, Program, lower};
use shardloom_sim::{Options, Simulation, simulate};

const REPLICAS: u32 = 4;

fn plan(graph: &Graph, averaging: Option<Averaging>) -> Plan {
    let common = uniform(1, 1, 1, 1);
    let uniform = Uniform {
        mesh: Mesh::of(REPLICAS, 1, 1),
        global_batch: REPLICAS as usize,
        clip_norm: None,
        sync: Sync { averaging, ..common.sync },
        ..common
    };
    uniform.plan(graph, "gpt", "cluster")
}

fn simulated(averaging: Option<Averaging>, folded: bool) -> (Program, Simulation) {
    let graph = gpt(2, false);
    let plan = plan(&graph, averaging);
    let program = lower(&graph, &plan, plan.device_count()).expect("a program");
    let options = Options { steps: 2, folded };
    let found = simulate(&graph, &h100(REPLICAS as usize), &program, options).expect("it runs");
    (program, found)
}

#[test]
fn a_step_takes_and_sends_the_mean_over_steps_with_and_without_an_average() {
    for folded in [true, false] {
        let local = |every| simulated(Some(Averaging::local_sgd(every)), folded);
        let (always, with) = local(1);
        let bytes = always.sent_bytes(ClassId(0), 0);
        assert!(bytes > 0);
        let seconds = |found: &Simulation| found.summary().step_seconds;
        // Steps that do not average take the time between the ends of the first.
        let (_, sixth) = local(6);
        let ends = &sixth.step_ends[0];
        let without = ends[1].since(ends[0]).seconds();
        assert!(without < seconds(&with));
        for every in [2, 3, 6] {
            let (program, found) = local(every);
            assert_eq!(program.sent_bytes(ClassId(0), 0), bytes, "in a step that averages");
            let expected = (seconds(&with) + f64::from(every - 1) * without) / f64::from(every);
            let apart = (seconds(&found) - expected).abs() / expected;
            assert!(apart < 1e-6, "{} and {expected} with {every}", seconds(&found));
            let summary = found.summary();
            for rank in &summary.ranks {
                assert_eq!(rank.sent_bytes, bytes / u64::from(every));
                let covered = rank.busy_seconds + rank.idle_seconds + rank.communication_seconds;
                assert!(covered >= 0.999 * summary.step_seconds);
                let class = &program.classes[0];
                assert_eq!(rank.peak_bytes, class.memory_use(&program, 0).peak_bytes);
            }
            // By hand, over the last steps of which one averages.
            for (track, (rank, ends)) in
                found.timeline.tracks.iter().zip(summary.ranks.iter().zip(&found.step_ends))
            {
                let last = ends.len() - 1;
                let period = || ends[last - every as usize]..ends[last];
                let count = |of_period: usize| of_period as f64 / f64::from(every);
                assert_eq!(rank.waits, count(track.waits_in(period(), |_| true)));
                let seconds = |of_period: Picos| of_period.seconds() / f64::from(every);
                let near =
                    |found: f64, wanted: f64| (found - wanted).abs() <= 1e-9 * summary.step_seconds;
                assert!(near(rank.busy_seconds, seconds(track.busy_in(period()))));
                let communicating = seconds(track.communicating_in(period()));
                assert!(near(rank.communication_seconds, communicating));
                let covered = seconds(track.covered_in(period(), |_| true));
                assert!(near(rank.idle_seconds, summary.step_seconds - covered));
            }
            let shares = found.shares().parts().iter().map(|(_, share)| share).sum::<f64>();
            assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        }
    }
}

#[test]
fn averaging_every_step_sends_what_reduced_gradients_do() {
    let (plain, _) = simulated(None, true);
    for averaging in [Averaging::local_sgd(1), Averaging::SYNCHRONOUS] {
        let (averaged, found) = simulated(Some(averaging), true);
        // Weights are in half as many bytes as gradients, or as many.
        let [one, other] = [&plain, &averaged].map(|it| it.sent_bytes(ClassId(0), 0));
        assert!(one == other || one == 2 * other || 2 * one == other, "{one} and {other}");
        assert_eq!(found.summary().ranks[0].sent_bytes, other);
    }
}
