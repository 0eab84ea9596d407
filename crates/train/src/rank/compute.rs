//! Kernels, loads and local combinations.

use std::collections::BTreeMap;

use shardloom_graph::work::Pass;
use shardloom_graph::{DType, OpId, OpKind, ValueId};
use shardloom_kernels::dispatch::{self, Data, DataMut, Input, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, reduce};
use shardloom_program::{
    Assignment, Instruction, Layout, Operand, Placement, SlotId, Tenant, Write,
};

use super::Rank;
use crate::source::{Field, Part};
use crate::{Error, Result};

impl Rank {
    /// Runs one pass of an operator.
    pub(super) fn compute(
        &mut self,
        op: OpId,
        pass: Pass,
        assignment: &Assignment,
        instruction: &Instruction,
        microbatch: u32,
    ) {
        let setting = self.setting(op, assignment, microbatch);
        let moved = match setting.evaluating {
            true => instruction.reads.iter().map(|_| None).collect(),
            false => self.moved_weights(instruction),
        };
        let Rank { shared, class, memory, arena, slots, parameters, .. } = self;
        let class = shared.program.class(*class);
        let kind = match setting.evaluating {
            true => without_dropout(shared.graph.op(op).kind),
            false => shared.graph.op(op).kind,
        };

        // What is written is taken out first, so that the rest can be read meanwhile.
        let mut written: Vec<Option<(SlotId, Buffer)>> = vec![];
        let mut gradient_writes: Vec<(usize, &Write)> = vec![];
        for (index, write) in instruction.writes.iter().enumerate() {
            written.push(match write.to {
                Operand::Slot(slot) => {
                    let spec = class.slot(slot);
                    let buffer = slots.take(slot, microbatch).unwrap_or_else(|| {
                        let tenant = Tenant::Slot(slot, Some(microbatch));
                        arena.take(tenant, kernel_type(spec.dtype), spec.shape.iter().product())
                    });
                    Some((slot, buffer))
                }
                Operand::Gradient(_) => {
                    gradient_writes.push((index, write));
                    None
                }
                Operand::Weight(_) | Operand::Norm => {
                    unreachable!("only an update writes weights, and no operator a norm")
                }
            });
        }
        let params: Vec<_> = gradient_writes
            .iter()
            .map(|(_, write)| match write.to {
                Operand::Gradient(param) => param,
                _ => unreachable!("collected above"),
            })
            .collect();
        let (weights, gradients) = parameters.weights_and_gradients(class, arena, &params);
        let reads: Vec<Input<'_>> = instruction
            .reads
            .iter()
            .zip(&moved)
            .map(|(&read, moved)| Input {
                shape: class.shape(read),
                data: match read {
                    Operand::Slot(slot) => view(slots.get(slot, microbatch)),
                    Operand::Weight(param) => Data::F32(match moved {
                        Some(moved) => moved.as_f32(),
                        None => weights.of(class, param),
                    }),
                    Operand::Gradient(_) | Operand::Norm => {
                        unreachable!("no operator reads a weight's gradient or a norm")
                    }
                },
            })
            .collect();
        let mut gradients: BTreeMap<usize, (&mut [f32], bool)> =
            gradient_writes.iter().map(|&(index, _)| index).zip(gradients).collect();
        let mut outputs: Vec<Output<'_>> = vec![];
        for ((index, write), buffer) in instruction.writes.iter().enumerate().zip(&mut written) {
            let (data, accumulate) = match buffer {
                Some((_, buffer)) => (view_mut(buffer), write.accumulate),
                None => {
                    let (slice, accumulate) =
                        gradients.remove(&index).expect("one slice for each gradient written");
                    (DataMut::F32(slice), accumulate)
                }
            };
            outputs.push(Output { shape: class.shape(write.to), data, accumulate });
        }
        if setting.evaluating
            && pass == Pass::Forward
            && shared.graph.op(op).kind.dropout().is_some()
        {
            // Without dropout there is no mask to make.
            outputs.truncate(1);
        }
        dispatch::run(&kind, pass, &reads, &mut outputs, &setting.setting, memory);
        drop(outputs);
        for (slot, buffer) in written.into_iter().flatten() {
            slots.put(slot, microbatch, buffer);
        }
    }

    /// The step that a micro-batch belongs to, counted from the one that micro-batches are counted from.
    fn step_of(&self, microbatch: u32) -> u64 {
        u64::from(microbatch) / self.shared.program.microbatches as u64
    }

