//! PipeDream-2BW (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", ICML, arXiv
//! 2006.09503).

use shardloom_plan::{ScheduleKind, Weights};
use shardloom_search::partition::Updates;

use super::equal_stages::planned;
use crate::method::{Family, Method};

/// 1F1B without flush and with two versions of the weights.
pub(crate) const METHOD: Method = Method {
    name: "pipedream-2bw",
    family: Family::AsynchronousPipeline,
    paper: "Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, ICML, arXiv \
            2006.09503",
    about: "1F1B without flush: all micro-batches of a step run with the weights before the newest, so \
            that two versions suffice; equal stages from the paper's planner.",
    chooser: |task| {
        let (schedule, weights) = (ScheduleKind::PipeDream, Weights::DoubleBuffer);
        let choice = planned(task, schedule, weights, Updates::DoubleBuffered)?;
        Ok(choice.without_flush(task))
    },
};
