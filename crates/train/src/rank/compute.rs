//! Kernels and local combinations.

use std::ops::Range;

use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, OpKind};
use shardloom_kernels::dispatch::{self, Data, DataMut, Input, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::{Buffer, reduce, window};
use shardloom_program::{Assignment, Instruction, Mode, TensorId, View, Window};
use smallvec::SmallVec;

use super::Rank;
use super::store::storage;
use crate::source;

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
        let Rank { shared, class, position, memory, arena, store, parameters, .. } = self;
        let class = shared.program.class(*class);
        let kind = match setting.evaluating {
            true => without_dropout(shared.graph.op(op).kind),
            false => shared.graph.op(op).kind,
        };

        // What is written is taken out first, so that the rest can be read meanwhile.
        let mut written: FewWrites<(TensorId, Buffer)> = FewWrites::new();
        let mut targets: FewWrites<Target> = FewWrites::new();
        for (index, write) in instruction.writes.iter().enumerate() {
            let tensor = write.to.tensor;
            let at = written.iter().position(|(id, _)| *id == tensor).unwrap_or_else(|| {
                let buffer = store.take(tensor, microbatch).unwrap_or_else(|| {
                    let (dtype, _) = storage(class.tensor(tensor).format);
                    arena.take(tensor, dtype, class.elements(tensor, *position))
                });
                written.push((tensor, buffer));
                written.len() - 1
            });
            let accumulate = match (write.mode, write.to.window) {
                (Mode::AddUnlessFirst, Window::Param(param)) => !parameters.sums.begin_param(param),
                (mode, _) => mode != Mode::Set,
            };
            let range = class.view_range(write.to, *position);
            targets.push(Target { index, buffer: at, range, accumulate });
        }
        let reads: SmallVec<[Input<'_>; 6]> = instruction
            .reads
            .iter()
            .map(|&read| {
                let data = view(store.get(read.tensor, microbatch));
                let data = match (data, read.window) {
                    (Data::F32(values), Window::Param(param)) => {
                        Data::F32(&values[class.param(param).range()])
                    }
                    (whole, _) => whole,
                };
                Input { shape: class.shape(read), data }
            })
            .collect();
        // Several gradients may lie in one buffer.
        targets.sort_unstable_by_key(|it| (it.buffer, it.range.start));
        let mut outputs: FewWrites<(usize, Output<'_>)> = FewWrites::new();
        let mut pending = targets.into_iter().peekable();
        for (at, (_, buffer)) in written.iter_mut().enumerate() {
            let (mut rest, mut passed) = (view_mut(buffer), 0);
            while let Some(Target { index, range, accumulate, .. }) =
                pending.next_if(|it| it.buffer == at)
            {
                let (data, tail) = cut(rest, range.start - passed, range.len());
                (rest, passed) = (tail, range.end);
                let shape = class.shape(instruction.writes[index].to);
                outputs.push((index, Output { shape, data, accumulate }));
            }
        }
        outputs.sort_unstable_by_key(|&(index, _)| index);
        let mut outputs: FewWrites<Output<'_>> = outputs.into_iter().map(|(_, it)| it).collect();
        if setting.evaluating
            && pass == Pass::Forward
            && shared.graph.op(op).kind.dropout().is_some()
        {
            // Without dropout there is no mask to make.
            outputs.truncate(1);
        }
        dispatch::run(&kind, pass, &reads, &mut outputs, &setting.setting, memory);
        drop((reads, outputs));
        for (tensor, buffer) in written {
            store.put(tensor, microbatch, buffer);
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
        let evaluating = self.now.part == source::Part::Validation;
        let mask = node.kind.dropout().filter(|_| !evaluating).map(|_| {
            let loops = &node.signature.outputs[1];
            let global = |each: usize| match node.signature.loops[each].dim {
                dim if dim == graph.batch() => program.global_batch,
                dim => extents.get(dim),
            };
            window::Window {
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
    pub(crate) fn reals(&self, value: View) -> &[f32] {
        self.store.get(value.tensor, 0).as_f32()
    }

    /// Adds or copies one tensor to another.
    pub(super) fn combine(&mut self, instruction: &Instruction, microbatch: u32) {
        if instruction.is_move() {
            let (from, to) = (instruction.reads[0].tensor, instruction.writes[0].to.tensor);
            let moved = self.store.take(from, microbatch).expect("read tensors are held");
            self.store.put(to, microbatch, moved);
            return;
        }
        for (read, write) in instruction.reads.iter().zip(&instruction.writes) {
            let to = write.to.tensor;
            let class = self.class();
            let [from, into] = [*read, write.to].map(|view| class.view_range(view, self.position));
            let (dtype, _) = storage(class.tensor(to).format);
            let elements = class.elements(to, self.position);
            let taken = self.store.take(to, microbatch);
            let mut target = taken.unwrap_or_else(|| self.arena.take(to, dtype, elements));
            let source = &self.store.get(read.tensor, microbatch).as_f32()[from];
            match write.mode {
                Mode::Set => target.as_f32_mut()[into].copy_from_slice(source),
                Mode::Add | Mode::AddUnlessFirst => {
                    reduce::sum_into(&mut target.as_f32_mut()[into], source);
                }
            }
            self.store.put(to, microbatch, target);
            self.count_back(read.tensor, to);
        }
    }

    /// Notes the loss of a micro-batch. One that is run once more has the loss that it comes to then.
    pub(super) fn note_loss(&mut self, instruction: &Instruction, microbatch: u32) {
        let loss = instruction.reads[0].tensor;
        let loss = f64::from(self.store.get(loss, microbatch).as_f32()[0]);
        match self.losses.iter_mut().find(|(of, _)| *of == microbatch) {
            Some((_, known)) => *known = loss,
            None => self.losses.push((microbatch, loss)),
        }
    }

    /// The sum of the losses of a step of the row, which are not needed any more.
    pub(super) fn take_loss(&mut self, step: u64) -> Option<f64> {
        let microbatches = self.shared.program.microbatches as u64;
        let mut sum = None;
        self.losses.retain(|&(microbatch, loss)| {
            let is_of_step = u64::from(microbatch) / microbatches == step;
            if is_of_step {
                *sum.get_or_insert(0.0) += loss;
            }
            !is_of_step
        });
        sum
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

/// Where an operator writes.
struct Target {
    /// Its place among the operator's writes.
    index: usize,
    /// Which of the written buffers.
    buffer: usize,
    /// Which elements of it.
    range: Range<usize>,
    accumulate: bool,
}

/// The elements of `data` after the first `skip`, as many as wanted, and those behind them.
fn cut(data: DataMut<'_>, skip: usize, len: usize) -> (DataMut<'_>, DataMut<'_>) {
    match data {
        DataMut::F32(values) => {
            let (own, tail) = values[skip..].split_at_mut(len);
            (DataMut::F32(own), DataMut::F32(tail))
        }
        DataMut::U8(values) => {
            let (own, tail) = values[skip..].split_at_mut(len);
            (DataMut::U8(own), DataMut::U8(tail))
        }
        DataMut::U32(values) => {
            let (own, tail) = values[skip..].split_at_mut(len);
            (DataMut::U32(own), DataMut::U32(tail))
        }
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
