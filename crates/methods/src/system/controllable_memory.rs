//! Schedules from building blocks (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory",
//! NeurIPS, arXiv 2405.15362): V-Half and V-Min.

use shardloom_plan::ScheduleKind;

use super::zero_bubble::filled;
use crate::method::{Family, Method, Rules};

const PAPER: &str =
    "Qi et al. 2024, Pipeline Parallelism with Controllable Memory, NeurIPS, arXiv 2405.15362";

/// V-Half.
pub(crate) const V_HALF: Method = Method {
    name: "v-half",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "Down the devices and back up with half the activations of 1F1B.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::VHalf, &[2]),
};

/// V-Min.
pub(crate) const V_MIN: Method = Method {
    name: "v-min",
    family: Family::ZeroBubblePipeline,
    paper: PAPER,
    about: "Down the devices and back up with a third of the activations of 1F1B, the least there is.",
    rules: |_| Rules::FLUSH,
    chooser: |task| filled(task, ScheduleKind::VMin, &[2]),
};
