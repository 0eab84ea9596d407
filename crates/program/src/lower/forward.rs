//! A stage's forward pass.

use std::collections::BTreeMap;

use shardloom_graph::ValueId;

use super::boundary::Way;
use super::emitter::{Emitter, Form, write};
use super::stage::Context;
use crate::{Action, Instruction, Layout, ProgramError, Shape, Tensor, TensorId, View};

/// Values that the backward pass reads, each in a layout in which the forward pass keeps it, with the tensor
/// to keep it in.
pub(super) type Kept = BTreeMap<(ValueId, Layout), TensorId>;

/// The instructions of a forward pass that leaves `kept` behind.
pub(super) fn body(
    context: &Context<'_>,
    tensors: &mut Vec<Tensor>,
    kept: &Kept,
) -> Result<Vec<Instruction>, ProgramError> {
    let known = tensors.len();
    let mut emitter = Emitter::new(context, tensors);
    emit(&mut emitter)?;
    let forms = std::mem::take(&mut emitter.forms);
    let mut instructions = emitter.instructions;
    rename(&mut instructions, &mut tensors[known..], &forms, kept);
    Ok(instructions)
}

/// The layouts in which the forward pass has each value at some time, in order.
pub(super) fn forms(
    context: &Context<'_>,
    tensors: &mut Vec<Tensor>,
) -> Result<BTreeMap<ValueId, Vec<Form>>, ProgramError> {
    let known = tensors.len();
    let mut emitter = Emitter::new(context, tensors);
    emit(&mut emitter)?;
    let forms = emitter.forms;
    tensors.truncate(known);
    Ok(forms)
}

fn emit(emitter: &mut Emitter<'_>) -> Result<(), ProgramError> {
    let context = emitter.context;
    for (id, transfer) in context.boundaries.into(context.stage) {
        let tensor = emitter.value(transfer.value, &transfer.received, "");
        match transfer.way {
            Way::Messages { forward, .. } => {
                emitter.push(Action::Receive { route: forward }, vec![], vec![write(tensor)]);
            }
            Way::Stays => {
                let waiting = View::whole(context.handovers[&id].value);
                emitter.push(Action::Copy, vec![waiting], vec![write(tensor)]);
            }
        }
        emitter.add_form(transfer.value, transfer.received.clone(), View::whole(tensor));
    }
    for &op in &context.model.ops {
        emitter.forward(op, false)?;
    }
    for (id, transfer) in context.boundaries.out_of(context.stage) {
        let operand = emitter.obtain(transfer.value, &transfer.handed)?;
        let operand = operand.expect("the stage produced what it hands over");
        match transfer.way {
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
        emitter.push(Action::Report, vec![operand], vec![]);
    }
    Ok(())
}

/// Replaces the tensors that the forward pass made up for kept values by those the backward pass reads, in
/// instructions and in the shapes of the other tensors that it made.
fn rename(
    instructions: &mut [Instruction],
    made: &mut [Tensor],
    forms: &BTreeMap<ValueId, Vec<Form>>,
    kept: &Kept,
) {
    let mut names: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for ((value, layout), tensor) in kept {
        let form = forms[value].iter().find(|form| form.layout == *layout);
        let form = form.expect("kept layouts are chosen among the forward pass's forms");
        names.insert(form.operand.tensor, *tensor);
    }
    for tensor in made {
        if let Shape::AtMost { counts, .. } = &mut tensor.shape {
            counts.tensor = *names.get(&counts.tensor).unwrap_or(&counts.tensor);
        }
    }
    for instruction in instructions {
        for read in &mut instruction.reads {
            read.tensor = *names.get(&read.tensor).unwrap_or(&read.tensor);
        }
        for write in &mut instruction.writes {
            let to = &mut write.to.tensor;
            *to = *names.get(to).unwrap_or(to);
        }
    }
}
