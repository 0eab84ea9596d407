//! DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1).

use shardloom_plan::ScheduleKind;

use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Supports};

/// Two pipelines in opposite directions.
pub(crate) const METHOD: Method = Method {
    name: "dualpipe",
    family: Family::BidirectionalPipeline,
    paper: "DeepSeek-AI 2024, DeepSeek-V3 Technical Report, arXiv 2412.19437",
    about: "Two pipelines in opposite directions, the forward passes of one beside the backward passes \
            of the other; parameters are held twice.",
    supports: Supports::ALL,
    chooser: |task| {
        let pipelines = Pipelines {
            chunks: &[2],
            tensor: true,
            zero: 1,
            counts: |depth| Counts { at_least: 2 * depth, multiple_of: 2, single: false },
            even: true,
            ..Pipelines::of(ScheduleKind::DualPipe)
        };
        pipelines.choose(task)
    },
};
