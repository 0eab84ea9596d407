//! Which published steps a plan's step is like.

use shardloom_cluster::{Cluster, DeviceId, StepKind};
use shardloom_plan::Plan;

/// What a step of `plan` on `cluster` is, for the residuals of a software stack
/// ([`Stack::residuals_of`](shardloom_cluster::Stack::residuals_of)). Devices that the cluster lacks do not
/// count.
pub fn step_kind(plan: &Plan, cluster: &Cluster) -> StepKind {
    let devices = plan.devices();
    let mut nodes = devices.iter().filter_map(|&device| cluster.node_of(DeviceId(device)).ok());
    let first = nodes.next();
    StepKind {
        several_nodes: nodes.any(|node| Some(node) != first),
        fp8_products: plan.precision.fp8_products,
    }
}
