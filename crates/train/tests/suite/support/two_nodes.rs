//! Runs of a small model on two nodes of a preset, in real time and by the virtual clock.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::Rank;
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::{RunClock, Trainer};

use super::{Samples, graph, trainer_with_clock};

/// The cluster's name in a plan.
pub const CLUSTER: &str = "a100-40g:2x8";

pub fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32,tied=true")
}

pub fn cluster() -> Cluster {
    Cluster::parse(CLUSTER).expect("a preset")
}

pub fn clocks() -> [RunClock; 2] {
    [RunClock::Wall, RunClock::Virtual(cluster())]
}

/// Data for [`gpt`].
pub fn data() -> Samples {
    Samples::patterned(64, 8, 32)
}

pub fn started(graph: &Graph, plan: &Plan, clock: RunClock) -> Trainer {
    trainer_with_clock(graph, plan, data(), 0.05, clock)
}

/// Trains a row of steps and returns their losses.
pub fn train(trainer: &mut Trainer, steps: u32) -> Vec<f64> {
    let steps = trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    steps.into_iter().map(|step| step.loss).collect()
}

/// All weights in the order of their names.
pub fn weights(trainer: &mut Trainer) -> Vec<f32> {
    trainer.weights().expect("weights").into_values().flatten().collect()
}

/// Checks that elements differ by less than a share of themselves, or of 1 where they are smaller.
pub fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance * expected.abs().max(1.0), "{found} for {expected}");
    }
}

/// Checks a plan's run of so many steps: its timeline by the virtual clock is the simulator's; bytes and memory are as
/// predicted to the byte, by the virtual clock and in threads, and no step asks the system for memory.
pub fn assert_runs_as_predicted(graph: &Graph, plan: &Plan, steps: u32) {
    let cluster = cluster();
    let mut virtually = started(graph, plan, RunClock::Virtual(cluster.clone()));
    let (_, executed) = virtually.train_steps_recorded(steps).expect("steps");
    let mut recorded = Recorded::new(virtually.recording().expect("the virtual clock records"));
    let options = Options { steps, folded: false };
    let simulated = run(virtually.program(), &cluster, options, &mut recorded).expect("it runs");
    assert_eq!(simulated.timeline, executed);
    let mut threads = started(graph, plan, RunClock::Wall);
    train(&mut threads, steps);
    for trainer in [&virtually, &threads] {
        let program = trainer.program();
        for rank in 0..program.ranks() {
            let (class, position) = program.locate(Rank(rank as u32));
            let sent = u64::from(steps) * program.sent_bytes(class, position);
            assert_eq!(trainer.sent_bytes_per_rank()[rank], sent, "rank {rank}");
            let peak = program.class(class).memory_use(program, position).peak_bytes;
            assert_eq!(trainer.peak_bytes_per_rank()[rank], peak, "rank {rank}");
        }
        assert_eq!(trainer.system_allocations(), 0);
    }
}
