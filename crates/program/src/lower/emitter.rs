//! Emits instructions while tracking in which layouts each value is at hand.

use std::collections::BTreeMap;

use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, ValueId};

use super::rows::counts_layout;
use super::stage::Context;
use crate::eight_bits::is_stored_in_8_bits;
use crate::redistribution::{Change, cheapest};
use crate::sync::{LookedUp, add};
use crate::{
    Action, Collective, Content, Copies, Counted, Format, Group, Instruction, Keep, Layout,
    ProgramError, Shape, Tensor, TensorId, View, Write,
};

/// A value in one layout.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub layout: Layout,
    pub operand: View,
}

/// The instructions of one body so far.
pub(super) struct Emitter<'a> {
    pub context: &'a Context<'a>,
    pub tensors: &'a mut Vec<Tensor>,
    pub instructions: Vec<Instruction>,
    /// The forms of each value that exist at this point.
    pub forms: BTreeMap<ValueId, Vec<Form>>,
}

impl<'a> Emitter<'a> {
    pub fn new(context: &'a Context<'a>, tensors: &'a mut Vec<Tensor>) -> Emitter<'a> {
        Emitter { context, tensors, instructions: vec![], forms: BTreeMap::new() }
    }

    /// A new tensor for `value` in `layout`; `suffix` tells it from others of the same value.
    pub fn value(&mut self, value: ValueId, layout: &Layout, suffix: &str) -> TensorId {
        let context = self.context;
        let node = context.graph.value(value);
        let precision = context.plan.precision;
        let format = match is_stored_in_8_bits(context.graph, precision, value) {
            true => Format::F8,
            false => Format::of_value(node.dtype, precision),
        };
        self.in_format(value, layout, suffix, format)
    }

    /// A new tensor for the gradient of `value` in `layout`.
    pub fn gradient(&mut self, value: ValueId, layout: &Layout, suffix: &str) -> TensorId {
        let dtype = self.context.graph.value(value).dtype;
        let format = Format::of_value(dtype, self.context.plan.precision);
        self.in_format(value, layout, &format!(".gradient{suffix}"), format)
    }

    fn in_format(
        &mut self,
        value: ValueId,
        layout: &Layout,
        suffix: &str,
        format: Format,
    ) -> TensorId {
        let context = self.context;
        let node = context.graph.value(value);
        let shape = layout.local_shape(&context.shape(value), &context.model.mesh);
        let mut tensor = of_microbatch(format!("{}{suffix}", node.name), shape, format);
        if let Some(by) = node.counts {
            let counts = self.counts_at_hand(by, layout);
            let counted = Counted { by, layout: counts_layout(layout) };
            tensor.shape = Shape::AtMost { bound: tensor.local_shape().to_vec(), counts, counted };
        }
        add(self.tensors, tensor)
    }

    pub fn push(&mut self, action: Action, reads: Vec<View>, writes: Vec<Write>) {
        self.instructions.push(Instruction { writes, ..Instruction::new(action, reads, []) });
    }

    pub fn add_form(&mut self, value: ValueId, layout: Layout, operand: View) {
        self.forms.entry(value).or_default().push(Form { layout, operand });
    }

    /// `value` in `layout`, if it can be had from parameters, data or forms at hand: loads, or
    /// redistributes the latest form, which is the most complete. None if no form is at hand.
    pub fn obtain(
        &mut self,
        value: ValueId,
        layout: &Layout,
    ) -> Result<Option<View>, ProgramError> {
        let node = self.context.graph.value(value);
        if node.parameter().is_some() {
            return Ok(Some(self.context.params.weight(value)));
        }
        let forms = self.forms.get(&value).map(Vec::as_slice).unwrap_or_default();
        if let Some(form) = forms.iter().find(|form| form.layout == *layout) {
            return Ok(Some(form.operand));
        }
        if node.producer.is_none() {
            let tensor = self.value(value, layout, "");
            let action = Action::Load { value, layout: layout.clone() };
            self.push(action, vec![], vec![write(tensor)]);
            self.add_form(value, layout.clone(), View::whole(tensor));
            return Ok(Some(View::whole(tensor)));
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
    ) -> Result<View, ProgramError> {
        let mesh = &self.context.model.mesh;
        let global = self.context.shape(value);
        let node = self.context.graph.value(value);
        let steps = cheapest(&form.layout, layout, &global, mesh).ok_or_else(|| {
            ProgramError::Redistribution {
                name: node.name.clone(),
                from: form.layout.to_string(),
                to: layout.to_string(),
            }
        })?;
        if let Some(counts) = node.counts {
            return self.redistribute_rows((value, counts), form, steps, suffix);
        }
        let mut operand = form.operand;
        for step in steps {
            let name = format!("{suffix}@{}", step.layout);
            let format = self.tensors[operand.tensor.0 as usize].format;
            let tensor = self.in_format(value, &step.layout, &name, format);
            match step.change {
                Change::Slice { axis } => {
                    let action = Action::Slice { axis, over: step.axis };
                    self.push(action, vec![operand], vec![write(tensor)]);
                }
                Change::Together(kind) => {
                    let group = Group::Mesh(vec![step.axis]);
                    let algorithm = algorithm(kind, self.context.plan.sync.algorithm);
                    let action = Action::Collective { kind, group, algorithm };
                    let mut writes = vec![write(tensor)];
                    let parts = self.staging(kind, operand.tensor, tensor);
                    writes.extend(parts.map(write));
                    self.push(action, vec![operand], writes);
                }
            }
            operand = View::whole(tensor);
        }
        Ok(operand)
    }

    /// Where parts lie side by side during a change of layout, if it needs that. Collectives take and leave
    /// parts so: a tensor that is joined along an axis inside it is copied, and one that is cut is cut and
    /// reduced in a copy.
    fn staging(&mut self, kind: Collective, read: TensorId, written: TensorId) -> Option<TensorId> {
        let tensor = |id: TensorId| &self.tensors[id.0 as usize];
        let shape = tensor(written).local_shape();
        let inside = |axis: usize| shape[..axis].iter().any(|&extent| extent > 1);
        let like = match kind {
            Collective::ReduceScatter { .. } => read,
            Collective::AllGather { axis } | Collective::AllToAll { from: axis, .. }
                if inside(axis) =>
            {
                written
            }
            _ => return None,
        };
        Some(self.parts_of(written, like))
    }

    /// A tensor for the parts of `written` side by side, as large as `like`.
    pub fn parts_of(&mut self, written: TensorId, like: TensorId) -> TensorId {
        let tensor = |id: TensorId| &self.tensors[id.0 as usize];
        let parts = Tensor {
            name: format!("parts of {}", tensor(written).name),
            content: Content::Staging,
            ..tensor(like).clone()
        };
        add(self.tensors, parts)
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
        self.find_rows(op, &mut reads);
        let mut writes = vec![];
        for (index, &output) in node.outputs.iter().enumerate() {
            let layout = assignment.output(context.graph, op, index);
            let tensor = self.value(output, &layout, if again { "'" } else { "" });
            self.add_form(output, layout, View::whole(tensor));
            writes.push(write(tensor));
        }
        let assignment = assignment.clone();
        self.push(Action::Kernel { op, pass: Pass::Forward, assignment, again }, reads, writes);
        Ok(())
    }

    /// Of a table that somebody else holds a rank has only some rows: what an operator looks up in it becomes where these
    /// stand.
    fn find_rows(&mut self, op: OpId, reads: &mut [View]) {
        let context = self.context;
        let inputs = &context.graph.op(op).inputs;
        let mut looked_up = inputs.iter().filter_map(|&input| context.params.looked_up(input));
        if let (Some(LookedUp { rows, .. }), [indices, ..]) = (looked_up.next(), reads) {
            let tensor = self.tensors[indices.tensor.0 as usize].clone();
            let name = format!("{} among rows", tensor.name);
            let found = add(self.tensors, Tensor { name, ..tensor });
            let reads = vec![*indices, View::whole(rows)];
            self.push(Action::FindRows, reads, vec![write(found)]);
            *indices = View::whole(found);
        }
    }
}

/// A tensor that passes with a micro-batch.
pub(super) fn of_microbatch(name: String, shape: Vec<usize>, format: Format) -> Tensor {
    Tensor {
        name,
        shape: Shape::Local(shape),
        format,
        keep: Keep::Transient,
        copies: Copies::PerMicrobatch,
        content: Content::Activation,
        bucket: None,
    }
}

/// The algorithm of a change of layout: the plan's where it exists for this kind, and straight from all to
/// all otherwise.
fn algorithm(kind: Collective, planned: Algorithm) -> Algorithm {
    let scatters = [Kind::ReduceScatter, Kind::AllGather].iter().all(|kind| kind.has(planned));
    match kind {
        Collective::AllReduce(_) => planned,
        Collective::ReduceScatter { .. } | Collective::AllGather { .. } if scatters => planned,
        _ => Algorithm::Direct,
    }
}

/// A plain write of a tensor.
pub(super) fn write(tensor: TensorId) -> Write {
    Write::set(View::whole(tensor))
}