    fn setting(&self, op: OpId, assignment: &Assignment, microbatch: u32) -> OpSetting {
        let graph = &self.shared.graph;
        let program = &self.shared.program;
        let mesh = &self.class().mesh;
        let node = graph.op(op);
        let extents = program.microbatch_extents(graph);
        let samples = program.microbatch_samples;
        // Where this device's part of each loop begins.
        let start = |each: usize| {
            let axes = &assignment.loops[each];
            let dim = node.signature.loops[each].dim;
            let local = extents.get(dim) / mesh.span(axes);
            let first = mesh.index_along(self.position, axes) * local;
            match dim == graph.batch() {
                true => microbatch as usize % program.microbatches * samples + first,
                false => first,
            }
        };
        let start_of = |name: &str| {
            let dim = graph.dim_named(name);
            let found = node.signature.loops.iter().position(|each| Some(each.dim) == dim);
            found.map_or(0, start)
        };
        let evaluating = self.now.part == Part::Validation;
        let mask = node.kind.dropout().filter(|_| !evaluating).map(|_| {
            let loops = &node.signature.outputs[1];
            let dims: Vec<_> = loops.iter().map(|&each| node.signature.loops[each].dim).collect();
            let spans = loops.iter().map(|&each| mesh.span(&assignment.loops[each]));
            Window {
                extent: dims
                    .iter()
                    .zip(spans)
                    .map(|(&dim, span)| extents.get(dim) / span)
                    .collect(),
                start: loops.iter().map(|&each| start(each)).collect(),
                global: dims
                    .iter()
                    .map(|&dim| match dim == graph.batch() {
                        true => program.global_batch,
                        false => extents.get(dim),
                    })
                    .collect(),
            }
        });
        let terms = program.global_batch * graph.targets_per_sample();
        let setting = Setting {
            mask,
            first_position: start_of("seq"),
            first_index: start_of("vocab"),
            loss_scale: 1.0 / terms as f32,
            key: Key {
                seed: self.shared.seed,
                stream: stream(&node.name),
                step: self.now.first_step + self.step_of(microbatch),
            },
        };
        OpSetting { setting, evaluating }
    }

