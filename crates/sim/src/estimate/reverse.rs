//! The backward pass of one block: gradients, and the values they need, kept or computed again.

use std::collections::BTreeMap;

use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, OpKind, ValueId, gradient};
use shardloom_plan::Recompute;
use shardloom_program::{Action, Layout, Operand, SlotId, Write};

use super::class::outside_readers;
use super::walk::{Walk, write};

/// A block's backward pass under way.
pub(super) struct Reverse<'w, 'a> {
    pub walk: &'w mut Walk<'a>,
    recompute: Recompute,
    /// The forms of values in the forward pass, to choose the kept one from.
    forward_forms: BTreeMap<ValueId, Vec<(Layout, SlotId)>>,
    /// Slots that the forward pass keeps, each with the slot that it is in the backward pass.
    pub kept: Vec<(SlotId, SlotId)>,
    gradients: BTreeMap<ValueId, Vec<(Layout, SlotId)>>,
}

impl<'w, 'a> Reverse<'w, 'a> {
    /// After a forward pass in `walk`, whose instructions the caller has taken.
    pub fn new(walk: &'w mut Walk<'a>, recompute: Recompute) -> Reverse<'w, 'a> {
        let forward_forms = std::mem::take(&mut walk.forms);
        Reverse { walk, recompute, forward_forms, kept: vec![], gradients: BTreeMap::new() }
    }

    /// Has the gradients that later blocks hand over at hand.
    pub fn receive_all(&mut self) -> Vec<SlotId> {
        let outputs = self.walk.ops().iter().flat_map(|&op| &self.walk.graph.op(op).outputs);
        let outputs: Vec<ValueId> = outputs.copied().collect();
        outputs.into_iter().flat_map(|output| self.receive(output)).collect()
    }

    /// Emits the pass; none if some operand cannot be brought into the layout it is needed in.
    pub fn pass(&mut self) -> Option<()> {
        self.walk.ops().iter().rev().try_for_each(|&op| self.differentiate(op))
    }

    /// The gradients of values that come from other blocks.
    pub fn handed_on(&self) -> Vec<SlotId> {
        self.gradients.values().flatten().map(|&(_, slot)| slot).collect()
    }

    /// The gradients that later blocks hand over for `value`, one for each layout that they give it in.
    fn receive(&mut self, value: ValueId) -> Vec<SlotId> {
        let graph = self.walk.graph;
        let mut received = vec![];
        if !graph.value(value).differentiable() {
            return received;
        }
        for (reader, index) in outside_readers(graph, self.walk.block, value) {
            let rule = gradient::rule(graph, reader);
            let assignment = self.walk.split.assignment(graph, reader);
            let produced = rule.input.is_some_and(|it| it.produces.contains(&index));
            let layout = match (produced, rule.passes.contains(&index)) {
                (true, _) => assignment.input_gradient(graph, reader, index),
                (false, true) => assignment.output(graph, reader, 0).reduced(),
                (false, false) => continue,
            };
            let known = self.gradients.entry(value).or_default();
            if known.iter().all(|(each, _)| *each != layout) {
                let slot = self.walk.slot(value, &layout);
                known.push((layout, slot));
                received.push(slot);
            }
        }
        received
    }

    fn differentiate(&mut self, op: OpId) -> Option<()> {
        let graph = self.walk.graph;
        let node = graph.op(op);
        let rule = gradient::rule(graph, op);
        let assignment = self.walk.split.assignment(graph, op);
        let layout = assignment.output(graph, op, 0).reduced();
        let incoming = match node.kind == OpKind::CrossEntropy {
            true => None,
            false => match self.complete_gradient(node.outputs[0], &layout)? {
                Some(slot) => Some(slot),
                None => return Some(()),
            },
        };
        for (pass, rule) in [(Pass::Input, &rule.input), (Pass::Weight, &rule.weight)] {
            let Some(rule) = rule else { continue };
            let mut reads = vec![];
            for read in &rule.reads {
                reads.push(match *read {
                    gradient::Operand::Input(index) => {
                        self.need(node.inputs[index], &assignment.input(graph, op, index))?
                    }
                    gradient::Operand::Output(index) => {
                        self.need(node.outputs[index], &assignment.output(graph, op, index))?
                    }
                    gradient::Operand::OutputGradient => Operand::Slot(incoming?),
                });
            }
            let writes = rule.produces.iter().map(|&index| self.destination(op, index)).collect();
            let assignment = assignment.clone();
            self.walk.push(Action::Compute { op, pass, assignment, again: false }, reads, writes);
        }
        if let Some(slot) = incoming {
            for &index in &rule.passes {
                let value = graph.value(node.inputs[index]);
                if value.differentiable() && value.producer.is_some() {
                    self.contribute(node.inputs[index], layout.clone(), slot);
                }
            }
        }
        Some(())
    }

