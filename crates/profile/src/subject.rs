//! One pass of an operator with all its operands, ready to run.

use std::sync::Arc;

use shardloom_graph::gradient::{self, Operand as Which};
use shardloom_graph::work::Pass;
use shardloom_graph::{Extents, Graph, OpId, OpKind, ValueId};
use shardloom_kernels::device::{Input, Kernel, OperandSize, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, Format};

use crate::operand::{Operand, Rooms, Use, Warmth};

/// A pass of an operator at certain extents.
pub(crate) struct Subject {
    kind: OpKind,
    pass: Pass,
    reads: Vec<Operand>,
    writes: Vec<Operand>,
    accumulate: bool,
    setting: Setting,
    scratch: Buffer,
    /// How many calls there were.
    calls: usize,
}

impl Subject {
    /// The operands of `pass` of `op`, with real numbers in `format` but for gradients of parameters, which are in
    /// fp32 as they usually are, and with `cold` tensors where nothing has just made them.
    ///
    /// # Panics
    /// If the operator has no such pass.
    pub fn new(
        graph: &Graph,
        op: OpId,
        pass: Pass,
        extents: &Extents,
        (format, cold): (Format, Warmth),
        rooms: &mut Rooms,
    ) -> Subject {
        let node = graph.op(op);
        let indices = node.index_loop();
        let indices = indices.map_or(1, |it| extents.get(node.signature.loops[it].dim));
        let of = |value, warmth| (value, warmth, format);
        let is_parameter = |value: ValueId| graph.value(value).parameter().is_some();
        let weights_cold = |value| if is_parameter(value) { cold } else { Warmth::Warm };
        let (reads, writes): (Vec<_>, Vec<_>) = match pass {
            Pass::Forward => (
                node.inputs.iter().map(|&value| of(value, weights_cold(value))).collect(),
                node.outputs.iter().map(|&value| of(value, cold)).collect(),
            ),
            Pass::Input | Pass::Weight => {
                let rule = gradient::rule(graph, op);
                let found = if pass == Pass::Input { rule.input } else { rule.weight };
                let gradient = found.expect("only passes that an operator has are measured");
                let read = |which: &Which| match *which {
                    Which::Input(index) => of(node.inputs[index], cold),
                    Which::Output(index) => of(node.outputs[index], cold),
                    Which::OutputGradient => of(node.outputs[0], Warmth::Warm),
                    Which::InputGradient(index) => of(node.inputs[index], Warmth::Warm),
                };
                let write = |&index: &usize| {
                    let value = node.inputs[index];
                    let format = if is_parameter(value) { Format::F32 } else { format };
                    (value, weights_cold(value), format)
                };
                let reads = gradient.reads.iter().map(read).collect();
                (reads, gradient.produces.iter().map(write).collect())
            }
        };
        // A table's gradient is cleared once a step, however many rows are added to.
        let accumulate = node.kind == OpKind::Embed;
        let mut operand = |id: ValueId, warmth, format, of| {
            let value = graph.value(id);
            let format = match value.dtype {
                shardloom_graph::DType::Real => format,
                shardloom_graph::DType::Float => Format::F32,
                shardloom_graph::DType::Index => Format::U32,
                shardloom_graph::DType::Mask => Format::U8,
            };
            let made = rooms.operand(format, extents.shape(&value.axes), warmth, indices, of);
            match Routed::of(graph, id, extents) {
                Some(routed) => made.holding(|at| routed.element(at)),
                None => made,
            }
        };
        let mut operands = |all: Vec<(ValueId, Warmth, Format)>, of| -> Vec<Operand> {
            all.into_iter().map(|(id, warmth, format)| operand(id, warmth, format, of)).collect()
        };
        let reads = operands(reads, Use::Read);
        let writes = operands(writes, written(accumulate));
        let mask = node.mask_loops().map(|loops| {
            let dims = loops.iter().map(|&each| node.signature.loops[each].dim);
            Window::whole(&extents.shape(&dims.collect::<Vec<_>>()))
        });
        let setting = Setting {
            mask,
            first_position: 0,
            first_index: 0,
            loss_scale: 1.0,
            key: Key { seed: 1, stream: 2, step: 3 },
        };
        let [read, written] = [&reads, &writes].map(|operands| -> Vec<OperandSize<'_>> {
            operands.iter().map(Operand::size).collect()
        });
        let memory = rooms.memory();
        let elements = memory.device().scratch_elements(&node.kind, pass, &read, &written);
        let scratch = memory.alloc(Format::F32, elements);
        Subject { kind: node.kind, pass, reads, writes, accumulate, setting, scratch, calls: 0 }
    }

    /// Runs the pass on the operands' next copies.
    pub fn run(&mut self, call: usize) {
        self.calls = call + 1;
        let Subject { kind, pass, reads, writes, accumulate, setting, scratch, .. } = self;
        let device = Arc::clone(scratch.device());
        let reads: Vec<Input<'_>> = reads.iter().map(|operand| operand.input(call)).collect();
        let mut writes: Vec<Output<'_>> =
            writes.iter_mut().map(|operand| operand.output(call, *accumulate)).collect();
        let kernel = Kernel { kind, pass: *pass, setting };
        device.run(kernel, &reads, &mut writes, scratch.view_mut());
    }

    /// Leaves the operands' memory for others.
    pub fn leave(self, rooms: &mut Rooms) {
        let Subject { reads, writes, calls, .. } = self;
        reads.into_iter().for_each(|operand| rooms.leave(operand, Use::Read, calls));
        let of = written(self.accumulate);
        writes.into_iter().for_each(|operand| rooms.leave(operand, of, calls));
    }
}

