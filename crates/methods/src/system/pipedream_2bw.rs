//! PipeDream-2BW (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", ICML, arXiv
//! 2006.09503).

use shardloom_plan::{Optimizer, ScheduleKind, Weights};
use shardloom_search::partition::Updates;

use super::equal_stages::planned;
use crate::method::{Family, Method, Rules};

/// 1F1B without flush and with two versions of the weights.
pub(crate) const METHOD: Method = Method {
    name: "pipedream-2bw",
    family: Family::AsynchronousPipeline,
    paper: "Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, ICML, arXiv \
            2006.09503",
    about: "1F1B without flush: all micro-batches of a step run with the weights before the newest, so \
            that two versions suffice; equal stages from the paper's planner.",
    rules,
    chooser: |task| {
        let weights = rules(&task.request.optimizer).weights;
        let choice = planned(task, ScheduleKind::PipeDream, weights, Updates::DoubleBuffered)?;
        Ok(choice.without_flush(task))
    },
};

fn rules(_: &Optimizer) -> Rules {
    Rules { weights: Weights::DoubleBuffer, ..Rules::FLUSH }
}