    /// Where the gradient of the n-th input of `op` goes.
    fn destination(&mut self, op: OpId, index: usize) -> Write {
        let graph = self.walk.graph;
        let value = graph.op(op).inputs[index];
        if graph.value(value).parameter().is_some() {
            let to = Operand::Gradient(self.walk.parameter(value));
            return Write { to, accumulate: true };
        }
        let layout = self.walk.split.assignment(graph, op).input_gradient(graph, op, index);
        let known = self.gradients.entry(value).or_default();
        if let Some(&(_, sum)) = known.iter().find(|(each, _)| *each == layout) {
            return Write { to: Operand::Slot(sum), accumulate: true };
        }
        let slot = self.walk.slot(value, &layout);
        self.gradients.entry(value).or_default().push((layout, slot));
        write(slot)
    }

    /// Adds the gradient in `slot` to what is known of `value`'s gradient.
    fn contribute(&mut self, value: ValueId, layout: Layout, slot: SlotId) {
        let known = self.gradients.entry(value).or_default();
        match known.iter().find(|(each, _)| *each == layout).map(|&(_, sum)| sum) {
            Some(sum) => self.add(slot, sum),
            None => known.push((layout, slot)),
        }
    }

    fn add(&mut self, slot: SlotId, sum: SlotId) {
        let write = Write { to: Operand::Slot(sum), accumulate: true };
        self.walk.push(Action::Add, vec![Operand::Slot(slot)], vec![write]);
    }

    /// The whole gradient of `value` in `layout`: the inner none if nothing contributed to it.
    fn complete_gradient(&mut self, value: ValueId, layout: &Layout) -> Option<Option<SlotId>> {
        let mut sum = None;
        for (known, slot) in self.gradients.remove(&value).unwrap_or_default() {
            let arrived = self.walk.redistribute(value, &known, slot, layout)?;
            match sum {
                None => sum = Some(arrived),
                Some(sum) => self.add(arrived, sum),
            }
        }
        Some(sum)
    }

    /// `value` in `layout`, from what is at hand, what the forward pass keeps, or by computing it again.
    fn need(&mut self, value: ValueId, layout: &Layout) -> Option<Operand> {
        if let Some(operand) = self.walk.obtain(value, layout)? {
            return Some(operand);
        }
        let graph = self.walk.graph;
        let producer = graph.value(value).producer.filter(|_| !self.walk.made_outside(value));
        match producer {
            Some(op) if !self.keeps(op, value) => {
                let assignment = self.walk.split.assignment(graph, op);
                for (index, &input) in graph.op(op).inputs.iter().enumerate() {
                    self.need(input, &assignment.input(graph, op, index))?;
                }
                self.walk.forward(op, true)?;
            }
            _ => self.keep(value)?,
        }
        self.walk.obtain(value, layout)?
    }

    /// Has the forward pass keep `value`, in the smallest of the complete layouts that it has it in.
    fn keep(&mut self, value: ValueId) -> Option<()> {
        let forms = self.forward_forms.get(&value)?;
        let bytes = |form: &&(Layout, SlotId)| self.walk.slots[form.1.0 as usize].bytes;
        let complete = forms.iter().filter(|(layout, _)| !layout.is_partial());
        let (layout, forward) = complete.min_by_key(bytes).or(forms.first())?.clone();
        let slot = self.walk.bring(value, layout);
        self.kept.push((forward, slot));
        Some(())
    }

    /// Whether the forward pass may keep `value`, made by `op` of this block.
    fn keeps(&self, op: OpId, value: ValueId) -> bool {
        let graph = self.walk.graph;
        let kind = &graph.op(op).kind;
        match self.recompute {
            Recompute::None => true,
            Recompute::Selective => {
                let context = matches!(kind, OpKind::AttentionContext { .. });
                !kind.in_attention_core() || (context && value == graph.op(op).outputs[0])
            }
            Recompute::Full => {
                let last = graph.value(graph.loss()).producer.map(|op| graph.op(op).block);
                let leaves = |&op: &OpId| graph.op(op).block != self.walk.block;
                last == Some(self.walk.block) || graph.value(value).consumers.iter().any(leaves)
            }
        }
    }
}
