//! Horovod (Sergeev & Del Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv
//! 1802.05799): replicas that agree while running on the order of their reductions, fused in a buffer.

use shardloom_plan::{Negotiation, Sync, Uniform};

use super::replicas;
use crate::method::{Family, Method, Rules};

/// Data parallelism with negotiated and fused reductions, with the defaults of its version 0.21.
pub(crate) const METHOD: Method = Method {
    name: "horovod",
    family: Family::DataParallel,
    paper: "Sergeev & Del Balso 2018, Horovod: fast and easy distributed deep learning in TensorFlow, \
            arXiv 1802.05799",
    about: "Replicas tell the first of them which gradients are ready; those that are on all are reduced in the \
            order that it answers, several as one.",
    rules: |_| Rules::FLUSH,
    chooser: |task| {
        replicas::with_largest_microbatches(task, |common| {
            let sync = Sync { negotiation: Some(Negotiation::default()), ..common.sync };
            Uniform { sync, ..common }
        })
    },
};
