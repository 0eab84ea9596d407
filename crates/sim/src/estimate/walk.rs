//! The instructions of one block alone, as lowering would emit them on the devices of one replica.
//!
//! Only tensor parallelism splits anything within a replica, so one step leads from any layout to any
//! other, and no search for the cheapest way is needed.

use std::collections::BTreeMap;

use shardloom_graph::work::Pass;
use shardloom_graph::{BlockId, Extents, Graph, OpId, ValueId};
use shardloom_plan::{Axis, LayoutRules, Mesh};
use shardloom_program::{
    Action, Assignment, Change, Instruction, Layout, Operand, ParamId, Slot, SlotId, Write,
};

use super::class::outside_readers;

/// How one replica is split.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// The devices of the replica within a stage.
    pub mesh: Mesh,
    /// Which loops are split.
    pub rules: LayoutRules,
}

impl Split {
    /// Which loops of `op` are split.
    pub fn assignment(&self, graph: &Graph, op: OpId) -> Assignment {
        Assignment::of(graph, op, &self.rules, &self.mesh)
    }
}

/// Emits the instructions of one block.
pub(super) struct Walk<'a> {
    pub graph: &'a Graph,
    pub split: &'a Split,
    pub block: BlockId,
    pub extents: Extents,
    /// Bytes of a real number.
    pub real_bytes: usize,
    pub slots: Vec<Slot>,
    pub instructions: Vec<Instruction>,
    /// The block's parameters in order of first use.
    pub parameters: Vec<ValueId>,
    /// In which layouts each value is at hand, in order.
    pub forms: BTreeMap<ValueId, Vec<(Layout, SlotId)>>,
}

