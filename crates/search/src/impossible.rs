//! What would be right where no plan has the numbers that were asked for.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_sim::estimate::Undivided;

use crate::space::{divisors, undivided};
use crate::{Only, Request};

/// The first thing that stands against what was asked for, in words; of several that only together cannot be, what all
/// plans keep to.
pub(crate) fn rule(graph: &Graph, cluster: &Cluster, request: &Request) -> String {
    let Only { pp, dp, cp, tp, zero, microbatch, .. } = request.only;
    let (devices, batch) = (cluster.device_count(), request.global_batch as u32);
    let blocks = graph.blocks().len() as u32;
    let asked = [tp, pp, dp, cp].into_iter().flatten();
    let together = asked.fold(1_u64, |product, width| product.saturating_mul(width.into()));
    if together > u64::from(devices) {
        return format!("these are {together} devices, and there are {devices}");
    }
    for (name, widths) in [("tp", (1, tp)), ("cp", (cp.unwrap_or(1), Some(1)))] {
        let (context, Some(tensor)) = widths else { continue };
        match undivided(graph, context, tensor) {
            Some(Undivided::Dim(dim)) => {
                return format!("{name} must divide {}", graph.dim_in_words(dim));
            }
            Some(Undivided::Nothing) => return format!("{name} splits nothing of this model"),
            None => (),
        }
    }
    if let Some(pp) = pp.filter(|&pp| pp > blocks) {
        return format!(
            "{pp} stages hold at least a block each, and there are {blocks}, embedding and head included"
        );
    }
    if dp.filter(|&dp| !batch.is_multiple_of(dp)).is_some() {
        return format!("dp must divide the {batch} samples of a step");
    }
    let share = batch / dp.unwrap_or(1);
    if let Some(samples) = microbatch.filter(|&samples| !share.is_multiple_of(samples)) {
        return format!("micro-batches of {samples} must divide the {share} samples of a replica");
    }
    if dp == Some(1) && cp.unwrap_or(1) == 1 && zero.is_some_and(|zero| zero > 0) {
        return "ZeRO shares among replicas, and there is one".into();
    }
    if let (Some(pp), Some(tp)) = (pp, tp)
        && !divisors(devices / tp).any(|it| it == pp)
    {
        return format!("pp must divide the {} groups of {tp} devices", devices / tp);
    }
    "widths divide the devices, the batch and what they split".into()
}
