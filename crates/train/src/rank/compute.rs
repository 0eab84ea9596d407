//! Kernels and local combinations.

use shardloom_graph::work::Pass;
use shardloom_graph::{DType, OpId, OpKind};
use shardloom_kernels::dispatch::{self, Data, DataMut, Input, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, reduce};
use shardloom_program::{Assignment, Instruction, Operand, SlotId, Tenant};
use smallvec::SmallVec;

use super::Rank;
use super::corrections::MovedWeights;
use crate::source::Part;

/// One thing for each tensor that an operator writes; on the heap only beyond four, as the gradients of a
/// concatenation of many may be.
pub(super) type FewWrites<T> = SmallVec<[T; 4]>;

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
            true => MovedWeights::new(),
            false => self.moved_weights(instruction),
        };
        let Rank { shared, class, memory, arena, slots, parameters, .. } = self;
        let class = shared.program.class(*class);
        let kind = match setting.evaluating {
            true => without_dropout(shared.graph.op(op).kind),
            false => shared.graph.op(op).kind,
        };

        // What is written is taken out first, so that the rest can be read meanwhile.
        let mut written: FewWrites<Option<(SlotId, Buffer)>> = instruction
            .writes
            .iter()
            .map(|write| match write.to {
                Operand::Slot(slot) => {
                    let spec = class.slot(slot);
                    let buffer = slots.take(slot, microbatch).unwrap_or_else(|| {
                        let tenant = Tenant::Slot(slot, Some(microbatch));
                        arena.take(tenant, kernel_type(spec.dtype), spec.shape.iter().product())
                    });
                    Some((slot, buffer))
                }
                Operand::Gradient(_) => None,
                Operand::Weight(_) | Operand::Norm => {
                    unreachable!("only an update writes weights, and no operator a norm")
                }
            })
            .collect();
        let params = instruction.writes.iter().filter_map(|write| match write.to {
            Operand::Gradient(param) => Some(param),
            _ => None,
        });
        let (weights, gradients) = parameters.weights_and_gradients(class, arena, params);
        let reads: SmallVec<[Input<'_>; 6]> = (0u32..)
            .zip(&instruction.reads)
            .map(|(index, &read)| Input {
                shape: class.shape(read),
                data: match read {
                    Operand::Slot(slot) => view(slots.get(slot, microbatch)),
                    Operand::Weight(param) => {
                        let moved = moved.iter().find(|(moved, _)| *moved == index);
                        Data::F32(match moved {
                            Some((_, moved)) => moved.as_f32(),
                            None => weights.of(class, param),
                        })
                    }
                    Operand::Gradient(_) | Operand::Norm => {
                        unreachable!("no operator reads a weight's gradient or a norm")
                    }
                },
            })
            .collect();
        let mut gradients = gradients.into_iter();
        let mut outputs: FewWrites<Output<'_>> = instruction
            .writes
            .iter()
            .zip(&mut written)
            .map(|(write, buffer)| {
                let (data, accumulate) = match buffer {
                    Some((_, buffer)) => (view_mut(buffer), write.accumulate),
                    None => {
                        let next = gradients.next();
                        let (slice, accumulate) = next.expect("one slice for each gradient");
                        (DataMut::F32(slice), accumulate)
                    }
                };
                Output { shape: class.shape(write.to), data, accumulate }
            })
            .collect();
        if setting.evaluating
            && pass == Pass::Forward
            && shared.graph.op(op).kind.dropout().is_some()
        {
            // Without dropout there is no mask to make.
            outputs.truncate(1);
        }
        dispatch::run(&kind, pass, &reads, &mut outputs, &setting.setting, memory);
        drop((reads, outputs));
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
        let extents = &self.extents;
        let samples = program.microbatch_samples;
        // How much of each loop is this device's part, and where that begins.
        let local = |each: usize| {
            extents.get(node.signature.loops[each].dim) / mesh.span(&assignment.loops[each])
        };
        let start = |each: usize| {
            let first = mesh.index_along(self.position, &assignment.loops[each]) * local(each);
            match node.signature.loops[each].dim == graph.batch() {
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
            let global = |each: usize| match node.signature.loops[each].dim {
                dim if dim == graph.batch() => program.global_batch,
                dim => extents.get(dim),
            };
            Window {
                extent: loops.iter().map(|&each| local(each)).collect(),
                start: loops.iter().map(|&each| start(each)).collect(),
                global: loops.iter().map(|&each| global(each)).collect(),
            }
        });
        let setting = Setting {
            mask,
            first_position: start_of("seq"),
            first_index: start_of("vocab"),
            loss_scale: 1.0 / self.loss_terms as f32,
            key: Key {
                seed: self.shared.seed,
                stream: stream(&node.name),
                step: self.now.first_step + self.step_of(microbatch),
            },
        };
        OpSetting { setting, evaluating }
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
        match self.losses.iter_mut().find(|(of, _)| *of == step) {
            Some((_, sum)) => *sum += loss,
            None => self.losses.push((step, loss)),
        }
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
