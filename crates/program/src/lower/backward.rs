//! A stage's backward pass: gradients, and the values they need, kept or computed again.

use std::collections::BTreeMap;

use shardloom_graph::work::Pass;
use shardloom_graph::{BlockId, Graph, OpId, OpKind, ValueId, gradient};
use shardloom_plan::Recompute;

use super::boundary::Way;
use super::emitter::{Emitter, Form, write};
use super::forward::{self, Kept};
use super::halves;
use super::rows::{counts_layout, counts_rows};
use super::stage::Context;
use crate::{Action, Instruction, Layout, Mode, ProgramError, Tensor, TensorId, View, Write};

/// A backward pass, and what it expects the forward pass to have kept.
pub(super) struct Backward {
    pub instructions: Vec<Instruction>,
    pub kept: Kept,
}

/// The instructions of a backward pass: input gradients and weight gradients of every operator, in
/// reverse. What `policy` does not keep is computed again. If weight gradients `are_put_off` to a body of
/// their own, what they read stays as it is.
pub(super) fn body(
    context: &Context<'_>,
    tensors: &mut Vec<Tensor>,
    policy: Recompute,
    are_put_off: bool,
) -> Result<Backward, ProgramError> {
    let forward_forms = forward::forms(context, tensors)?;
    let emitter = Emitter::new(context, tensors);
    let mut builder = Builder {
        emitter,
        policy,
        are_put_off,
        forward_forms,
        kept: Kept::new(),
        gradients: BTreeMap::new(),
        sharers: BTreeMap::new(),
    };
    for (id, transfer) in context.boundaries.out_of(context.stage) {
        let arrives = match transfer.way {
            Way::Messages { backward, .. } => {
                backward.map(|route| (Action::Receive { route }, vec![]))
            }
            Way::Stays => {
                let waiting = context.handovers[&id].gradient;
                waiting.map(|it| (Action::Copy, vec![View::whole(it)]))
            }
        };
        let Some((action, reads)) = arrives else { continue };
        let tensor = builder.emitter.gradient(transfer.value, &transfer.handed, "");
        builder.emitter.push(action, reads, vec![write(tensor)]);
        builder.contribute(transfer.value, transfer.handed.clone(), tensor);
    }
    let block_of = |op: OpId| context.graph.op(op).block;
    for block in context.model.ops.chunk_by(|&one, &next| block_of(one) == block_of(next)).rev() {
        if policy == Recompute::Block {
            builder.run_again(block)?;
        }
        for &op in block.iter().rev() {
            builder.differentiate(op)?;
        }
    }
    for (id, transfer) in context.boundaries.into(context.stage) {
        let leaves = match transfer.way {
            Way::Messages { backward, .. } => {
                backward.map(|route| (Action::Send { route }, vec![]))
            }
            Way::Stays => context.handovers[&id].gradient.map(|it| (Action::Copy, vec![write(it)])),
        };
        let Some((action, writes)) = leaves else { continue };
        if let Some(operand) = builder.complete_gradient(transfer.value, &transfer.received)? {
            builder.emitter.push(action, vec![operand], writes);
        }
    }
    Ok(Backward { instructions: builder.emitter.instructions, kept: builder.kept })
}

struct Builder<'a> {
    emitter: Emitter<'a>,
    policy: Recompute,
    are_put_off: bool,
    forward_forms: BTreeMap<ValueId, Vec<Form>>,
    kept: Kept,
    /// Gradients so far of values whose producers are still to come, one per layout.
    gradients: BTreeMap<ValueId, Vec<(Layout, TensorId)>>,
    /// How many values' gradients a tensor stands for.
    sharers: BTreeMap<TensorId, usize>,
}