/// The use of what a pass writes.
fn written(accumulate: bool) -> Use {
    if accumulate { Use::AddedTo } else { Use::Written }
}

/// A routing that fills every slot: the rows of a sample go to one expert after another.
struct Routed {
    /// Which of the routing's results it is.
    result: usize,
    /// Rows of a sample.
    rows: usize,
    /// Slots of an expert for them.
    slots: usize,
}

impl Routed {
    /// What `value` is of a routing; none if it is no result of one, or real numbers like others.
    fn of(graph: &Graph, value: ValueId, extents: &Extents) -> Option<Routed> {
        let op = graph.op(graph.value(value).producer?);
        let result = op.outputs.iter().position(|&it| it == value).filter(|&it| it > 0)?;
        let OpKind::Route { .. } = op.kind else { return None };
        let rows = extents.elements(&graph.value(op.outputs[0]).axes) / extents.get(graph.batch());
        // All slots of an expert, which may be one more than there are rows for the last.
        let counts = op.outputs[3];
        let packed = graph.values().find(|(_, it)| it.counts == Some(counts));
        let slots = packed.map_or(1, |(_, packed)| extents.get(packed.axes[2]));
        Some(Routed { result, rows, slots })
    }

    fn element(&self, at: usize) -> u32 {
        let row = at % self.rows;
        let element = match self.result {
            1 => row / self.slots,
            2 => row % self.slots,
            _ => self.slots,
        };
        element as u32
    }
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_kernels::{Memory, processor};

    use super::*;

    /// Nobody would notice from its time alone.
    #[test]
    fn a_subject_computes_what_its_operator_does() {
        let model = "mlp:inputs=8,hidden=16,layers=2,classes=5";
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let is_it = |kind: &OpKind| matches!(kind, OpKind::Pointwise(_));
        let (op, _) = graph.ops().find(|(_, op)| is_it(&op.kind)).expect("it has one");
        let (device, mut rooms) = (processor(), Rooms::new(Memory::new(processor())));
        let extents = Extents::global(&graph, 3);
        let cold = Warmth::Cold { room: 1 << 20 };
        let mut subject =
            Subject::new(&graph, op, Pass::Forward, &extents, (Format::F32, cold), &mut rooms);
        assert_eq!(subject.kind.name(), "relu");
        for call in 0..3 {
            let output = subject.writes[0].view_mut(call);
            device.set_reals(&[f32::NAN; 48], output);
            subject.run(call);
            let x = device.reals(subject.reads[0].view(call));
            let y: Vec<f32> = x.iter().map(|it| it.max(0.0)).collect();
            assert_eq!(device.reals(subject.writes[0].view(call)), y, "call {call}");
        }
    }

    /// The first operator of a model of a kind, with operands in a format, cold ones in room of a mebibyte.
    fn subject(model: &str, is_it: fn(&OpKind) -> bool, pass: Pass, format: Format) -> Subject {
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let (op, _) = graph.ops().find(|(_, op)| is_it(&op.kind)).expect("it has one");
        let mut rooms = Rooms::new(Memory::new(processor()));
        let (extents, cold) = (Extents::global(&graph, 3), Warmth::Cold { room: 1 << 20 });
        Subject::new(&graph, op, pass, &extents, (format, cold), &mut rooms)
    }

