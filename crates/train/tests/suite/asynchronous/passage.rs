//! One micro-batch's way through the model and back, on whole tensors, operator by operator.

use std::collections::BTreeMap;

use shardloom_graph::gradient::{GradientOp, Operand, rule};
use shardloom_graph::work::Pass;
use shardloom_graph::{Extents, Graph, Op, OpId, ValueId};
use shardloom_kernels::device::{HostSlice, Input, Kernel, OperandSize, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, Format, Memory, View, processor};

/// Whole tensors of parameters.
pub type Tensors = BTreeMap<ValueId, Vec<f32>>;

/// Where the micro-batch stands in the run.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub seed: u64,
    /// The step it belongs to.
    pub step: u64,
    /// Samples of a step.
    pub global_batch: usize,
    /// Its own samples.
    pub samples: usize,
    /// Its first sample, within the step.
    pub first_sample: usize,
}

/// A micro-batch and what its forward pass left.
pub struct Passage<'a> {
    graph: &'a Graph,
    place: Place,
    extents: Extents,
    memory: Memory,
    values: BTreeMap<ValueId, Buffer>,
    /// What was computed again, for its own block.
    again: BTreeMap<ValueId, Buffer>,
}

/// The weights that an operator reads.
pub trait WeightsOf<'w>: Fn(&Op, ValueId) -> &'w [f32] {}
impl<'w, F: Fn(&Op, ValueId) -> &'w [f32]> WeightsOf<'w> for F {}

impl<'a> Passage<'a> {
    /// A micro-batch whose samples have these indices, one after the other, for each input by name.
    pub fn new(graph: &'a Graph, place: Place, indices: &dyn Fn(&str) -> Vec<u32>) -> Passage<'a> {
        let memory = Memory::new(processor());
        let inputs = graph.inputs().map(|(id, value)| {
            let indices = indices(&value.name);
            let mut buffer = memory.alloc(Format::U32, indices.len());
            memory.device().upload(HostSlice::U32(&indices), buffer.view_mut());
            (id, buffer)
        });
        let values = inputs.collect();
        let extents = Extents::global(graph, place.samples);
        Passage { graph, place, extents, memory, values, again: BTreeMap::new() }
    }

    /// Runs every operator. Returns the sum of the losses.
    pub fn forward<'w>(&mut self, weights: impl WeightsOf<'w>) -> f64 {
        for (_, op) in self.graph.ops() {
            let outputs = self.outputs(op, &weights);
            self.values.extend(op.outputs.iter().copied().zip(outputs));
        }
        f64::from(reals(&self.values[&self.graph.loss()])[0])
    }

