//! A stage's forward pass.

use std::collections::BTreeMap;

use shardloom_graph::ValueId;

use super::boundary::Way;
use super::emitter::{Emitter, Form, write};
use super::stage::Context;
use crate::class::Slot;
use crate::{Action, Instruction, Layout, Operand, ProgramError, SlotId};

/// Values that the backward pass reads, each in the one layout in which the forward pass keeps it, with
/// the slot to keep it in.
pub(super) type Kept = BTreeMap<ValueId, (Layout, SlotId)>;

/// The instructions of a forward pass that leaves `kept` behind.
pub(super) fn body(
    context: &Context<'_>,
    slots: &mut Vec<Slot>,
    kept: &Kept,
) -> Result<Vec<Instruction>, ProgramError> {
    let mut emitter = Emitter::new(context, slots);
    emit(&mut emitter)?;
    let forms = std::mem::take(&mut emitter.forms);
    let mut instructions = emitter.instructions;
    rename(&mut instructions, &forms, kept);
    Ok(instructions)
}

/// The layouts in which the forward pass has each value at some time, in order.
pub(super) fn forms(context: &Context<'_>) -> Result<BTreeMap<ValueId, Vec<Form>>, ProgramError> {
    let mut slots = vec![];
    let mut emitter = Emitter::new(context, &mut slots);
    emit(&mut emitter)?;
    Ok(emitter.forms)
}

fn emit(emitter: &mut Emitter<'_>) -> Result<(), ProgramError> {
    let context = emitter.context;
    for (id, crossing) in context.boundaries.into(context.stage) {
        let slot = emitter.slot(crossing.value, &crossing.received, "");
        match crossing.way {
            Way::Messages { forward, .. } => {
                emitter.push(Action::Receive { route: forward }, vec![], vec![write(slot)]);
            }
            Way::Stays => {
                let waiting = Operand::Slot(context.handovers[&id].value);
                emitter.push(Action::Copy, vec![waiting], vec![write(slot)]);
            }
        }
        emitter.add_form(crossing.value, crossing.received.clone(), Operand::Slot(slot));
    }
    for &op in &context.model.ops {
        emitter.forward(op, false)?;
    }
    for (id, crossing) in context.boundaries.out_of(context.stage) {
        let operand = emitter.obtain(crossing.value, &crossing.handed)?;
        let operand = operand.expect("the stage produced what it hands over");
        match crossing.way {
            Way::Messages { forward, .. } => {
                emitter.push(Action::Send { route: forward }, vec![operand], vec![]);
            }
            Way::Stays => {
                let waiting = write(context.handovers[&id].value);
                emitter.push(Action::Copy, vec![operand], vec![waiting]);
            }
        }
    }
    let loss = context.graph.loss();
    if let Some(form) = emitter.forms.get(&loss).and_then(|forms| forms.first()) {
        let operand = form.operand;
        emitter.push(Action::Loss, vec![operand], vec![]);
    }
    Ok(())
}

/// Replaces the slots that the forward pass made up for kept values by those the backward pass reads.
fn rename(instructions: &mut [Instruction], forms: &BTreeMap<ValueId, Vec<Form>>, kept: &Kept) {
    let mut names: BTreeMap<Operand, Operand> = BTreeMap::new();
    for (value, (layout, slot)) in kept {
        let form = forms[value].iter().find(|form| form.layout == *layout);
        let form = form.expect("kept layouts are chosen among the forward pass's forms");
        names.insert(form.operand, Operand::Slot(*slot));
    }
    for instruction in instructions {
        for read in &mut instruction.reads {
            *read = *names.get(read).unwrap_or(read);
        }
        for write in &mut instruction.writes {
            write.to = *names.get(&write.to).unwrap_or(&write.to);
        }
    }
}
