//! Emits instructions while tracking in which layouts each value is at hand.

use std::collections::BTreeMap;

use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, ValueId};

use super::stage::Context;
use crate::class::Slot;
use crate::{Action, Instruction, Layout, Operand, ProgramError, SlotId, Write, redistribution};

/// A value in one layout.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub layout: Layout,
    pub operand: Operand,
}

/// The instructions of one body so far.
pub(super) struct Emitter<'a> {
    pub context: &'a Context<'a>,
    pub slots: &'a mut Vec<Slot>,
    pub instructions: Vec<Instruction>,
    /// The forms of each value that exist at this point.
    pub forms: BTreeMap<ValueId, Vec<Form>>,
}

impl<'a> Emitter<'a> {
    pub fn new(context: &'a Context<'a>, slots: &'a mut Vec<Slot>) -> Emitter<'a> {
        Emitter { context, slots, instructions: vec![], forms: BTreeMap::new() }
    }

    /// A new slot for `value` in `layout`; `suffix` tells it from others of the same value.
    pub fn slot(&mut self, value: ValueId, layout: &Layout, suffix: &str) -> SlotId {
        let context = self.context;
        let node = context.graph.value(value);
        let shape = layout.local_shape(&context.shape(value), &context.model.mesh);
        let real_bytes = context.plan.precision.compute.bytes();
        let bytes = shape.iter().product::<usize>() * node.dtype.bytes(real_bytes);
        let name = format!("{}{suffix}", node.name);
        self.slots.push(Slot { name, shape, dtype: node.dtype, bytes });
        SlotId(self.slots.len() as u32 - 1)
    }

    pub fn push(&mut self, action: Action, reads: Vec<Operand>, writes: Vec<Write>) {
        self.instructions.push(Instruction { action, reads, writes, frees: vec![] });
    }

    pub fn add_form(&mut self, value: ValueId, layout: Layout, operand: Operand) {
        self.forms.entry(value).or_default().push(Form { layout, operand });
    }

    /// `value` in `layout`, if it can be had from parameters, data or forms at hand: loads, or
    /// redistributes the latest form, which is the most complete. None if no form is at hand.
    pub fn obtain(
        &mut self,
        value: ValueId,
        layout: &Layout,
    ) -> Result<Option<Operand>, ProgramError> {
        let node = self.context.graph.value(value);
        if node.parameter().is_some() {
            return Ok(Some(Operand::Weight(self.context.params.param(value))));
        }
        let forms = self.forms.get(&value).map(Vec::as_slice).unwrap_or_default();
        if let Some(form) = forms.iter().find(|form| form.layout == *layout) {
            return Ok(Some(form.operand));
        }
        if node.producer.is_none() {
            let slot = self.slot(value, layout, "");
            let action = Action::Load { value, layout: layout.clone() };
            self.push(action, vec![], vec![write(slot)]);
            self.add_form(value, layout.clone(), Operand::Slot(slot));
            return Ok(Some(Operand::Slot(slot)));
        }
        let Some(form) = forms.last().cloned() else { return Ok(None) };
        let operand = self.redistribute(value, &form, layout, "")?;
        self.add_form(value, layout.clone(), operand);
        Ok(Some(operand))
    }

    /// Brings one form of `value` (or of its gradient) into another layout.
    pub fn redistribute(
        &mut self,
        value: ValueId,
        form: &Form,
        layout: &Layout,
        suffix: &str,
    ) -> Result<Operand, ProgramError> {
        let mesh = &self.context.model.mesh;
        let global = self.context.shape(value);
        let steps =
            redistribution::cheapest(&form.layout, layout, &global, mesh).ok_or_else(|| {
                ProgramError::Redistribution {
                    name: self.context.graph.value(value).name.clone(),
                    from: form.layout.to_string(),
                    to: layout.to_string(),
                }
            })?;
        let mut operand = form.operand;
        for step in steps {
            let slot = self.slot(value, &step.layout, &format!("{suffix}@{}", step.layout));
            let action = Action::Redistribute { change: step.change, axis: step.axis };
            self.push(action, vec![operand], vec![write(slot)]);
            operand = Operand::Slot(slot);
        }
        Ok(operand)
    }

    /// Runs the forward pass of `op`, whose inputs `obtain` can get; its outputs become forms.
    pub fn forward(&mut self, op: OpId, again: bool) -> Result<(), ProgramError> {
        let context = self.context;
        let node = context.graph.op(op);
        let assignment = context.model.assignment(op);
        let mut reads = vec![];
        for (index, &input) in node.inputs.iter().enumerate() {
            let layout = assignment.input(context.graph, op, index);
            let operand = self.obtain(input, &layout)?;
            reads.push(operand.expect("inputs of an operator are emitted before it"));
        }
        let mut writes = vec![];
        for (index, &output) in node.outputs.iter().enumerate() {
            let layout = assignment.output(context.graph, op, index);
            let slot = self.slot(output, &layout, if again { "'" } else { "" });
            self.add_form(output, layout, Operand::Slot(slot));
            writes.push(write(slot));
        }
        let assignment = assignment.clone();
        self.push(Action::Compute { op, pass: Pass::Forward, assignment, again }, reads, writes);
        Ok(())
    }
}

/// A plain write of a slot.
pub(super) fn write(slot: SlotId) -> Write {
    Write { to: Operand::Slot(slot), accumulate: false }
}
