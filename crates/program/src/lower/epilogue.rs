//! The end of a step: what is left to synchronise, the gradient norm, the update, and ZeRO-1 and -2's
//! gather of updated weights.

use shardloom_plan::Plan;

use super::buckets::Parameters;
use super::homes::Early;
use crate::{Action, BucketId, Group, Instruction};

/// The instructions that end a step in which what is in `early` was reduced over its homes before.
pub(super) fn body(parameters: &Parameters, plan: &Plan, early: &Early) -> Vec<Instruction> {
    let buckets = || {
        let ids = (0..parameters.buckets.len() as u32).map(BucketId);
        ids.zip(&parameters.buckets)
    };
    let mut actions = vec![];
    let late = |&(bucket, _): &(BucketId, _)| !early.contains(bucket);
    actions.extend(buckets().filter(late).filter_map(|(bucket, _)| over_homes(parameters, bucket)));
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

/// The reduction of a bucket over its homes, if it has several.
pub(super) fn over_homes(parameters: &Parameters, bucket: BucketId) -> Option<Action> {
    let homes = &parameters.buckets[bucket.0 as usize].homes;
    let group = || Group::Homes(homes.clone());
    (!homes.is_empty()).then(|| Action::Reduce { bucket, group: group(), scatter: false })
}