impl Builder<'_> {
    /// Runs all of `block`'s forward pass again, also what no gradient needs; not of the block that ends in the
    /// loss, of which everything is kept, and not of one that begins with data, such as an embedding.
    fn run_again(&mut self, block: &[OpId]) -> Result<(), ProgramError> {
        let context = self.emitter.context;
        let graph = context.graph;
        let id = graph.op(block[0]).block;
        let made_elsewhere = |&input: &ValueId| {
            graph.value(input).producer.is_some_and(|op| graph.op(op).block != id)
        };
        let goes_on = block.iter().any(|&op| graph.op(op).inputs.iter().any(made_elsewhere));
        let is_needed = |&op: &OpId| context.gradients_needed.needs(graph.op(op).outputs[0]);
        if !block.iter().any(is_needed) {
            return Ok(());
        }
        if Some(id) == last_block(graph) || !goes_on {
            return Ok(());
        }
        for &op in block {
            let node = graph.op(op);
            for (index, &input) in node.inputs.iter().enumerate() {
                let layout = context.model.assignment(op).input(graph, op, index);
                self.need(input, &layout)?;
            }
            let is_kept = |&output: &ValueId| keeps(graph, self.policy, output);
            let is_at_hand = |output: &ValueId| self.emitter.forms.contains_key(output);
            if !node.outputs.iter().all(|output| !is_kept(output) && is_at_hand(output)) {
                self.emitter.forward(op, true)?;
            }
        }
        Ok(())
    }

    fn differentiate(&mut self, op: OpId) -> Result<(), ProgramError> {
        let context = self.emitter.context;
        let graph = context.graph;
        let node = graph.op(op);
        let output = node.outputs[0];
        if !context.gradients_needed.needs(output) {
            return Ok(());
        }
        let rule = context.gradients_needed.rule(graph, op);
        // The loss starts the chain; an operator on no way to the loss has no gradient.
        let starts = node.kind.is_loss();
        let layout = context.model.assignment(op).output(graph, op, 0).reduced();
        let incoming = match starts {
            true => None,
            false => match self.complete_gradient(output, &layout)? {
                Some(operand) => Some(operand),
                None => return Ok(()),
            },
        };
        for (pass, gradient) in [(Pass::Input, &rule.input), (Pass::Weight, &rule.weight)] {
            let Some(gradient) = gradient else { continue };
            let reads = self.reads(op, &gradient.reads, incoming)?;
            let mut writes = vec![];
            for &index in &gradient.produces {
                writes.extend(self.destination(op, index));
            }
            if self.are_put_off && halves::is_put_off(graph, op, pass) {
                self.share_input_gradients(op, gradient);
            }
            let assignment = context.model.assignment(op).clone();
            let action = Action::Kernel { op, pass, assignment, again: false };
            self.emitter.push(action, reads, writes);
        }
        if let Some(View { tensor, .. }) = incoming {
            // What a weight gradient reads later is shared with it for good, and so not added to.
            let read_later = self.are_put_off
                && halves::is_put_off(graph, op, Pass::Weight)
                && rule
                    .weight
                    .as_ref()
                    .is_some_and(|it| it.reads.contains(&gradient::Operand::OutputGradient));
            // A value may come in twice, or have got this very gradient on another way: while it is
            // handed on nothing is added to it in place.
            for &index in &rule.passes {
                if graph.value(node.inputs[index]).producer.is_some() {
                    self.contribute(node.inputs[index], layout.clone(), tensor);
                }
            }
            if !read_later {
                self.leave(tensor);
            }
        }
        Ok(())
    }

    /// The tensors a gradient operator reads.
    fn reads(
        &mut self,
        op: OpId,
        reads: &[gradient::Operand],
        incoming: Option<View>,
    ) -> Result<Vec<View>, ProgramError> {
        let context = self.emitter.context;
        let node = context.graph.op(op);
        let mut operands = vec![];
        for read in reads {
            let assignment = context.model.assignment(op);
            operands.push(match *read {
                gradient::Operand::Input(index) => {
                    let layout = assignment.input(context.graph, op, index);
                    self.need(node.inputs[index], &layout)?
                }
                gradient::Operand::Output(index) => {
                    let layout = assignment.output(context.graph, op, index);
                    self.need(node.outputs[index], &layout)?
                }
                gradient::Operand::OutputGradient => {
                    incoming.expect("only the loss has no incoming gradient, and reads none")
                }
                gradient::Operand::InputGradient(index) => {
                    View::whole(self.input_gradient(op, index))
                }
            });
        }
        Ok(operands)
    }

    /// The gradient of the n-th input of `op`, which nothing else reads, as its input-gradient pass has written it.
    fn input_gradient(&self, op: OpId, index: usize) -> TensorId {
        let context = self.emitter.context;
        let value = context.graph.op(op).inputs[index];
        let layout = context.model.assignment(op).input_gradient(context.graph, op, index);
        let known = self.gradients.get(&value).into_iter().flatten();
        let found = known.filter(|(each, _)| *each == layout).map(|&(_, tensor)| tensor).next();
        found.expect("an operator's input-gradient pass is there before its weight-gradient pass")
    }

    /// What a weight gradient reads later of its own operator's input gradients is shared with it for good, and so
    /// not added to.
    fn share_input_gradients(&mut self, op: OpId, weight: &gradient::GradientOp) {
        for read in &weight.reads {
            if let gradient::Operand::InputGradient(index) = *read {
                let tensor = self.input_gradient(op, index);
                *self.sharers.entry(tensor).or_default() += 1;
            }
        }
    }

    /// Where the gradient of the n-th input of `op` goes.
    fn destination(&mut self, op: OpId, index: usize) -> Vec<Write> {
        let context = self.emitter.context;
        let value = context.graph.op(op).inputs[index];
        if context.graph.value(value).parameter().is_some() && context.gradients_needed.needs(value)
        {
            return context.params.gradient(value, || context.model.rows_read(context.graph, op));
        }
        let layout = context.model.assignment(op).input_gradient(context.graph, op, index);
        let known = self.gradients.entry(value).or_default();
        let sum = known.iter().find(|(each, _)| *each == layout).map(|&(_, tensor)| tensor);
        if let Some(sum) = sum {
            let tensor = self.own(value, &layout, sum);
            return vec![Write { to: View::whole(tensor), mode: Mode::Add }];
        }
        let tensor = self.emitter.gradient(value, &layout, "");
        self.contribute(value, layout, tensor);
        vec![write(tensor)]
    }

    /// Adds the gradient in `tensor` to what is known of `value`'s gradient.
    fn contribute(&mut self, value: ValueId, layout: Layout, tensor: TensorId) {
        let known = self.gradients.entry(value).or_default();
        match known.iter().find(|(each, _)| *each == layout).map(|&(_, sum)| sum) {
            Some(sum) => {
                let sum = self.own(value, &layout, sum);
                self.add(value, &layout, tensor, sum);
            }
            None => {
                known.push((layout, tensor));
                *self.sharers.entry(tensor).or_default() += 1;
            }
        }
    }

    /// A tensor that stands for `value`'s gradient alone, so that it may be added to in place: `tensor`
    /// itself or a copy.
    fn own(&mut self, value: ValueId, layout: &Layout, tensor: TensorId) -> TensorId {
        if self.sharers.get(&tensor) == Some(&1) {
            return tensor;
        }
        let copy = self.emitter.gradient(value, layout, "+");
        let reads = self.read(value, layout, tensor);
        self.emitter.push(Action::Copy, reads, vec![write(copy)]);
        self.leave(tensor);
        self.sharers.insert(copy, 1);
        let forms = self.gradients.entry(value).or_default();
        if let Some(form) = forms.iter_mut().find(|(each, _)| each == layout) {
            form.1 = copy;
        }
        copy
    }

    /// Adds one part of a gradient to another, both in `layout`.
    fn add(&mut self, value: ValueId, layout: &Layout, part: TensorId, sum: TensorId) {
        let reads = self.read(value, layout, part);
        let add = Write { to: View::whole(sum), mode: Mode::Add };
        self.emitter.push(Action::Add, reads, vec![add]);
    }

    /// What reads a part of a gradient in `layout`: it and, where rows turn out while running, their counts.
    fn read(&self, value: ValueId, layout: &Layout, part: TensorId) -> Vec<View> {
        let counts = self.emitter.context.graph.value(value).counts;
        let counts = counts.map(|counts| self.emitter.counts_at_hand(counts, layout));
        [View::whole(part)].into_iter().chain(counts).collect()
    }

    /// One value's gradient no longer stands in `tensor`.
    fn leave(&mut self, tensor: TensorId) {
        if let Some(count) = self.sharers.get_mut(&tensor) {
            *count -= 1;
        }
    }

    /// The whole gradient of `value` in `layout`; none if nothing contributed to it. Takes the gradient
    /// out of the books, but counts the result as still shared until [`Builder::leave`].
    fn complete_gradient(
        &mut self,
        value: ValueId,
        layout: &Layout,
    ) -> Result<Option<View>, ProgramError> {
        let Some(forms) = self.gradients.remove(&value) else { return Ok(None) };
        self.need_counts(value, layout)?;
        let mut sum: Option<TensorId> = None;
        for (known, tensor) in forms {
            let form = Form { layout: known, operand: View::whole(tensor) };
            let arrived = self.emitter.redistribute(value, &form, layout, ".gradient")?.tensor;
            if arrived != tensor {
                self.leave(tensor);
                self.sharers.insert(arrived, 1);
            }
            sum = Some(match sum {
                None => arrived,
                Some(sum) => {
                    let sum = match self.sharers.get(&sum) {
                        Some(1) => sum,
                        _ => self.own(value, layout, sum),
                    };
                    self.add(value, layout, arrived, sum);
                    self.leave(arrived);
                    sum
                }
            });
        }
        Ok(sum.map(View::whole))
    }

    /// `value` in `layout`, from what is at hand, what the forward pass keeps, or by computing it again.
    fn need(&mut self, value: ValueId, layout: &Layout) -> Result<View, ProgramError> {
        self.need_counts(value, layout)?;
        let context = self.emitter.context;
        let kept = keeps(context.graph, self.policy, value);
        // Rows and their counts are as large in every layout: they are kept in the one that is read, as is
        // everything where the plan says so.
        let node = context.graph.value(value);
        let as_read = context.plan.keeps_gathered
            || node.counts.is_some()
            || counts_rows(context.graph, value);
        if kept && as_read {
            let is_it = |form: &Form| form.layout == *layout;
            let has = |forms: Option<&Vec<Form>>| forms.is_some_and(|it| it.iter().any(is_it));
            if !has(self.emitter.forms.get(&value)) && has(self.forward_forms.get(&value)) {
                self.keep_in(value, layout.clone());
            }
        }
        if let Some(operand) = self.emitter.obtain(value, layout)? {
            return Ok(operand);
        }
        let producer = context.graph.value(value).producer.filter(|&op| context.model.holds(op));
        match producer {
            Some(op) if !kept => {
                let node = context.graph.op(op);
                for (index, &input) in node.inputs.iter().enumerate() {
                    let layout = context.model.assignment(op).input(context.graph, op, index);
                    self.need(input, &layout)?;
                }
                self.emitter.forward(op, true)?;
            }
            _ => self.keep(value)?,
        }
        let operand = self.emitter.obtain(value, layout)?;
        Ok(operand.expect("a kept or recomputed value has a form"))
    }

    /// Has the counts of `value` at hand, where it has as many rows as turn out while running.
    fn need_counts(&mut self, value: ValueId, layout: &Layout) -> Result<(), ProgramError> {
        if let Some(counts) = self.emitter.context.graph.value(value).counts {
            self.need(counts, &counts_layout(layout))?;
        }
        Ok(())
    }

    /// Has the forward pass keep `value`, in the smallest of the complete layouts it has it in.
    fn keep(&mut self, value: ValueId) -> Result<(), ProgramError> {
        let context = self.emitter.context;
        let global = context.shape(value);
        let elements = |form: &&Form| -> usize {
            form.layout.local_shape(&global, &context.model.mesh).iter().product()
        };
        let forms = &self.forward_forms[&value];
        let complete = forms.iter().filter(|form| !form.layout.is_partial());
        let layout = match complete.min_by_key(elements) {
            Some(form) => form.layout.clone(),
            None => forms[0].layout.clone(),
        };
        self.need_counts(value, &layout)?;
        self.keep_in(value, layout);
        Ok(())
    }

    /// Has the forward pass keep `value` in a layout that it has it in.
    fn keep_in(&mut self, value: ValueId, layout: Layout) {
        let tensor = self.emitter.value(value, &layout, "");
        self.emitter.add_form(value, layout.clone(), View::whole(tensor));
        self.kept.insert((value, layout), tensor);
    }
}

/// Whether `policy` lets the forward pass keep `value`.
fn keeps(graph: &Graph, policy: Recompute, value: ValueId) -> bool {
    let Some(producer) = graph.value(value).producer else { return true };
    let node = graph.op(producer);
    match policy {
        Recompute::None => true,
        // The context itself is the output projection's input, which is kept.
        Recompute::Selective => {
            let context = matches!(node.kind, OpKind::AttentionContext { .. });
            !node.kind.in_attention_core() || (context && value == node.outputs[0])
        }
        // The block that ends in the loss goes backward right after it went forward: keeping it costs
        // no more than computing it again.
        Recompute::Full | Recompute::Block => {
            let leaves = |&op: &OpId| graph.op(op).block != node.block;
            Some(node.block) == last_block(graph) || graph.value(value).consumers.iter().any(leaves)
        }
        // What other stages made is not theirs to make again.
        Recompute::Stage => false,
    }
}

/// The block that ends in the loss.
fn last_block(graph: &Graph) -> Option<BlockId> {
    graph.value(graph.loss()).producer.map(|op| graph.op(op).block)
}
