//! Kernels and local combinations.

use std::ops::Range;

use shardloom_data::Part;
use shardloom_graph::OpId;
use shardloom_graph::work::Pass;
use shardloom_kernels::device::{HostSliceMut, Input, Kernel, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::{Buffer, Combine, window};
use shardloom_program::{Assignment, Instruction, Mode, TensorId, View, Window};
use smallvec::SmallVec;

use super::Rank;

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
        let Rank { shared, class, position, scratch, arena, store, parameters, .. } = self;
        let class = shared.program.class(*class);
        let kind = match setting.evaluating {
            true => shared.graph.op(op).kind.without_dropout(),
            false => shared.graph.op(op).kind,
        };

        // What is written is taken out first, so that the rest can be read meanwhile.
        let mut written: FewWrites<(TensorId, Buffer)> = FewWrites::new();
        let mut targets: FewWrites<Target> = FewWrites::new();
        for (index, write) in instruction.writes.iter().enumerate() {
            let tensor = write.to.tensor;
            let at = written.iter().position(|(id, _)| *id == tensor).unwrap_or_else(|| {
                let buffer = store
                    .take(tensor, microbatch)
                    .unwrap_or_else(|| arena.take(tensor, class.elements(tensor, *position)));
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
                let whole = store.get(read.tensor, microbatch).view();
                let data = match read.window {
                    Window::Param(param) => whole.slice(class.param(param).range()),
                    Window::Whole | Window::Share => whole,
                };
                Input { shape: class.shape(read), data }
            })
            .collect();
        // Several gradients may lie in one buffer.
        targets.sort_unstable_by_key(|it| (it.buffer, it.range.start));
        let mut outputs: FewWrites<(usize, Output<'_>)> = FewWrites::new();
        let mut pending = targets.into_iter().peekable();
        for (at, (_, buffer)) in written.iter_mut().enumerate() {
            let (mut rest, mut passed) = (buffer.view_mut(), 0);
            while let Some(Target { index, range, accumulate, .. }) =
                pending.next_if(|it| it.buffer == at)
            {
                let (_, behind) = rest.split_at(range.start - passed);
                let (data, tail) = behind.split_at(range.len());
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
        let kernel = Kernel { kind: &kind, pass, setting: &setting.setting };
        let scratch = scratch.as_mut().expect("one instruction runs at a time");
        shared.device.run(kernel, &reads, &mut outputs, scratch.view_mut());
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
        let evaluating = self.now.part == Part::Validation;
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
            first_position: node.position_loop().map_or(0, start),
            first_index: node.index_loop().map_or(0, start),
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
    pub(crate) fn reals(&self, value: View) -> Vec<f32> {
        self.device().reals(self.store.get(value.tensor, 0).view())
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
            let elements = class.elements(to, self.position);
            let taken = self.store.take(to, microbatch);
            let mut target = taken.unwrap_or_else(|| self.arena.take(to, elements));
            let (device, source) = (self.device(), self.store.get(read.tensor, microbatch).view());
            let (source, into) = (source.slice(from), target.view_mut().slice(into));
            match write.mode {
                Mode::Set => device.copy(source, into),
                Mode::Add | Mode::AddUnlessFirst => device.combine(into, source, Combine::Sum),
            }
            self.store.put(to, microbatch, target);
            self.count_back(read.tensor, to);
        }
    }

    /// Notes the loss of a micro-batch. One that is run once more has the loss that it comes to then.
    pub(super) fn note_loss(&mut self, instruction: &Instruction, microbatch: u32) {
        let loss = instruction.reads[0].tensor;
        let mut value = [0.0_f32];
        let loss = self.store.get(loss, microbatch).view();
        self.device().download(loss, HostSliceMut::F32(&mut value));
        let loss = f64::from(value[0]);
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
