//! Which published steps a plan's step is like.

use shardloom_cluster::{Cluster, DeviceId, StepKind};
use shardloom_plan::Plan;

/// What a step of `plan` on `cluster` is, for the residuals of a software stack
/// ([`Stack::residuals_of`](shardloom_cluster::Stack::residuals_of)). Devices that the cluster lacks do not
/// count.
pub fn step_kind(plan: &Plan, cluster: &Cluster) -> StepKind {
    let devices = || plan.devices().into_iter().map(DeviceId);
    let mut nodes = devices().filter_map(|device| cluster.node_of(device).ok());
    let first = nodes.next();
    let kinds = devices().filter_map(|device| cluster.kind_of(device).ok());
    StepKind {
        several_nodes: nodes.any(|node| Some(node) != first),
        devices: kinds.map(|kind| kind.name.clone()).collect(),
    }
}
