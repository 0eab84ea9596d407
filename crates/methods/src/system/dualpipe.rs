//! DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1) and
//! DualPipeV (DeepSeek-AI 2025, the repository deepseek-ai/DualPipe; after "cut-in-half" by Qi et al. 2025).

use shardloom_plan::ScheduleKind;

use crate::choice::Task;
use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// Two pipelines in opposite directions.
pub(crate) const METHOD: Method = Method {
    name: "dualpipe",
    family: Family::BidirectionalPipeline,
    paper: "DeepSeek-AI 2024, DeepSeek-V3 Technical Report, arXiv 2412.19437",
    about: "Two pipelines in opposite directions, the forward passes of one beside the backward passes \
            of the other; parameters are held twice.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let dual = Pipelines { even: true, ..Pipelines::of(ScheduleKind::DualPipe) };
        overlapped(task, dual, |depth| Counts { multiple_of: 2, ..at_least_twice(depth) })
    },
};

/// One half of DualPipe.
pub(crate) const V: Method = Method {
    name: "dualpipev",
    family: Family::ZeroBubblePipeline,
    paper: "DeepSeek-AI 2025, repository deepseek-ai/DualPipe, after \"cut in half\" by Qi et al. 2025",
    about: "Half of DualPipe's devices with one pipeline down them and back up; parameters are held \
            once.",
    rules: |_| Rules::FLUSH,
    chooser: |task| overlapped(task, Pipelines::of(ScheduleKind::DualPipeV), at_least_twice),
};

fn at_least_twice(depth: usize) -> Counts {
    Counts { at_least: 2 * depth, ..Counts::ANY }
}

/// The fastest plan with two stages on each device, whose passes overlap.
fn overlapped(
    task: &mut Task<'_>,
    pipelines: Pipelines,
    counts: fn(usize) -> Counts,
) -> Result<Choice, MethodError> {
    let pipelines = Pipelines { chunks: &[2], tensor: true, zero: 1, counts, ..pipelines };
    pipelines.choose(task)
}
