//! GPipe (Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline
//! Parallelism", NeurIPS, arXiv 1811.06965).

use shardloom_plan::{Recompute, ScheduleKind};

use crate::configuration::Pipelines;
use crate::cut::Cut;
use crate::method::{Family, Method, Supports};

/// All forwards, then all backwards, with recomputation.
///
/// The paper recomputes from the inputs of stages; plans recompute from the inputs of blocks, which keeps
/// more and never holds more than one block's activations beside.
pub(crate) const METHOD: Method = Method {
    name: "gpipe",
    family: Family::SynchronousPipeline,
    paper: "Huang et al. 2019, GPipe: Efficient Training of Giant Neural Networks using Pipeline \
            Parallelism, NeurIPS, arXiv 1811.06965",
    about: "All forward passes of a step, then all backward passes; activations are computed again; \
            stages are cut for the least variance of their times.",
    supports: Supports::ALL,
    chooser: |task| {
        let pipelines = Pipelines {
            recompute: &[Recompute::Full],
            cut: Cut::LeastVariance,
            ..Pipelines::of(ScheduleKind::Afab)
        };
        pipelines.choose(task)
    },
};
