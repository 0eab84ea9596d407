//! torchgpipe (Kim et al. 2020, "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models",
//! arXiv 2004.09910).

pub(crate) mod block_partition;

use shardloom_plan::{Recompute, ScheduleKind};

use crate::configuration::Pipelines;
use crate::cut::Cut;
use crate::method::{Family, Method, Rules};

/// GPipe's schedule with torchgpipe's block partition and its usual checkpointing, `except_last`: stages
/// are computed again from their inputs, but for the last micro-batch. Its `always` and `never` are the
/// plan's `recompute_last = true` and `recompute = "none"`.
pub(crate) const METHOD: Method = Method {
    name: "torchgpipe",
    family: Family::SynchronousPipeline,
    paper: "Kim et al. 2020, torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models, arXiv \
            2004.09910",
    about: "GPipe's order with stages cut by block partition; activations are computed again from the \
            inputs of stages, except those of the last micro-batch.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let pipelines = Pipelines {
            recompute: &[Recompute::Stage],
            recompute_last: false,
            cut: Cut::BlockPartition,
            ..Pipelines::of(ScheduleKind::Afab)
        };
        pipelines.choose(task)
    },
};
