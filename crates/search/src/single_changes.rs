//! The last step of a search: single changes of the plan that it has found.
//!
//! Estimates, by which candidates are chosen for simulation, may take two of them in the wrong order that are nearly as
//! fast, and they wait for the norm of all gradients. So what [`explain`](crate::explain) would tell of the answer is
//! tried before it is given: another ZeRO stage, order, recomputation or number of micro-batches, updates that are
//! validated afterwards, a communication thread where cores are free.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;

use crate::judge::unless_too_large;
use crate::{Judgement, Request, SearchError, edits, judge};

/// Micro-batches times blocks that are simulated at most; what a simulation takes is proportional to them.
const EFFORT: usize = 4_000;

/// From which saving on a plan is another one.
const LEAST_SAVING: f64 = 5e-4;

/// A plan that no single change that was tried makes faster, and how many were simulated.
pub(crate) struct Improved {
    pub plan: Plan,
    pub judgement: Judgement,
    pub simulated: usize,
}

/// Changes a single key of `plan`, again and again, to what makes a step shortest of all that the request allows and
/// that fits, as long as that is little work.
///
/// # Errors
/// If the cluster lacks a device or a rate.
pub(crate) fn improved(
    graph: &Graph,
    cluster: &Cluster,
    (plan, judgement): (Plan, Judgement),
    request: &Request,
) -> Result<Improved, SearchError> {
    let mut found = Improved { plan, judgement, simulated: 0 };
    let mut effort = 0;
    loop {
        let mut best: Option<(Plan, Judgement)> = None;
        for (_, other) in edits::changed(&found.plan, cluster) {
            if !is_allowed(&other, &found.plan, request) || !request.runs(cluster, &other) {
                continue;
            }
            effort += other.microbatches * graph.blocks().len();
            if effort > EFFORT {
                return Ok(found);
            }
            let judgement = match unless_too_large(judge(graph, cluster, &other)) {
                // The model, the batch or another key of the plan does not go with it.
                Err(SearchError::Program(_)) => continue,
                judgement => judgement?,
            };
            found.simulated += 1;
            let Some(judgement) = judgement else { continue };
            let least = best.as_ref().map_or(found.judgement.step_seconds, |it| it.1.step_seconds);
            let saves = judgement.step_seconds < least * (1.0 - LEAST_SAVING);
            if saves && judgement.fits(request.memory_share) {
                best = Some((other, judgement));
            }
        }
        let Some((plan, judgement)) = best else { return Ok(found) };
        (found.plan, found.judgement) = (plan, judgement);
    }
}

/// Whether `other`, which `plan` is but for a key, is a plan that the request asks for.
fn is_allowed(other: &Plan, plan: &Plan, request: &Request) -> bool {
    let only = &request.only;
    let keeps_recompute = other.recompute == plan.recompute || only.recompute.is_none();
    let keeps_zero = other.sync.zero == plan.sync.zero || only.zero.is_none();
    let keeps_batches = other.microbatches == plan.microbatches || only.microbatch.is_none();
    // How attention is computed is the request's, and what splits sequences the space's.
    let keeps_model = other.attention == plan.attention && other.layout == plan.layout;
    let is_searched =
        other.schedule == plan.schedule || request.schedules.contains(&other.schedule);
    let may_wait =
        other.post_validation == plan.post_validation || request.may_validate_afterwards();
    keeps_recompute && keeps_zero && keeps_batches && keeps_model && is_searched && may_wait
}
