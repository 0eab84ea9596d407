//! The ways of training a pipeline, or replicas, that are compared.

use shardloom_plan::{Averaging, Corrections, Prediction, ScheduleKind, Sync, Weights};

/// A way of training: an order of passes, which weights they run with, and how many micro-batches a step
/// has.
pub struct Method {
    pub name: &'static str,
    pub schedule: ScheduleKind,
    pub weights: Weights,
    pub microbatches: usize,
    /// Samples of a step, if not the task's: learning rate and momentum are then scaled from the task's, and
    /// there are as many more steps.
    pub batch: Option<usize>,
    /// What replicas do, if there are several and no pipeline.
    pub sync: Option<Sync>,
}

/// PipeMare's share of the mean velocity that is left after the delay (Yang et al. 2021, section 3.2).
const DISCREPANCY: f64 = 0.135;

/// All methods, for a run of so many steps. PipeMare's rates reach the full one after a quarter of them,
/// and its synchronous steps are the first tenth.
pub fn all(steps: u64) -> Vec<Method> {
    let flush = || Method {
        name: "1F1B with flush",
        schedule: ScheduleKind::OneForwardOneBackward,
        weights: Weights::Flush,
        microbatches: 4,
        batch: None,
        sync: None,
    };
    let kept = |name, weights, microbatches| Method {
        name,
        schedule: ScheduleKind::PipeDream,
        weights,
        microbatches,
        batch: None,
        sync: None,
    };
    let newest = |name, corrections, microbatches| Method {
        name,
        schedule: ScheduleKind::PipeMare,
        weights: Weights::Newest { corrections },
        microbatches,
        batch: None,
        sync: None,
    };
    let none = Corrections::default();
    let spike = Corrections { spike: Some(1.0), ..none };
    let velocity = Corrections { prediction: Some(Prediction::Velocity), ..none };
    let weights = Corrections { prediction: Some(Prediction::Weights), ..none };
    let t1 = Corrections { anneal_steps: Some(steps / 4), ..none };
    let t2 = Corrections { discrepancy: Some(DISCREPANCY), ..t1 };
    let t3 = Corrections { synchronous_steps: steps / 10, ..t2 };
    let single = |method: Method| Method { microbatches: 1, batch: Some(1), ..method };
    vec![
        flush(),
        kept("PipeDream, weight stashing", Weights::Stash, 4),
        kept("PipeDream, vertical sync", Weights::VerticalSync, 4),
        kept("PipeDream-2BW", Weights::DoubleBuffer, 4),
        newest("PipeMare without techniques", none, 4),
        newest("PipeMare T1", t1, 4),
        newest("PipeMare T1 + T2", t2, 4),
        newest("PipeMare T1 + T2 + T3", t3, 4),
        kept("PipeDream, weight stashing", Weights::Stash, 1),
        kept("PipeDream, vertical sync", Weights::VerticalSync, 1),
        newest("pipelined backpropagation", none, 1),
        newest("+ spike compensation", spike, 1),
        newest("+ prediction by velocity", velocity, 1),
        newest("+ prediction by weights", weights, 1),
        newest("+ both, by velocity", Corrections { spike: Some(1.0), ..velocity }, 1),
        newest("+ both, by weights", Corrections { spike: Some(1.0), ..weights }, 1),
        newest("PipeMare T1", t1, 1),
        newest("PipeMare T1 + T2", t2, 1),
        newest("PipeMare T1 + T2 + T3", t3, 1),
        single(flush()),
        single(newest("pipelined backpropagation", none, 1)),
        single(newest("+ spike compensation", spike, 1)),
        single(newest("+ prediction by velocity", velocity, 1)),
        single(newest("+ both, by velocity", Corrections { spike: Some(1.0), ..velocity }, 1)),
    ]
}

/// Replicas that are kept equal, by compressed gradients or as they are, or that are averaged.
pub fn of_replicas() -> Vec<Method> {
    let method = |name, sync| Method {
        name,
        schedule: ScheduleKind::OneForwardOneBackward,
        weights: Weights::Flush,
        microbatches: 1,
        batch: None,
        sync: Some(sync),
    };
    let compressed = |name: &'static str| {
        let compression = name.parse().expect("a compression");
        method(name, Sync { compression, ..Sync::default() })
    };
    let averaged =
        |name, averaging| method(name, Sync { averaging: Some(averaging), ..Sync::default() });
    let mut all: Vec<Method> = [
        "none",
        "fp16",
        "bf16",
        "bf16-feedback",
        "one-bit",
        "top-k:10",
        "top-k:100",
        "power-sgd:1",
        "power-sgd:4",
    ]
    .map(compressed)
    .into();
    all.push(averaged("local SGD, every 4 steps", Averaging::local_sgd(4)));
    all.push(averaged("local SGD, every 16 steps", Averaging::local_sgd(16)));
    all.push(averaged("synchronous model averaging", Averaging::SYNCHRONOUS));
    // Of the 400 steps of the text.
    let adaptive = Averaging { until: Some(200), ..Averaging::SYNCHRONOUS };
    all.push(averaged("adaptive SGD, averaged for 200 steps", adaptive));
    all.push(averaged("pair averaging", Averaging::PAIRS));
    all
}
