//! Herring (Thangakrishnan et al. 2020, "Herring: Rethinking the Parameter Server at Scale for the Cloud", SC):
//! equal ranges of a buffer of gradients, whatever parameters they are of.

use shardloom_plan::{Ranges, Share, Summation, Sync, Uniform};

use super::workers::{self, FewestServers};
use crate::choice::Task;
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// Workers that hold the weights, and servers each of which sums an equal range of every buffer of gradients.
pub(crate) const METHOD: Method = Method {
    name: "herring",
    family: Family::DataParallel,
    paper: "Thangakrishnan et al. 2020, Herring: Rethinking the Parameter Server at Scale for the Cloud, SC",
    about: "Buffers of gradients are cut into as many equal ranges as there are servers, which sum them and send \
            the sums back.",
    rules: |_| Rules::FLUSH,
    chooser,
};

/// Bytes of a buffer.
const BUFFER: usize = 25_000_000;

fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    workers::fastest(task, FewestServers::One, |servers, common| {
        let (ranges, share) = (Ranges::Equal, Share::default());
        let summation = Some(Summation { ranges, share, ..Summation::of(servers) });
        let sync = Sync { summation, bucket_bytes: BUFFER, ..common.sync };
        Uniform { sync, ..common }
    })
}
