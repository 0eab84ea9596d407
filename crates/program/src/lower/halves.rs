//! A backward pass in two halves: input gradients, which the stage before waits for, and weight gradients,
//! which nobody waits for (Qi et al. 2024, arXiv 2401.10241, section 2).

use std::collections::BTreeSet;

use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, OpId};

use crate::{Action, Instruction, Mode, TensorId};

/// Whether a pass of an operator belongs to the second half: the weight gradients of matrix products.
/// Those of norms and biases are small and read what the first half goes on to change.
pub(super) fn is_put_off(graph: &Graph, op: OpId, pass: Pass) -> bool {
    pass == Pass::Weight && graph.op(op).kind.is_product()
}

/// Deals the instructions of a backward pass to its halves. The second half also gets what only it
/// reads: changes of layout, and what is computed again.
pub(super) fn split(
    graph: &Graph,
    instructions: Vec<Instruction>,
) -> (Vec<Instruction>, Vec<Instruction>) {
    let mut read_by_first: BTreeSet<TensorId> = BTreeSet::new();
    let mut read_by_second: BTreeSet<TensorId> = BTreeSet::new();
    let (mut first, mut second) = (vec![], vec![]);
    for instruction in instructions.into_iter().rev() {
        let follows = match instruction.action {
            Action::Kernel { op, pass: Pass::Weight, .. } => is_put_off(graph, op, Pass::Weight),
            Action::Kernel { pass: Pass::Forward, .. }
            | Action::Slice { .. }
            | Action::Collective { .. }
            | Action::Load { .. } => {
                let mut written = instruction.writes.iter().map(|write| write.to.tensor);
                let accumulates = instruction.writes.iter().any(|write| write.mode != Mode::Set);
                !accumulates
                    && written.clone().any(|tensor| read_by_second.contains(&tensor))
                    && written.all(|tensor| !read_by_first.contains(&tensor))
            }
            _ => false,
        };
        let (half, read) = match follows {
            true => (&mut second, &mut read_by_second),
            false => (&mut first, &mut read_by_first),
        };
        read.extend(instruction.reads.iter().map(|read| read.tensor));
        half.push(instruction);
    }
    first.reverse();
    second.reverse();
    (first, second)
}
