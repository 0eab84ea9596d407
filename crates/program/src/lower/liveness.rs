//! Marks after which instruction each slot is dead.

use std::collections::{BTreeMap, BTreeSet};

use crate::class::Slot;
use crate::{Instruction, Operand, SlotId};

/// Has every slot that `instructions` touch freed by the last instruction that touches it, except those
/// in `kept`.
pub(super) fn mark(instructions: &mut [Instruction], slots: &[Slot], kept: &BTreeSet<SlotId>) {
    let mut last: BTreeMap<SlotId, usize> = BTreeMap::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let writes = instruction.writes.iter().map(|write| &write.to);
        for operand in instruction.reads.iter().chain(writes) {
            if let Operand::Slot(slot) = operand {
                debug_assert!((slot.0 as usize) < slots.len());
                last.insert(*slot, index);
            }
        }
    }
    for (slot, index) in last {
        if !kept.contains(&slot) {
            instructions[index].frees.push(slot);
        }
    }
}