    /// Runs the operators again, each block's from the inputs that it had; not those of the last block,
    /// which goes backward right after it went forward.
    pub fn recompute<'w>(&mut self, weights: impl WeightsOf<'w>) {
        let last = self.graph.blocks().len() - 1;
        for (_, op) in self.graph.ops().filter(|(_, op)| op.block.index() < last) {
            let outputs = self.outputs(op, &weights);
            self.again.extend(op.outputs.iter().copied().zip(outputs));
        }
    }

    fn outputs<'w>(&self, op: &Op, weights: &impl WeightsOf<'w>) -> Vec<Buffer> {
        let (read_shapes, shapes) = (self.shapes(&op.inputs), self.shapes(&op.outputs));
        let mut buffers: Vec<Buffer> = op
            .outputs
            .iter()
            .zip(&shapes)
            .map(|(&id, shape)| self.memory.alloc(self.format(id), shape.iter().product()))
            .collect();
        let read: Vec<Option<Buffer>> =
            op.inputs.iter().map(|&id| self.weight(op, id, weights)).collect();
        let reads: Vec<Input> = op
            .inputs
            .iter()
            .zip(&read)
            .zip(&read_shapes)
            .map(|((&id, weight), shape)| Input { shape, data: self.data(op, id, weight) })
            .collect();
        let mut writes: Vec<Output> = buffers
            .iter_mut()
            .zip(&shapes)
            .map(|(buffer, shape)| Output { shape, data: buffer.view_mut(), accumulate: false })
            .collect();
        self.run(op, Pass::Forward, &reads, &mut writes);
        drop(writes);
        buffers
    }

    /// Runs every gradient operator. Returns the gradients of all parameters.
    pub fn backward<'w>(&self, weights: impl WeightsOf<'w>) -> Tensors {
        let mut gradients: BTreeMap<ValueId, Buffer> = BTreeMap::new();
        let ops: Vec<(OpId, &Op)> = self.graph.ops().collect();
        for (id, op) in ops.into_iter().rev() {
            let rule = rule(self.graph, id);
            for (gradient, pass) in [(rule.input, Pass::Input), (rule.weight, Pass::Weight)] {
                if let Some(gradient) = gradient {
                    self.differentiate(op, pass, &gradient, &weights, &mut gradients);
                }
            }
            for input in rule.passes {
                let passed = reals(&gradients[&op.outputs[0]]);
                let (mut buffer, accumulate) = self.taken(op.inputs[input], &mut gradients);
                let mut sum = reals(&buffer);
                for (sum, passed) in sum.iter_mut().zip(passed) {
                    *sum = if accumulate { *sum + passed } else { passed };
                }
                self.memory.device().set_reals(&sum, buffer.view_mut());
                gradients.insert(op.inputs[input], buffer);
            }
        }
        let parameters = self.graph.parameters();
        parameters.map(|(id, _)| (id, reals(&gradients[&id]))).collect()
    }

    fn differentiate<'w>(
        &self,
        op: &Op,
        pass: Pass,
        gradient: &GradientOp,
        weights: &impl WeightsOf<'w>,
        gradients: &mut BTreeMap<ValueId, Buffer>,
    ) {
        let read: Vec<ValueId> = gradient
            .reads
            .iter()
            .map(|&operand| match operand {
                Operand::Input(index) => op.inputs[index],
                Operand::Output(index) => op.outputs[index],
                Operand::OutputGradient => op.outputs[0],
                Operand::InputGradient(index) => op.inputs[index],
            })
            .collect();
        let produced: Vec<ValueId> =
            gradient.produces.iter().map(|&index| op.inputs[index]).collect();
        let mut taken: Vec<(Buffer, bool)> =
            produced.iter().map(|&id| self.taken(id, gradients)).collect();
        let (read_shapes, shapes) = (self.shapes(&read), self.shapes(&produced));
        let read_weights: Vec<Option<Buffer>> =
            read.iter().map(|&id| self.weight(op, id, weights)).collect();
        let reads: Vec<Input> = read
            .iter()
            .zip(&read_weights)
            .zip(&gradient.reads)
            .zip(&read_shapes)
            .map(|(((id, weight), operand), shape)| {
                let data = match operand {
                    Operand::OutputGradient | Operand::InputGradient(_) => gradients[id].view(),
                    _ => self.data(op, *id, weight),
                };
                Input { shape, data }
            })
            .collect();
        let mut writes: Vec<Output> = taken
            .iter_mut()
            .zip(&shapes)
            .map(|((buffer, accumulate), shape)| Output {
                shape,
                data: buffer.view_mut(),
                accumulate: *accumulate,
            })
            .collect();
        self.run(op, pass, &reads, &mut writes);
        drop(writes);
        gradients.extend(produced.into_iter().zip(taken.into_iter().map(|(buffer, _)| buffer)));
    }

    /// The gradient of a value as far as it is summed up, and whether there is any yet.
    fn taken(&self, id: ValueId, gradients: &mut BTreeMap<ValueId, Buffer>) -> (Buffer, bool) {
        let elements = self.extents.elements(&self.graph.value(id).axes);
        match gradients.remove(&id) {
            Some(buffer) => (buffer, true),
            None => (self.memory.alloc(Format::F32, elements), false),
        }
    }

    fn shapes(&self, ids: &[ValueId]) -> Vec<Vec<usize>> {
        ids.iter().map(|&id| self.extents.shape(&self.graph.value(id).axes)).collect()
    }

    fn format(&self, id: ValueId) -> Format {
        match self.graph.value(id).dtype {
            shardloom_graph::DType::Real | shardloom_graph::DType::Float => Format::F32,
            shardloom_graph::DType::Index => Format::U32,
            shardloom_graph::DType::Mask => Format::U8,
        }
    }

    fn run(&self, op: &Op, pass: Pass, reads: &[Input<'_>], writes: &mut [Output<'_>]) {
        let device = self.memory.device();
        let size = |shape, format| OperandSize { shape, format };
        let read: Vec<_> = reads.iter().map(|it| size(it.shape, it.data.format())).collect();
        let written: Vec<_> = writes.iter().map(|it| size(it.shape, it.data.format())).collect();
        let elements = device.scratch_elements(&op.kind, pass, &read, &written);
        let mut scratch = self.memory.alloc(Format::F32, elements);
        let setting = self.setting(op);
        let kernel = Kernel { kind: &op.kind, pass, setting: &setting };
        device.run(kernel, reads, writes, scratch.view_mut());
    }

    /// The weight that an operator reads, if the value is one.
    fn weight<'w>(&self, op: &Op, id: ValueId, weights: &impl WeightsOf<'w>) -> Option<Buffer> {
        self.graph.value(id).parameter()?;
        let values = weights(op, id);
        let mut buffer = self.memory.alloc(Format::F32, values.len());
        self.memory.device().set_reals(values, buffer.view_mut());
        Some(buffer)
    }

    /// What an operator reads: the weight, if the value is one.
    fn data<'d>(&'d self, op: &Op, id: ValueId, weight: &'d Option<Buffer>) -> View<'d> {
        if let Some(weight) = weight {
            return weight.view();
        }
        let own =
            self.graph.value(id).producer.is_some_and(|it| self.graph.op(it).block == op.block);
        let again = self.again.get(&id).filter(|_| own);
        again.unwrap_or_else(|| &self.values[&id]).view()
    }

    /// Dropout masks belong to the samples' places in the step; the loss is a mean over the step.
    fn setting(&self, op: &Op) -> Setting {
        let Place { seed, step, global_batch, samples: _, first_sample } = self.place;
        let mask = op.kind.dropout().map(|_| {
            let axes = &self.graph.value(op.outputs[1]).axes;
            let batch = self.graph.batch();
            let global = Extents::global(self.graph, global_batch);
            Window {
                extent: self.extents.shape(axes).into(),
                start: axes
                    .iter()
                    .map(|&dim| if dim == batch { first_sample } else { 0 })
                    .collect(),
                global: global.shape(axes).into(),
            }
        });
        let targets = global_batch * self.graph.targets_per_sample();
        Setting {
            mask,
            first_position: 0,
            first_index: 0,
            loss_scale: 1.0 / targets as f32,
            key: Key { seed, stream: stream(&op.name), step },
        }
    }
}

/// The random stream of an operator: the first eight bytes of its name's digest (BLAKE3).
fn stream(name: &str) -> u64 {
    let digest = blake3::hash(name.as_bytes());
    let first: [u8; 8] = std::array::from_fn(|byte| digest.as_bytes()[byte]);
    u64::from_le_bytes(first)
}

fn reals(buffer: &Buffer) -> Vec<f32> {
    buffer.device().reals(buffer.view())
}
