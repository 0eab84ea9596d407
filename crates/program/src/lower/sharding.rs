//! Inserts into a body what sharded and replicated buckets need: gathers of weights before use and
//! releases after it (ZeRO-3), and reductions of gradients as soon as they are whole (all stages).
//!
//! Rajbhandari et al. 2020, arXiv 1910.02054, section 5.

use std::collections::BTreeMap;

use shardloom_graph::{BlockId, Graph};

use super::buckets::Parameters;
use crate::{Action, BucketId, Group, Instruction, Operand};

/// Whether a body reduces the gradients it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reductions {
    /// Not yet: more micro-batches follow.
    None,
    /// Yes.
    Every,
}

/// Rewrites `instructions`.
pub(super) fn insert(
    instructions: &mut Vec<Instruction>,
    graph: &Graph,
    parameters: &Parameters,
    zero: u8,
    reductions: Reductions,
) {
    let mut before: BTreeMap<usize, Vec<Action>> = BTreeMap::new();
    let mut after: BTreeMap<usize, Vec<Action>> = BTreeMap::new();
    if zero >= 3 {
        let uses = uses(instructions, graph, parameters);
        for (index, &(bucket, first, last)) in uses.iter().enumerate() {
            // Each gather is issued one use ahead, so that it overlaps with the computation before.
            let issue = if index == 0 { first } else { uses[index - 1].1 };
            before.entry(issue).or_default().push(Action::Gather { bucket });
            after.entry(last).or_default().push(Action::Release { bucket });
        }
    }
    if reductions == Reductions::Every {
        for (bucket, last) in completions(instructions, parameters) {
            let spec = &parameters.buckets[bucket.0 as usize];
            let mut reduce = |axes: &[_], scatter| {
                if !axes.is_empty() {
                    let group = Group::Mesh(axes.to_vec());
                    let action = Action::Reduce { bucket, group, scatter };
                    after.entry(last).or_default().push(action);
                }
            };
            reduce(&spec.partial, false);
            reduce(&spec.replicas, zero >= 1);
        }
    }
    let old = std::mem::take(instructions);
    for (index, instruction) in old.into_iter().enumerate() {
        let take = |map: &mut BTreeMap<usize, Vec<Action>>| {
            map.remove(&index).unwrap_or_default().into_iter().map(Instruction::bare)
        };
        instructions.extend(take(&mut before));
        instructions.push(instruction);
        instructions.extend(take(&mut after));
    }
}

/// Runs of uses of each sharded bucket's weights, in order of first use: the bucket, and the first and
/// last instruction. Uses in different blocks are different runs: a tied embedding is not held from the
/// first layer to the last.
fn uses(
    instructions: &[Instruction],
    graph: &Graph,
    parameters: &Parameters,
) -> Vec<(BucketId, usize, usize)> {
    let mut runs: BTreeMap<(BucketId, Option<BlockId>), (usize, usize)> = BTreeMap::new();
    for (index, instruction) in instructions.iter().enumerate() {
        for read in &instruction.reads {
            let Operand::Weight(param) = read else { continue };
            let bucket = parameters.params[param.0 as usize].bucket;
            if parameters.buckets[bucket.0 as usize].replicas.is_empty() {
                continue;
            }
            let block = match instruction.action {
                Action::Compute { op, .. } => Some(graph.op(op).block),
                _ => None,
            };
            let run = runs.entry((bucket, block)).or_insert((index, index));
            run.1 = index;
        }
    }
    let mut uses: Vec<_> =
        runs.into_iter().map(|((bucket, _), (first, last))| (bucket, first, last)).collect();
    uses.sort_by_key(|&(bucket, first, _)| (first, bucket));
    uses
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