    /// Writes this device's part of one input of the micro-batch.
    pub(super) fn load(
        &mut self,
        value: ValueId,
        layout: &Layout,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Result<()> {
        let program = &self.shared.program;
        let graph = &self.shared.graph;
        let node = graph.value(value);
        let global = program.microbatch_extents(graph).shape(&node.axes);
        let placement = layout.placement(&global, &self.class().mesh, self.position);
        let Operand::Slot(slot) = instruction.writes[0].to else {
            unreachable!("data is loaded into slots")
        };
        let dtype = kernel_type(node.dtype);
        let tenant = Tenant::Slot(slot, Some(microbatch));
        let mut buffer = self.arena.take(tenant, dtype, placement.elements());
        let row = placement.elements() / placement.extent[0];
        let first = match self.now.part {
            Part::Training => microbatch as u64 * program.microbatch_samples as u64,
            Part::Validation => 0,
        };
        for (index, sample) in placement.range(0).enumerate() {
            let position = self.now.first_sample + first + sample as u64;
            let missing = || Error::Input { input: node.name.clone(), position };
            let field = self.shared.source.field(self.now.part, position, &node.name);
            let inner = Placement {
                start: placement.start[1..].to_vec(),
                extent: placement.extent[1..].to_vec(),
            };
            let at = index * row..(index + 1) * row;
            match (field.ok_or_else(missing)?, dtype) {
                (Field::Indices(from), shardloom_kernels::DType::U32) => {
                    copy_part(from, &global[1..], &inner, &mut buffer.as_u32_mut()[at])
                        .ok_or_else(missing)?;
                }
                (Field::Reals(from), shardloom_kernels::DType::F32) => {
                    copy_part(from, &global[1..], &inner, &mut buffer.as_f32_mut()[at])
                        .ok_or_else(missing)?;
                }
                _ => return Err(missing()),
            }
        }
        self.slots.put(slot, microbatch, buffer);
        Ok(())
    }

    /// Writes an input of the first micro-batch by hand.
    pub(crate) fn write_indices(&mut self, to: Operand, indices: &[u32]) {
        let Operand::Slot(slot) = to else { unreachable!("data is loaded into slots") };
        let dtype = shardloom_kernels::DType::U32;
        let mut buffer = self.arena.take(Tenant::Slot(slot, Some(0)), dtype, indices.len());
        buffer.as_u32_mut().copy_from_slice(indices);
        self.slots.put(slot, 0, buffer);
    }

    /// A value of the first micro-batch.
    pub(crate) fn reals(&self, operand: Operand) -> &[f32] {
        let Operand::Slot(slot) = operand else { unreachable!("values are in slots") };
        self.slots.get(slot, 0).as_f32()
    }

    /// Adds or copies one slot to another.
    pub(super) fn combine(&mut self, instruction: &Instruction, microbatch: u32) {
        let (Operand::Slot(from), Operand::Slot(to)) =
            (instruction.reads[0], instruction.writes[0].to)
        else {
            unreachable!("sums and copies are made between slots")
        };
        if instruction.is_move() {
            let moved = self.slots.take(from, microbatch).expect("read slots are held");
            self.slots.put(to, microbatch, moved);
            return;
        }
        let elements = self.slots.get(from, microbatch).len();
        let mut target = match self.slots.take(to, microbatch) {
            Some(buffer) => buffer,
            None => {
                let tenant = Tenant::Slot(to, Some(microbatch));
                self.arena.take(tenant, shardloom_kernels::DType::F32, elements)
            }
        };
        let source = self.slots.get(from, microbatch).as_f32();
        match instruction.writes[0].accumulate {
            true => reduce::sum_into(target.as_f32_mut(), source),
            false => target.as_f32_mut().copy_from_slice(source),
        }
        self.slots.put(to, microbatch, target);
    }

    /// Adds the micro-batch's part of the loss to the step's.
    pub(super) fn note_loss(&mut self, instruction: &Instruction, microbatch: u32) {
        let Operand::Slot(slot) = instruction.reads[0] else {
            unreachable!("the loss is in a slot")
        };
        let loss = f64::from(self.slots.get(slot, microbatch).as_f32()[0]);
        let step = self.now.first_step + self.step_of(microbatch);
        *self.losses.entry(step).or_default() += loss;
    }
}

struct OpSetting {
    setting: Setting,
    evaluating: bool,
}

/// The same operator when nothing is dropped.
fn without_dropout(kind: OpKind) -> OpKind {
    match kind {
        OpKind::Dropout { .. } => OpKind::Dropout { probability: 0.0 },
        OpKind::BiasDropoutAdd { .. } => OpKind::BiasDropoutAdd { probability: 0.0 },
        OpKind::AttentionContext { causal, .. } => {
            OpKind::AttentionContext { causal, probability: 0.0 }
        }
        other => other,
    }
}

/// Copies the part `inner` of a row-major tensor of shape `shape`; none if `from` is shorter.
fn copy_part<T: Copy>(from: &[T], shape: &[usize], inner: &Placement, to: &mut [T]) -> Option<()> {
    if from.len() != shape.iter().product::<usize>() {
        return None;
    }
    if shape.is_empty() {
        to.copy_from_slice(from);
        return Some(());
    }
    let zeros = vec![0; shape.len()];
    let extent = &inner.extent;
    shardloom_kernels::window::copy_box(from, shape, &inner.start, to, extent, &zeros, extent);
    Some(())
}

/// The random stream of an operator or parameter: a digest of its name, which does not change when a
/// model is split or extended.
pub(super) fn stream(name: &str) -> u64 {
    let digest = blake3::hash(name.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// How the kernels store a graph's elements: all real numbers are fp32.
pub(crate) fn kernel_type(dtype: DType) -> shardloom_kernels::DType {
    match dtype {
        DType::Real | DType::Float => shardloom_kernels::DType::F32,
        DType::Index => shardloom_kernels::DType::U32,
        DType::Mask => shardloom_kernels::DType::U8,
    }
}

fn view(buffer: &Buffer) -> Data<'_> {
    match buffer.dtype() {
        shardloom_kernels::DType::F32 => Data::F32(buffer.as_f32()),
        shardloom_kernels::DType::U8 => Data::U8(buffer.as_u8()),
        shardloom_kernels::DType::U32 => Data::U32(buffer.as_u32()),
    }
}

fn view_mut(buffer: &mut Buffer) -> DataMut<'_> {
    match buffer.dtype() {
        shardloom_kernels::DType::F32 => DataMut::F32(buffer.as_f32_mut()),
        shardloom_kernels::DType::U8 => DataMut::U8(buffer.as_u8_mut()),
        shardloom_kernels::DType::U32 => DataMut::U32(buffer.as_u32_mut()),
    }
}
