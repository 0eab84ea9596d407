//! The end of a step: what is left to synchronise, the gradient norm, the update, and ZeRO-1 and -2's
//! gather of updated weights.

use shardloom_plan::Plan;

use super::buckets::Parameters;
use super::homes::Early;
use crate::class::Bucket;
use crate::{Action, BucketId, Group, Instruction};

/// The instructions that end a step in which what is in `early` was reduced over its homes before; `norm`
/// are those that find the norm of its gradients.
pub(super) fn body(
    parameters: &Parameters,
    plan: &Plan,
    early: &Early,
    norm: Vec<Instruction>,
) -> Vec<Instruction> {
    let late = buckets(parameters).filter(|&(bucket, _)| !early.contains(bucket));
    let reductions = late.filter_map(|(bucket, _)| over_homes(parameters, bucket));
    let reductions = reductions.map(Instruction::bare);
    reductions.chain(norm).chain(updates(parameters, plan)).collect()
}

/// The norm of all gradients, for which all ranks wait, where the plan asks for it.
pub(super) fn awaited_norm(plan: &Plan) -> Vec<Instruction> {
    let norm = plan.looks_at_norm().then_some(Action::Norm { group: Group::World });
    norm.into_iter().map(Instruction::bare).collect()
}

/// All buckets with their ids.
pub(super) fn buckets(parameters: &Parameters) -> impl Iterator<Item = (BucketId, &Bucket)> {
    (0u32..).map(BucketId).zip(&parameters.buckets)
}

/// The update of all buckets.
pub(super) fn updates(parameters: &Parameters, plan: &Plan) -> Vec<Instruction> {
    let mut actions = vec![];
    for (bucket, spec) in buckets(parameters) {
        let sharded = plan.sync.zero >= 1 && !spec.replicas.is_empty();
        let mut owners = spec.splits.clone();
        if sharded {
            owners.extend(&spec.replicas);
            owners.sort();
        }
        for round in 0..plan.optimizer.statistics_rounds() {
            let owners = Group::Mesh(owners.clone());
            actions.push(Action::Statistics { bucket, round, owners });
        }
        actions.push(Action::Update { bucket });
        if sharded && plan.sync.zero < 3 {
            actions.push(Action::Gather { bucket });
        }
    }
    actions.into_iter().map(Instruction::bare).collect()
}

/// The reduction of a bucket over its homes, if it has several.
pub(super) fn over_homes(parameters: &Parameters, bucket: BucketId) -> Option<Action> {
    let homes = &parameters.buckets[bucket.0 as usize].homes;
    let group = || Group::Homes(homes.clone());
    (!homes.is_empty()).then(|| Action::Reduce { bucket, group: group(), scatter: false })
}
