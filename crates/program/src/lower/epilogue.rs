//! The end of a step: what is left to synchronise, the gradient norm, and the update.

use shardloom_collectives::Algorithm;
use shardloom_plan::Axis;

use super::buckets::Parameters;
use super::owners::Early;
use crate::class::Bucket;
use crate::sync::{Gradients, SUM};
use crate::{Action, BucketId, Group, Instruction, Mode, TensorId, View};

/// The instructions that end a step in which what is in `early` was reduced over its classes before; `norm`
/// are those that find the norm of its gradients.
pub(super) fn body(
    parameters: &Parameters<'_>,
    early: &Early,
    norm: Vec<Instruction>,
) -> Vec<Instruction> {
    let settled = buckets(parameters).filter(|&(bucket, _)| parameters.settles_late(bucket));
    let settled = settled.flat_map(|(bucket, _)| parameters.before_update(bucket));
    let late = buckets(parameters).filter(|&(bucket, _)| !early.contains(bucket));
    let reductions = late.flat_map(|(bucket, _)| parameters.over_classes(bucket));
    settled.chain(reductions).chain(norm).chain(updates(parameters)).collect()
}

/// The norm of the gradients of all ranks of a group, which wait for each other, where the plan looks at
/// it.
pub(crate) fn norm(parameters: &Parameters<'_>, group: Group) -> Vec<Instruction> {
    let Some(norm) = parameters.norm else { return vec![] };
    // Of what servers hold, they find it.
    let own = || buckets(parameters).filter(|(_, bucket)| !bucket.is_looked_up());
    let gradients = own().filter_map(|(_, bucket)| Some(bucket.held.replicated.gradients?.reduced));
    let rows = own().filter_map(|(_, bucket)| rows(bucket));
    let own = Instruction::new(Action::Norm, gradients.chain(rows), [View::whole(norm)]);
    if group == Group::Mesh(vec![]) {
        return vec![own];
    }
    let sum = Action::Collective { kind: SUM, group, algorithm: Algorithm::Direct };
    vec![own, Instruction::new(sum, [View::whole(norm)], [View::whole(norm)])]
}

/// All buckets with their ids.
pub(crate) fn buckets<'a>(
    parameters: &'a Parameters<'_>,
) -> impl Iterator<Item = (BucketId, &'a Bucket)> {
    (0u32..).map(BucketId).zip(&parameters.buckets)
}

/// What an update of a bucket changes: its weights, if no master weights stand for them, and what is kept
/// besides.
pub(crate) fn changed<'a>(
    parameters: &Parameters<'_>,
    bucket: &'a Bucket,
) -> impl Iterator<Item = View> + 'a {
    let weights = match parameters.master(&bucket.held) {
        Some(_) => None,
        None => Some(bucket.held.replicated.updated),
    };
    weights.into_iter().chain(bucket.held.state.iter().map(|&it| View::whole(it)))
}

/// What makes the weights that operators read of the master weights, if there are such.
pub(crate) fn cast(parameters: &Parameters<'_>, bucket: &Bucket) -> Option<Instruction> {
    let master = View::whole(parameters.master(&bucket.held)?);
    Some(Instruction::new(Action::Cast, [master], [bucket.held.replicated.updated]))
}

/// The update of all buckets.
pub(crate) fn updates(parameters: &Parameters<'_>) -> Vec<Instruction> {
    buckets(parameters).flat_map(|(id, _)| update(parameters, id)).collect()
}

/// The update of one.
pub(crate) fn update(parameters: &Parameters<'_>, id: BucketId) -> Vec<Instruction> {
    let mut instructions = vec![];
    let bucket = &parameters.buckets[id.0 as usize];
    let Some(Gradients { reduced: gradients, .. }) = bucket.held.replicated.gradients else {
        return vec![];
    };
    let norm = parameters.norm.map(View::whole).into_iter().chain(rows(bucket));
    let mut sums: Option<TensorId> = None;
    for (round, &statistics) in bucket.held.statistics.iter().enumerate() {
        let weights = changed(parameters, bucket).next().expect("an update changes weights");
        let reads = [gradients, weights].into_iter();
        let reads = reads.chain(norm.clone()).chain(sums.map(View::whole));
        let writes = [View::whole(statistics)].into_iter();
        let writes = writes.chain(bucket.held.state.iter().map(|&it| View::whole(it)));
        let own = Instruction::new(Action::Statistics { round }, reads, writes);
        let action = Action::Collective {
            kind: SUM,
            group: Group::Mesh(updaters(parameters, bucket)),
            algorithm: Algorithm::Direct,
        };
        let all = View::whole(statistics);
        instructions.push(own.freeing(sums.replace(statistics)));
        instructions.push(Instruction::new(action, [all], [all]));
    }
    let reads = [gradients].into_iter().chain(norm).chain(sums.map(View::whole));
    let update = Instruction::new(Action::Optimizer, reads, changed(parameters, bucket));
    instructions.push(update.with_mode(Mode::Add).freeing(sums));
    instructions.extend(cast(parameters, bucket));
    instructions.extend(parameters.after_update(id));
    instructions
}

/// Copies of what the updates of all buckets are about to change.
pub(super) fn backups(parameters: &Parameters<'_>) -> Vec<Instruction> {
    let copy = |(_, bucket): (BucketId, &Bucket)| {
        let copies = bucket.held.backups.iter().map(|&it| View::whole(it));
        Instruction::new(Action::Copy, parameters.backed_up(bucket), copies)
    };
    let trained = buckets(parameters).filter(|(_, bucket)| !bucket.is_frozen);
    trained.map(copy).collect()
}

/// Copies of what was kept back to where it was.
pub(super) fn restores(parameters: &Parameters<'_>) -> Vec<Instruction> {
    let backed_up = buckets(parameters).filter(|(_, bucket)| !bucket.held.backups.is_empty());
    let copy = |(_, bucket): (BucketId, &Bucket)| {
        let copies = bucket.held.backups.iter().map(|&it| View::whole(it));
        Instruction::new(Action::Copy, copies, parameters.backed_up(bucket))
    };
    backed_up.map(copy).collect()
}

/// Frees those copies, and some other tensors.
pub(super) fn release(parameters: &Parameters<'_>, others: &[TensorId]) -> Instruction {
    let copies = parameters.buckets.iter().flat_map(|bucket| &bucket.held.backups).chain(others);
    Instruction::new(Action::Free, [], []).freeing(copies.copied())
}

/// The mesh axes along which ranks update different parts of a bucket's parameters.
fn updaters(parameters: &Parameters<'_>, bucket: &Bucket) -> Vec<Axis> {
    let mut axes = bucket.splits.clone();
    if parameters.updates_shares(bucket) {
        axes.extend(&bucket.shards);
        parameters.mesh.sort(&mut axes);
    }
    axes
}

/// The rows that a bucket's reduced gradients are of, where they are not of all.
fn rows(bucket: &Bucket) -> Option<View> {
    bucket.held.replicated.rows().map(|rows| View::whole(rows.reduced))
}
