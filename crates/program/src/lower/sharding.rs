//! Inserts into a body what keeps replicas equal: what makes weights ready before their uses, and
//! reductions of gradients as soon as they are whole.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::{BlockId, Graph};

use super::buckets::Parameters;
use crate::sync::UseBy;
use crate::{Action, BucketId, Content, Instruction, TensorId};

/// Instructions to insert, by the instruction they go next to.
type Insertions = BTreeMap<usize, Vec<Instruction>>;

/// Inserts the reductions of the gradients of which `is_due` says that the body finishes them: those to
/// which nothing is added after it in the step, of which `is_last` knows, and those of which each pass is
/// reduced. Whole gradients go on accumulating, and what was reduced once must not be reduced again.
pub(super) fn insert_reductions(
    instructions: &mut Vec<Instruction>,
    parameters: &Parameters<'_>,
    is_due: impl Fn(BucketId) -> bool,
    is_last: impl Fn(BucketId) -> bool,
) {
    let mut after = Insertions::new();
    for (bucket, index) in completions(instructions, parameters) {
        if !is_due(bucket) {
            continue;
        }
        let after = after.entry(index).or_default();
        after.extend(parameters.over_partial(bucket));
        after.extend(parameters.after_gradient(bucket));
        if is_last(bucket) {
            after.extend(parameters.after_last_gradient(bucket));
        }
        if !parameters.settles_late(bucket) {
            after.extend(parameters.before_update(bucket));
        }
    }
    weave(instructions, Insertions::new(), after);
}

/// Inserts what makes weights ready for use, where they are not there all the time, and frees them after
/// their last use. The weights of a block are gathered when the block before begins, so that gathering
/// overlaps with computation; at most two blocks' weights are held at once.
pub(super) fn insert_gathers(
    instructions: &mut Vec<Instruction>,
    graph: &Graph,
    parameters: &Parameters<'_>,
    by: UseBy,
) {
    let uses = uses(instructions, graph, parameters);
    let mut held: Vec<Gathered> = vec![];
    for (index, block) in uses.iter().enumerate() {
        let issue = uses[index.saturating_sub(1)].first();
        for (&bucket, &(first, last)) in &block.runs {
            // What is still held from an earlier block (tied weights) is kept and not gathered again.
            match held.iter_mut().find(|it| it.bucket == bucket && it.last >= issue) {
                Some(known) => known.last = last,
                None => held.push(Gathered { bucket, issue, first, last }),
            }
        }
    }
    let mut before = Insertions::new();
    for &Gathered { bucket, issue, .. } in &held {
        before.entry(issue).or_default().extend(parameters.before_use(bucket, by));
    }
    // Computation waits for the weights there in any case, and for none before.
    for Gathered { bucket, first, last, .. } in held {
        before.entry(first).or_default().extend(parameters.at_first_use(bucket, by));
        let used = parameters.buckets[bucket.0 as usize].held.replicated.used;
        instructions[last].frees.push(used);
    }
    weave(instructions, before, Insertions::new());
}

/// Gathered weights, from the instruction before which they are gathered to the first and the last that read them.
struct Gathered {
    bucket: BucketId,
    issue: usize,
    first: usize,
    last: usize,
}

/// The uses of gathered weights in one block: for each bucket the first and last instruction.
struct BlockUses {
    block: BlockId,
    runs: BTreeMap<BucketId, (usize, usize)>,
}

impl BlockUses {
    fn first(&self) -> usize {
        self.runs.values().map(|&(first, _)| first).min().unwrap_or(0)
    }
}

/// Uses of weights that are not there all the time, block by block in order of first use. A tied embedding
/// is used in two blocks, and not held from the first layer to the last.
fn uses(
    instructions: &[Instruction],
    graph: &Graph,
    parameters: &Parameters<'_>,
) -> Vec<BlockUses> {
    let passing: BTreeSet<TensorId> = parameters
        .buckets
        .iter()
        .map(|bucket| &bucket.held.replicated)
        .filter(|held| held.used != held.weights)
        .map(|held| held.used)
        .collect();
    let mut uses: Vec<BlockUses> = vec![];
    for (index, instruction) in instructions.iter().enumerate() {
        let Action::Kernel { op, .. } = instruction.action else { continue };
        let block = graph.op(op).block;
        for read in instruction.reads.iter().filter(|read| passing.contains(&read.tensor)) {
            let bucket = parameters.bucket_of(*read).expect("weights lie in buckets");
            let at = uses.iter().rposition(|it| it.block == block).unwrap_or_else(|| {
                uses.push(BlockUses { block, runs: BTreeMap::new() });
                uses.len() - 1
            });
            uses[at].runs.entry(bucket).or_insert((index, index)).1 = index;
        }
    }
    uses
}

/// Puts instructions next to others.
fn weave(instructions: &mut Vec<Instruction>, mut before: Insertions, mut after: Insertions) {
    for (index, instruction) in std::mem::take(instructions).into_iter().enumerate() {
        instructions.extend(before.remove(&index).unwrap_or_default());
        instructions.push(instruction);
        instructions.extend(after.remove(&index).unwrap_or_default());
    }
}

/// The buckets whose gradients `instructions` write.
pub(super) fn written(
    instructions: &[Instruction],
    parameters: &Parameters<'_>,
) -> BTreeSet<BucketId> {
    completions(instructions, parameters).into_keys().collect()
}

/// The last operator that writes a gradient of each bucket.
fn completions(
    instructions: &[Instruction],
    parameters: &Parameters<'_>,
) -> BTreeMap<BucketId, usize> {
    let mut last = BTreeMap::new();
    for (index, instruction) in instructions.iter().enumerate() {
        for write in &instruction.writes {
            let tensor = parameters.tensors.get(write.to.tensor.0 as usize);
            let content = tensor.map(|tensor| (tensor.content, tensor.bucket));
            if let Some((Content::Gradient, Some(bucket))) = content {
                last.insert(bucket, index);
            }
        }
    }
    last
}
