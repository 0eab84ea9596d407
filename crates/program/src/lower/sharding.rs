//! Inserts into a body what sharded and replicated buckets need: gathers of weights before use and
//! releases after it (ZeRO-3), and reductions of gradients as soon as they are whole (all stages).
//!
//! Rajbhandari et al. 2020, arXiv 1910.02054, section 5.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::{BlockId, Graph};

use super::buckets::Parameters;
use crate::{Action, BucketId, Group, Instruction, Operand};

/// Actions to insert, by the instruction they go next to.
type Insertions = BTreeMap<usize, Vec<Action>>;

/// Inserts the reductions of the gradients of which `is_due` says that the body finishes them: those to
/// which nothing is added after it in the step, and those kept in shards. Whole gradients go on
/// accumulating, and what was reduced once must not be reduced again.
pub(super) fn insert_reductions(
    instructions: &mut Vec<Instruction>,
    parameters: &Parameters,
    zero: u8,
    is_due: impl Fn(BucketId) -> bool,
) {
    let mut after = Insertions::new();
    for (bucket, index) in completions(instructions, parameters) {
        if !is_due(bucket) {
            continue;
        }
        let spec = &parameters.buckets[bucket.0 as usize];
        let mut reduce = |axes: &[_], scatter| {
            if !axes.is_empty() {
                let group = Group::Mesh(axes.to_vec());
                let action = Action::Reduce { bucket, group, scatter };
                after.entry(index).or_default().push(action);
            }
        };
        reduce(&spec.partial, false);
        reduce(&spec.replicas, zero >= 1);
    }
    weave(instructions, Insertions::new(), after);
}

/// Inserts gathers of sharded weights before their uses and releases after (ZeRO-3). The weights of a
/// block are gathered when the block before begins, so that gathering overlaps with computation; at
/// most two blocks' weights are held at once.
pub(super) fn insert_gathers(
    instructions: &mut Vec<Instruction>,
    graph: &Graph,
    parameters: &Parameters,
) {
    let uses = uses(instructions, graph, parameters);
    let mut held: Vec<Held> = vec![];
    for (index, block) in uses.iter().enumerate() {
        let issue = uses[index.saturating_sub(1)].first();
        for (&bucket, &(_, last)) in &block.runs {
            // What is still held from an earlier block (tied weights) is kept and not gathered again.
            match held.iter_mut().find(|it| it.bucket == bucket && it.last >= issue) {
                Some(known) => known.last = last,
                None => held.push(Held { bucket, issue, last }),
            }
        }
    }
    let (mut before, mut after) = (Insertions::new(), Insertions::new());
    for Held { bucket, issue, last } in held {
        before.entry(issue).or_default().push(Action::Gather { bucket });
        after.entry(last).or_default().push(Action::Release { bucket });
    }
    weave(instructions, before, after);
}

/// A sharded bucket's weights from the instruction before which they are gathered to the last that
/// reads them.
struct Held {
    bucket: BucketId,
    issue: usize,
    last: usize,
}

/// The uses of sharded weights in one block: for each bucket the first and last instruction.
struct BlockUses {
    block: BlockId,
    runs: BTreeMap<BucketId, (usize, usize)>,
}

impl BlockUses {
    fn first(&self) -> usize {
        self.runs.values().map(|&(first, _)| first).min().unwrap_or(0)
    }
}

/// Uses of sharded weights, block by block in order of first use. A tied embedding is used in two
/// blocks, and not held from the first layer to the last.
fn uses(instructions: &[Instruction], graph: &Graph, parameters: &Parameters) -> Vec<BlockUses> {
    let mut uses: Vec<BlockUses> = vec![];
    for (index, instruction) in instructions.iter().enumerate() {
        let Action::Compute { op, .. } = instruction.action else { continue };
        let block = graph.op(op).block;
        for read in &instruction.reads {
            let Operand::Weight(param) = read else { continue };
            let bucket = parameters.params[param.0 as usize].bucket;
            if parameters.buckets[bucket.0 as usize].replicas.is_empty() {
                continue;
            }
            let at = uses.iter().rposition(|it| it.block == block).unwrap_or_else(|| {
                uses.push(BlockUses { block, runs: BTreeMap::new() });
                uses.len() - 1
            });
            uses[at].runs.entry(bucket).or_insert((index, index)).1 = index;
        }
    }
    uses
}

/// Puts actions next to instructions.
fn weave(instructions: &mut Vec<Instruction>, mut before: Insertions, mut after: Insertions) {
    let take = |map: &mut Insertions, index| {
        map.remove(&index).unwrap_or_default().into_iter().map(Instruction::bare)
    };
    for (index, instruction) in std::mem::take(instructions).into_iter().enumerate() {
        instructions.extend(take(&mut before, index));
        instructions.push(instruction);
        instructions.extend(take(&mut after, index));
    }
}

/// The buckets whose gradients `instructions` write.
pub(super) fn written(instructions: &[Instruction], parameters: &Parameters) -> BTreeSet<BucketId> {
    completions(instructions, parameters).into_keys().collect()
}

/// The last instruction that writes a gradient of each bucket.
fn completions(instructions: &[Instruction], parameters: &Parameters) -> BTreeMap<BucketId, usize> {
    let mut last = BTreeMap::new();
    for (index, instruction) in instructions.iter().enumerate() {
        for write in &instruction.writes {
            if let Operand::Gradient(param) = write.to {
                last.insert(parameters.params[param.0 as usize].bucket, index);
            }
        }
    }
    last
}
