//! torchgpipe (Kim et al. 2020, "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models",
//! arXiv 2004.09910).

use shardloom_plan::{Recompute, ScheduleKind};

use crate::configuration::Pipelines;
use crate::cut::Cut;
use crate::method::{Family, Method, Supports};

/// GPipe's schedule with torchgpipe's block partition.
///
/// Of torchgpipe's words for checkpointing, `never` and `always` are plans' `none` and `full`; its usual
/// `except_last`, which spares the last micro-batch, has no word in plans, as they recompute the same of
/// every micro-batch.
pub(crate) const METHOD: Method = Method {
    name: "torchgpipe",
    family: Family::SynchronousPipeline,
    paper: "Kim et al. 2020, torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models, arXiv \
            2004.09910",
    about: "GPipe's order with stages cut by block partition, and recomputation only where memory asks \
            for it.",
    supports: Supports::ALL,
    chooser: |task| {
        let pipelines = Pipelines {
            recompute: &[Recompute::None, Recompute::Full],
            cut: Cut::BlockPartition,
            ..Pipelines::of(ScheduleKind::Afab)
        };
        let mut choice = pipelines.choose(task)?;
        if choice.plan.recompute == Recompute::Full {
            let note =
                "torchgpipe would not recompute the last micro-batch; plans recompute all alike";
            choice.notes.push(note.into());
        }
        Ok(choice)
    },
};
