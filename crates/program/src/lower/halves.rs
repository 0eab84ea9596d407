//! A backward pass in two halves: input gradients, which the stage before waits for, and weight gradients,
//! which nobody waits for (Qi et al. 2024, arXiv 2401.10241, section 2).

use std::collections::BTreeSet;

use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, OpId, OpKind};

use crate::{Action, Instruction, Operand, SlotId};

/// Whether a pass of an operator belongs to the second half: the weight gradients of matrix products.
/// Those of norms and biases are small and read what the first half goes on to change.
pub(super) fn is_put_off(graph: &Graph, op: OpId, pass: Pass) -> bool {
    pass == Pass::Weight && matches!(graph.op(op).kind, OpKind::Contract { .. })
}

/// Deals the instructions of a backward pass to its halves. The second half also gets what only it
/// reads: changes of layout, and what is computed again.
pub(super) fn split(
    graph: &Graph,
    instructions: Vec<Instruction>,
) -> (Vec<Instruction>, Vec<Instruction>) {
    let mut read_by_first: BTreeSet<SlotId> = BTreeSet::new();
    let mut read_by_second: BTreeSet<SlotId> = BTreeSet::new();
    let (mut first, mut second) = (vec![], vec![]);
    for instruction in instructions.into_iter().rev() {
        let follows = match instruction.action {
            Action::Compute { op, pass: Pass::Weight, .. } => is_put_off(graph, op, Pass::Weight),
            Action::Compute { pass: Pass::Forward, .. }
            | Action::Redistribute { .. }
            | Action::Load { .. } => {
                let mut written = slots(instruction.writes.iter().map(|write| write.to)).peekable();
                let accumulates = instruction.writes.iter().any(|write| write.accumulate);
                let read = |slot: &SlotId| read_by_second.contains(slot);
                !accumulates
                    && written.clone().any(|slot| read(&slot))
                    && written.peek().is_some()
                    && written.all(|slot| !read_by_first.contains(&slot))
            }
            _ => false,
        };
        let (half, read) = match follows {
            true => (&mut second, &mut read_by_second),
            false => (&mut first, &mut read_by_first),
        };
        read.extend(slots(instruction.reads.iter().copied()));
        half.push(instruction);
    }
    first.reverse();
    second.reverse();
    (first, second)
}

fn slots(operands: impl Iterator<Item = Operand> + Clone) -> impl Iterator<Item = SlotId> + Clone {
    operands.filter_map(|operand| match operand {
        Operand::Slot(slot) => Some(slot),
        Operand::Weight(_) | Operand::Gradient(_) | Operand::Norm => None,
    })
}
