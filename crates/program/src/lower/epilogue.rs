//! The end of a step: what is left to synchronise, the gradient norm, the update, and ZeRO-1 and -2's
//! gather of updated weights.

use shardloom_plan::Plan;

use super::buckets::Parameters;
use crate::{Action, BucketId, Group, Instruction};

/// The instructions that end a step.
pub(super) fn body(parameters: &Parameters, plan: &Plan) -> Vec<Instruction> {
    let buckets = || {
        let ids = (0..parameters.buckets.len() as u32).map(BucketId);
        ids.zip(&parameters.buckets)
    };
    let mut actions = vec![];
    for (bucket, spec) in buckets().filter(|(_, spec)| !spec.homes.is_empty()) {
        let group = Group::Homes(spec.homes.clone());
        actions.push(Action::Reduce { bucket, group, scatter: false });
    }
    if plan.clip_norm.is_some() || plan.skip_non_finite {
        actions.push(Action::Norm);
    }
    for (bucket, spec) in buckets() {
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
