//! One micro-batch's way through the model and back, on whole tensors, operator by operator.

use std::collections::BTreeMap;

use shardloom_graph::gradient::{GradientOp, Operand, rule};
use shardloom_graph::work::Pass;
use shardloom_graph::{Extents, Graph, Op, OpId, ValueId};
use shardloom_kernels::dispatch::{self, Data, DataMut, Input, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, DType, Memory};

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
        let memory = Memory::new();
        let inputs = graph.inputs().map(|(id, value)| {
            let indices = indices(&value.name);
            let mut buffer = memory.alloc(DType::U32, indices.len());
            buffer.as_u32_mut().copy_from_slice(&indices);
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
        f64::from(self.values[&self.graph.loss()].as_f32()[0])
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
            .map(|(&id, shape)| self.memory.alloc(self.dtype(id), shape.iter().product()))
            .collect();
        let reads: Vec<Input> = op
            .inputs
            .iter()
            .zip(&read_shapes)
            .map(|(&id, shape)| Input { shape, data: self.data(op, id, weights) })
            .collect();
        let mut writes: Vec<Output> = buffers
            .iter_mut()
            .zip(&shapes)
            .map(|(buffer, shape)| Output { shape, data: view_mut(buffer), accumulate: false })
            .collect();
        let setting = self.setting(op);
        dispatch::run(&op.kind, Pass::Forward, &reads, &mut writes, &setting, &self.memory);
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
                let passed = gradients[&op.outputs[0]].as_f32().to_vec();
                let (mut buffer, accumulate) = self.taken(op.inputs[input], &mut gradients);
                for (sum, passed) in buffer.as_f32_mut().iter_mut().zip(passed) {
                    *sum = if accumulate { *sum + passed } else { passed };
                }
                gradients.insert(op.inputs[input], buffer);
            }
        }
        let parameters = self.graph.parameters();
        parameters.map(|(id, _)| (id, gradients[&id].as_f32().to_vec())).collect()
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
            })
            .collect();
        let produced: Vec<ValueId> =
            gradient.produces.iter().map(|&index| op.inputs[index]).collect();
        let mut taken: Vec<(Buffer, bool)> =
            produced.iter().map(|&id| self.taken(id, gradients)).collect();
        let (read_shapes, shapes) = (self.shapes(&read), self.shapes(&produced));
        let reads: Vec<Input> = read
            .iter()
            .zip(&gradient.reads)
            .zip(&read_shapes)
            .map(|((id, operand), shape)| {
                let data = match operand {
                    Operand::OutputGradient => Data::F32(gradients[id].as_f32()),
                    _ => self.data(op, *id, weights),
                };
                Input { shape, data }
            })
            .collect();
        let mut writes: Vec<Output> = taken
            .iter_mut()
            .zip(&shapes)
            .map(|((buffer, accumulate), shape)| {
                let data = DataMut::F32(buffer.as_f32_mut());
                Output { shape, data, accumulate: *accumulate }
            })
            .collect();
        let setting = self.setting(op);
        dispatch::run(&op.kind, pass, &reads, &mut writes, &setting, &self.memory);
        drop(writes);
        gradients.extend(produced.into_iter().zip(taken.into_iter().map(|(buffer, _)| buffer)));
    }

    /// The gradient of a value as far as it is summed up, and whether there is any yet.
    fn taken(&self, id: ValueId, gradients: &mut BTreeMap<ValueId, Buffer>) -> (Buffer, bool) {
        let elements = self.extents.elements(&self.graph.value(id).axes);
        match gradients.remove(&id) {
            Some(buffer) => (buffer, true),
            None => (self.memory.alloc(DType::F32, elements), false),
        }
    }

    fn shapes(&self, ids: &[ValueId]) -> Vec<Vec<usize>> {
        ids.iter().map(|&id| self.extents.shape(&self.graph.value(id).axes)).collect()
    }

    fn dtype(&self, id: ValueId) -> DType {
        match self.graph.value(id).dtype {
            shardloom_graph::DType::Real | shardloom_graph::DType::Float => DType::F32,
            shardloom_graph::DType::Index => DType::U32,
            shardloom_graph::DType::Mask => DType::U8,
        }
    }

    fn data<'w, 's: 'd, 'd>(
        &'s self,
        op: &Op,
        id: ValueId,
        weights: &impl WeightsOf<'w>,
    ) -> Data<'d>
    where
        'w: 'd,
    {
        let value = self.graph.value(id);
        if value.parameter().is_some() {
            return Data::F32(weights(op, id));
        }
        let own = value.producer.is_some_and(|it| self.graph.op(it).block == op.block);
        let again = self.again.get(&id).filter(|_| own);
        let buffer = again.unwrap_or_else(|| &self.values[&id]);
        match buffer.dtype() {
            DType::F32 => Data::F32(buffer.as_f32()),
            DType::U8 => Data::U8(buffer.as_u8()),
            DType::U32 => Data::U32(buffer.as_u32()),
        }
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

fn view_mut(buffer: &mut Buffer) -> DataMut<'_> {
    match buffer.dtype() {
        DType::F32 => DataMut::F32(buffer.as_f32_mut()),
        DType::U8 => DataMut::U8(buffer.as_u8_mut()),
        DType::U32 => DataMut::U32(buffer.as_u32_mut()),
    }
}