    const MLP: &str = "mlp:inputs=8,hidden=16,layers=2,classes=5";

    /// The n-th calls on warm operands use one of two copies in turn.
    fn is_cold(operand: &mut Operand) -> bool {
        let device = Arc::clone(operand.device());
        let marked = vec![-7.0; operand.view(0).len()];
        device.set_reals(&marked, operand.view_mut(2));
        device.reals(operand.view(0)) != marked
    }

    /// What the operator before has made is where it was made; weights, and what is kept for the backward pass, are
    /// not.
    #[test]
    fn weights_and_what_was_kept_lie_in_memory_and_what_was_just_made_in_a_cache() {
        let are_cold = |pass| {
            let is_product = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
            let mut subject = subject(MLP, is_product, pass, Format::F32);
            let Subject { reads, writes, .. } = &mut subject;
            (reads.iter_mut().map(is_cold).collect(), writes.iter_mut().map(is_cold).collect())
        };
        // Rows and weights; rows.
        let forward: (Vec<bool>, Vec<bool>) = are_cold(Pass::Forward);
        assert_eq!(forward, (vec![false, true], vec![true]));
        // Rows that were kept and the gradient of the result; that of weights.
        let weight: (Vec<bool>, Vec<bool>) = are_cold(Pass::Weight);
        assert_eq!(weight, (vec![true, false], vec![true]));
    }

    #[test]
    fn gradients_of_parameters_are_in_full_precision_and_others_as_what_they_are_of() {
        let is_product = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
        let formats = |pass| {
            let subject = subject(MLP, is_product, pass, Format::Bf16);
            let format = |it: &Operand| it.size().format;
            let [reads, writes] = [&subject.reads, &subject.writes];
            (reads.iter().map(format).collect(), writes.iter().map(format).collect())
        };
        let (bf16, fp32) = (Format::Bf16, Format::F32);
        let weight: (Vec<Format>, Vec<Format>) = formats(Pass::Weight);
        assert_eq!(weight, (vec![bf16; 2], vec![fp32]));
        let forward: (Vec<Format>, Vec<Format>) = formats(Pass::Forward);
        assert_eq!(forward, (vec![bf16; 2], vec![bf16]));
    }

    /// Clearing it would take longer than what is measured: there are more rows than tokens.
    #[test]
    fn gradients_of_a_table_are_added_to_what_is_there_and_those_of_weights_are_not() {
        let gpt = "gpt:layers=1,hidden=8,heads=2,seq=4,vocab=64";
        let is_product = |kind: &OpKind| matches!(kind, OpKind::Contract { .. });
        for (is_it, adds) in
            [((|kind| *kind == OpKind::Embed) as fn(&OpKind) -> bool, true), (is_product, false)]
        {
            let mut subject = subject(gpt, is_it, Pass::Weight, Format::F32);
            let device = Arc::clone(subject.writes[0].device());
            let rows = subject.writes[0].view(0).len();
            device.set_reals(&vec![1e6; rows], subject.writes[0].view_mut(0));
            subject.run(0);
            let written = device.reals(subject.writes[0].view(0));
            assert!(written.iter().all(|it| (it.abs() > 1e5) == adds), "adds: {adds}");
        }
    }

    /// Eight rows for two experts of four slots: each slot has one.
    #[test]
    fn rows_fill_all_slots_of_all_experts_once() {
        let [experts, slots] =
            [1, 2].map(|result| Routed { result, rows: 8, slots: 4 }).map(|routed| {
                // Of two samples.
                (0..16).map(|at| routed.element(at)).collect::<Vec<u32>>()
            });
        assert_eq!(experts[..8], experts[8..]);
        let mut found: Vec<(u32, u32)> = experts.into_iter().zip(slots).take(8).collect();
        found.sort_unstable();
        let each = |expert| (0..4).map(move |slot| (expert, slot));
        assert_eq!(found, each(0).chain(each(1)).collect::<Vec<_>>());
        let counts = Routed { result: 3, rows: 2, slots: 4 };
        assert_eq!([0, 1].map(|at| counts.element(at)), [4, 4]);
    }
}
