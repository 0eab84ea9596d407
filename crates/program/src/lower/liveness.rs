//! Marks after which instruction each value is dead.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Instruction, Tensor, TensorId};

/// Has every tensor of a micro-batch that `instructions` touch freed by the last instruction that touches
/// it, except those in `kept`.
pub(super) fn mark(
    instructions: &mut [Instruction],
    tensors: &[Tensor],
    kept: &BTreeSet<TensorId>,
) {
    let mut last: BTreeMap<TensorId, usize> = BTreeMap::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let touched = instruction.operands().map(|view| view.tensor);
        last.extend(touched.filter(|&it| of_microbatch(tensors, it)).map(|it| (it, index)));
    }
    for (tensor, index) in last {
        if !kept.contains(&tensor) {
            instructions[index].frees.push(tensor);
        }
    }
}

/// Whether a tensor has a copy for each micro-batch.
pub(super) fn of_microbatch(tensors: &[Tensor], id: TensorId) -> bool {
    tensors[id.0 as usize].is_of_microbatch()
}
