//! Who runs the plan that is found, where that is not this program.

use std::collections::BTreeMap;
use std::fmt;

use shardloom_cluster::Cluster;
use shardloom_plan::{Plan, Uniform};

/// Somebody who does not run every plan. A search leaves out of its space what they do not run, so that it finds the
/// fastest plan of those that they do.
pub trait Runner: fmt::Debug + Send + Sync {
    /// What they are called.
    fn name(&self) -> &str;

    /// Whether they run on the first so many devices of a cluster, with nothing on the others.
    fn runs_on(&self, cluster: &Cluster, devices: u32) -> bool;

    /// Whether they run a plan of these numbers with `chunks` stages on each mesh, wherever these are cut, or where
    /// [they cut them](Runner::own_cuts) if they do that themselves.
    fn runs_numbers(&self, numbers: &Uniform, chunks: usize) -> bool;

    /// Why they do not run a plan of such numbers, if they say so.
    fn why_not(&self, _numbers: &Uniform, _chunks: usize) -> Option<String> {
        None
    }

    /// Whether they run a plan on devices of a cluster.
    fn runs(&self, cluster: &Cluster, plan: &Plan) -> bool;

    /// Whether they reduce gradients in buckets as large as a plan that they run says.
    fn takes_bucket_size(&self, cluster: &Cluster, plan: &Plan) -> bool;

    /// Where they cut a model themselves, by the number of stages: the first block of each, then the number of blocks.
    /// None if they take any cut.
    fn own_cuts(&self) -> Option<&BTreeMap<usize, Vec<usize>>>;
}

impl PartialEq for dyn Runner {
    fn eq(&self, other: &dyn Runner) -> bool {
        self.name() == other.name()
    }
}