impl<'a> Walk<'a> {
    /// Before the first instruction. A micro-batch has `samples` samples.
    pub fn new(
        graph: &'a Graph,
        split: &'a Split,
        block: BlockId,
        samples: usize,
        real_bytes: usize,
    ) -> Walk<'a> {
        Walk {
            graph,
            split,
            block,
            extents: Extents::global(graph, samples),
            real_bytes,
            slots: vec![],
            instructions: vec![],
            parameters: vec![],
            forms: BTreeMap::new(),
        }
    }

    /// The block's operators.
    pub fn ops(&self) -> &'a [OpId] {
        &self.graph.blocks()[self.block.index()].ops
    }

    /// Has the values that come from other blocks at hand, in slots that something outside fills.
    pub fn bring_inputs(&mut self) -> Vec<SlotId> {
        let inputs = self.ops().iter().flat_map(|&op| &self.graph.op(op).inputs).copied();
        let outside: Vec<ValueId> = inputs.filter(|&it| self.made_outside(it)).collect();
        let mut brought = vec![];
        for value in outside {
            if !self.forms.contains_key(&value) {
                for layout in self.layouts_at_hand(value) {
                    brought.push(self.bring(value, layout));
                }
            }
        }
        brought
    }

    /// Runs all operators; none if some operand cannot be brought into the layout it is needed in.
    pub fn forward_pass(&mut self) -> Option<()> {
        self.ops().iter().try_for_each(|&op| self.forward(op, false))
    }

    /// The slots, after the forward pass, of values that later blocks read.
    pub fn handed_on(&self) -> Vec<SlotId> {
        let leaves = |value: &ValueId| outside_readers(self.graph, self.block, *value).next();
        let mut slots = vec![];
        for (value, forms) in &self.forms {
            if !self.made_outside(*value) && leaves(value).is_some() {
                slots.extend(forms.last().map(|&(_, slot)| slot));
            }
        }
        slots
    }

    /// The layouts in which a value from another block is there: its producer's, and those into which
    /// blocks before this one have brought it.
    fn layouts_at_hand(&self, value: ValueId) -> Vec<Layout> {
        let graph = self.graph;
        let Some(producer) = graph.value(value).producer else { return vec![] };
        let output = graph.op(producer).outputs.iter().position(|&it| it == value).unwrap_or(0);
        let produced = self.split.assignment(graph, producer).output(graph, producer, output);
        let mut layouts = vec![produced];
        for (reader, index) in outside_readers(graph, self.block, value) {
            let layout = self.split.assignment(graph, reader).input(graph, reader, index);
            if graph.op(reader).block < self.block && !layouts.contains(&layout) {
                layouts.push(layout);
            }
        }
        layouts
    }

    /// A new slot that has `value` in `layout`.
    pub fn bring(&mut self, value: ValueId, layout: Layout) -> SlotId {
        let slot = self.slot(value, &layout);
        self.forms.entry(value).or_default().push((layout, slot));
        slot
    }

    /// Whether `value` comes from another block.
    pub fn made_outside(&self, value: ValueId) -> bool {
        let producer = self.graph.value(value).producer;
        producer.is_some_and(|op| self.graph.op(op).block != self.block)
    }

    /// Runs `op`; `again` if it ran before.
    pub fn forward(&mut self, op: OpId, again: bool) -> Option<()> {
        let node = self.graph.op(op);
        let assignment = self.split.assignment(self.graph, op);
        let mut reads = vec![];
        for (index, &input) in node.inputs.iter().enumerate() {
            let layout = assignment.input(self.graph, op, index);
            reads.push(self.obtain(input, &layout)??);
        }
        let mut writes = vec![];
        for (index, &output) in node.outputs.iter().enumerate() {
            let layout = assignment.output(self.graph, op, index);
            writes.push(write(self.bring(output, layout)));
        }
        self.push(Action::Compute { op, pass: Pass::Forward, assignment, again }, reads, writes);
        Some(())
    }

    /// `value` in `layout`: the inner none if it is not at hand in any, the outer if there is no way
    /// from the layout it is in.
    pub fn obtain(&mut self, value: ValueId, layout: &Layout) -> Option<Option<Operand>> {
        let node = self.graph.value(value);
        if node.parameter().is_some() {
            return Some(Some(Operand::Weight(self.parameter(value))));
        }
        let forms = self.forms.get(&value).map(Vec::as_slice).unwrap_or_default();
        if let Some((_, slot)) = forms.iter().find(|(known, _)| known == layout) {
            return Some(Some(Operand::Slot(*slot)));
        }
        if node.producer.is_none() {
            let slot = self.bring(value, layout.clone());
            let action = Action::Load { value, layout: layout.clone() };
            self.push(action, vec![], vec![write(slot)]);
            return Some(Some(Operand::Slot(slot)));
        }
        let Some((from, slot)) = forms.last().cloned() else { return Some(None) };
        let slot = self.redistribute(value, &from, slot, layout)?;
        self.forms.entry(value).or_default().push((layout.clone(), slot));
        Some(Some(Operand::Slot(slot)))
    }

    /// Brings a tensor shaped like `value` from one layout into another.
    pub fn redistribute(
        &mut self,
        value: ValueId,
        from: &Layout,
        slot: SlotId,
        to: &Layout,
    ) -> Option<SlotId> {
        if from == to {
            return Some(slot);
        }
        let change = change(from, to)?;
        let arrived = self.slot(value, to);
        let action = Action::Redistribute { change, axis: Axis::Tp };
        self.push(action, vec![Operand::Slot(slot)], vec![write(arrived)]);
        Some(arrived)
    }

    /// A new slot for a tensor shaped like `value`.
    pub fn slot(&mut self, value: ValueId, layout: &Layout) -> SlotId {
        let node = self.graph.value(value);
        let shape = layout.local_shape(&self.extents.shape(&node.axes), &self.split.mesh);
        let bytes = shape.iter().product::<usize>() * node.dtype.bytes(self.real_bytes);
        self.slots.push(Slot { name: node.name.clone(), shape, dtype: node.dtype, bytes });
        SlotId(self.slots.len() as u32 - 1)
    }

    /// The block's number of a parameter.
    pub fn parameter(&mut self, value: ValueId) -> ParamId {
        let known = self.parameters.iter().position(|&it| it == value).unwrap_or_else(|| {
            self.parameters.push(value);
            self.parameters.len() - 1
        });
        ParamId(known as u32)
    }

    pub fn push(&mut self, action: Action, reads: Vec<Operand>, writes: Vec<Write>) {
        self.instructions.push(Instruction { action, reads, writes, frees: vec![] });
    }
}

/// A plain write of a slot.
pub(super) fn write(slot: SlotId) -> Write {
    Write { to: Operand::Slot(slot), accumulate: false }
}

/// The step over the one mesh axis there is from one layout to another; none if there is none, because a
/// whole tensor does not become a partial one.
fn change(from: &Layout, to: &Layout) -> Option<Change> {
    let split = |layout: &Layout| layout.splits.iter().position(|axes| !axes.is_empty());
    if !to.partial.is_empty() {
        return None;
    }
    Some(match (from.partial.first(), split(from), split(to)) {
        (Some(&(_, reduction)), _, None) => Change::AllReduce(reduction),
        (Some(&(_, reduction)), _, Some(axis)) => Change::ReduceScatter { axis, reduction },
        (None, None, Some(axis)) => Change::Slice { axis },
        (None, Some(axis), None) => Change::AllGather { axis },
        (None, Some(from), Some(to)) => Change::AllToAll { from, to },
        (None, None, None) => return None,
    })
}
