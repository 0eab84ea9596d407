//! Zero bubble pipeline parallelism (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", ICLR, arXiv
//! 2401.10241): ZB-H1, ZB-H2, ZB-1p, ZB-2p and ZB-V.

use shardloom_plan::ScheduleKind;

use crate::choice::Task;
use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

const PAPER: &str = "Qi et al. 2024, Zero Bubble Pipeline Parallelism, ICLR, arXiv 2401.10241";

/// ZB-H1.
pub(crate) const H1: Method = Method {
    name: "zb-h1",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "1F1B with backward passes split, so that weight gradients fill gaps; in the memory of 1F1B.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::ZeroBubbleH1, &[1]),
};

/// ZB-H2.
pub(crate) const H2: Method = Method {
    name: "zb-h2",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "ZB-H1 with twice the forward passes ahead, which leaves no bubble for nearly twice the \
            activations.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::ZeroBubbleH2, &[1]),
};

/// ZB-1p.
pub(crate) const ONE_P: Method = Method {
    name: "zb-1p",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "ZB-H1 with as many micro-batches ahead as fit into the memory of 1F1B, of which input \
            gradients already free a part.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::ZeroBubbleOneP, &[1]),
};

/// ZB-2p.
pub(crate) const TWO_P: Method = Method {
    name: "zb-2p",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "ZB-1p in twice the memory of 1F1B, which leaves hardly a bubble even where passes take \
            different times.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::ZeroBubbleTwoP, &[1]),
};

/// ZB-V.
pub(crate) const V: Method = Method {
    name: "zb-v",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "Split backward passes on a pipeline down the devices and back up: no bubble in the memory \
            of 1F1B.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::ZeroBubbleV, &[2]),
};

/// The fastest plan with weight gradients that fill the gaps which the passes' simulated times leave, and
/// with updates that are validated afterwards.
pub(super) fn filled(
    task: &mut Task<'_>,
    schedule: ScheduleKind,
    chunks: &'static [usize],
) -> Result<Choice, MethodError> {
    let pipelines = Pipelines {
        chunks,
        tensor: true,
        zero: 1,
        counts: |depth| Counts { at_least: depth, ..Counts::ANY },
        timed: true,
        post_validation: true,
        ..Pipelines::of(schedule)
    };
    pipelines.choose(task)
}
