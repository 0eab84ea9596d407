//! PipeDream-Flush (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", ICML, arXiv
//! 2006.09503, section 3.3).

use shardloom_plan::{ScheduleKind, Weights};

use super::pipedream_2bw::planned;
use super::pipedream_2bw::planner::Updates;
use crate::method::{Family, Method, Rules};

/// 1F1B with a flush.
pub(crate) const METHOD: Method = Method {
    name: "pipedream-flush",
    family: Family::SynchronousPipeline,
    paper: "Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, ICML, arXiv \
            2006.09503",
    about: "One forward and one backward pass in turn, so that no stage keeps more than one \
            micro-batch more than stages follow it; equal stages from the paper's planner.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        let schedule = ScheduleKind::OneForwardOneBackward;
        planned(task, schedule, Weights::Flush, Updates::Flush)
    },
};
