//! GPipe (Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline
//! Parallelism", NeurIPS, arXiv 1811.06965).

pub(crate) mod least_variance;

use shardloom_plan::{Optimizer, Recompute, ScheduleKind};

use crate::configuration::Pipelines;
use crate::cut::Cut;
use crate::method::{Family, Method, Rules};

/// All forwards, then all backwards, recomputing from the inputs of stages.
pub(crate) const METHOD: Method = Method {
    name: "gpipe",
    family: Family::SynchronousPipeline,
    paper: "Huang et al. 2019, GPipe: Efficient Training of Giant Neural Networks using Pipeline \
            Parallelism, NeurIPS, arXiv 1811.06965",
    about: "All forward passes of a step, then all backward passes; activations are computed again from \
            the inputs of stages; stages are cut for the least variance of their times.",
    rules,
    chooser: |task| {
        let pipelines = Pipelines {
            recompute: &[RECOMPUTE],
            cut: Cut::LeastVariance,
            ..Pipelines::of(ScheduleKind::Afab)
        };
        pipelines.choose(task)
    },
};

/// What the paper calls re-materialization.
const RECOMPUTE: Recompute = Recompute::Stage;

fn rules(_: &Optimizer) -> Rules {
    Rules { recompute: Some(RECOMPUTE), ..Rules::FLUSH }
}
