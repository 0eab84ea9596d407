//! The size of buckets with which a plan's gradients are reduced in the shortest steps.

use std::collections::BTreeSet;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::quantity::percent;

use crate::{Faster, Judgement, Request, SearchError, judge};

/// The share of a step that another size must save to be taken.
const WORTH: f64 = 0.005;

/// By what sizes that are tried one after the other differ.
const FACTOR: usize = 4;

/// The smallest size that is tried; each bucket costs a device a collective's latency.
const LEAST_BYTES: usize = 1 << 20;

/// Whether `sync.bucket_bytes` of `plan` is for a search to choose: gradients are reduced in buckets of that size,
/// whatever it is weights are the same, and the software has none of its own.
fn is_free(graph: &Graph, cluster: &Cluster, plan: &Plan, request: &Request) -> bool {
    let sync = &plan.sync;
    // What is left out of a bucket depends on what is in it.
    let compresses = plan.parameters.iter().any(|group| !group.sync(*sync).compression.is_none());
    let has_own = sync.has_servers()
        || sync.negotiation.is_some()
        || sync.averaging.is_some()
        || !sync.compression.is_none()
        || compresses
        || sync.zero >= 3
        || sync.bucket_bytes != request.bucket_bytes
        || cluster.stack().plan_defaults.bucket_bytes.is_some()
        || !is_taken(cluster, plan, request);
    let axes = plan.replica_axes(graph);
    let has_replicas =
        plan.stages().any(|(_, stage)| axes.iter().any(|&axis| stage.mesh.width(axis) > 1));
    has_replicas && !has_own
}

/// Whether who is to run the plan reduces gradients in buckets of its size, as this program does.
fn is_taken(cluster: &Cluster, plan: &Plan, request: &Request) -> bool {
    request.runner.as_ref().is_none_or(|runner| runner.takes_bucket_size(cluster, plan))
}

/// So many micro-batches for each mesh of devices fill a pipeline and drain it.
const FILLED: usize = 2;

/// `plan` with no more micro-batches than fill its pipeline and drain it. Where gradients are reduced once in a step,
/// what buckets of another size save of its steps they save of those of `plan`.
fn shortened(plan: &Plan) -> Plan {
    if plan.sync.zero > 1 || !plan.flushes() {
        return plan.clone();
    }
    let meshes = plan.stages().map(|(_, stage)| &stage.devices.0).collect::<BTreeSet<_>>().len();
    let microbatches = plan.microbatches.min(FILLED * meshes);
    let global_batch = plan.global_batch / plan.microbatches * microbatches;
    Plan { microbatches, global_batch, ..plan.clone() }
}

/// `plan` with the size of buckets with which a step takes least of those that fit into the request's share of
/// memory: four times the size again and again, or a quarter of what it holds, as long as that saves a two-hundredth of
/// the step.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub(crate) fn with_fastest_size(
    graph: &Graph,
    cluster: &Cluster,
    plan: Plan,
    judgement: Judgement,
    request: &Request,
) -> Result<Faster, SearchError> {
    let before = plan.sync.bucket_bytes;
    let mut found = Faster::unchanged(plan, judgement);
    if !is_free(graph, cluster, &found.plan, request) {
        return Ok(found);
    }
    let judged = |plan: &Plan| match judge(graph, cluster, plan) {
        // Another key of the plan does not go with it.
        Err(SearchError::Program(_)) => Ok(None),
        judgement => judgement.map(Some),
    };
    let short = shortened(&found.plan);
    let as_before = if short == found.plan { None } else { judged(&short)? };
    let is_whole = as_before.is_none();
    let (mut short, mut best) = match as_before {
        Some(judgement) => (short, judgement),
        None => (found.plan.clone(), found.judgement.clone()),
    };
    let all = graph.parameter_count() as usize * short.precision.gradients.bytes();
    let smaller = |size: usize| {
        let filled = size.min(all);
        (filled > LEAST_BYTES).then_some((filled / FACTOR).max(LEAST_BYTES))
    };
    let larger = |size: usize| (size < all).then_some(size.saturating_mul(FACTOR));
    let ways: [&dyn Fn(usize) -> Option<usize>; 2] = [&larger, &smaller];
    let least_saving = WORTH * found.judgement.step_seconds;
    for next in ways {
        while let Some(size) = next(short.sync.bucket_bytes) {
            let mut other = short.clone();
            other.sync.bucket_bytes = size;
            if !is_taken(cluster, &other, request) {
                break;
            }
            let Some(judgement) = judged(&other)? else { break };
            found.simulated += 1;
            let is_worth = judgement.step_seconds < best.step_seconds - least_saving;
            if !is_worth || !judgement.fits(request.memory_share) {
                break;
            }
            (short, best) = (other, judgement);
        }
        if short.sync.bucket_bytes != before {
            break;
        }
    }
    if short.sync.bucket_bytes == before {
        return Ok(found);
    }
    let before_seconds = found.judgement.step_seconds;
    let mut plan = found.plan.clone();
    plan.sync.bucket_bytes = short.sync.bucket_bytes;
    let judgement = if is_whole { Some(best) } else { judged(&plan)? };
    found.simulated += usize::from(!is_whole);
    if let Some(judgement) = judgement
        && judgement.step_seconds < before_seconds
        && judgement.fits(request.memory_share)
    {
        (found.plan, found.judgement) = (plan, judgement);
    }
    let after = found.plan.sync.bucket_bytes;
    if after != before {
        found.notes.push(format!(
            "sync.bucket_bytes is {after}: with {before} a step would take {} more",
            percent(before_seconds / found.judgement.step_seconds - 1.0)
        ));
    }
    Ok(found)
}
