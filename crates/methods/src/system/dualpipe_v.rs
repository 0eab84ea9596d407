//! DualPipeV (DeepSeek-AI 2025, the repository deepseek-ai/DualPipe; after "cut-in-half" by Qi et al. 2025).

use shardloom_plan::ScheduleKind;

use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Supports};

/// One half of DualPipe.
pub(crate) const METHOD: Method = Method {
    name: "dualpipev",
    family: Family::ZeroBubblePipeline,
    paper: "DeepSeek-AI 2025, repository deepseek-ai/DualPipe, after \"cut in half\" by Qi et al. 2025",
    about: "Half of DualPipe's devices with one pipeline down them and back up; parameters are held \
            once.",
    supports: Supports::ALL,
    chooser: |task| {
        let pipelines = Pipelines {
            chunks: &[2],
            tensor: true,
            zero: 1,
            counts: |depth| Counts { at_least: 2 * depth, ..Counts::ANY },
            ..Pipelines::of(ScheduleKind::DualPipeV)
        };
        pipelines.choose(task)
    },
};
