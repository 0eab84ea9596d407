//! Hanayo (Liu et al. 2023, "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model
//! Training Efficiency", SC, arXiv 2308.15762).

use shardloom_plan::ScheduleKind;

use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Rules};

/// One or two waves.
pub(crate) const METHOD: Method = Method {
    name: "hanayo",
    family: Family::SynchronousPipeline,
    paper: "Liu et al. 2023, Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model \
            Training Efficiency, SC, arXiv 2308.15762",
    about: "One pipeline that runs down the devices and back up in waves, so that devices are fed from \
            both sides without holding parameters twice.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let pipelines = Pipelines {
            chunks: &[2, 4],
            counts: |depth| Counts { at_least: depth, ..Counts::ANY },
            timed: true,
            ..Pipelines::of(ScheduleKind::Hanayo)
        };
        pipelines.choose(task)
    },
};
