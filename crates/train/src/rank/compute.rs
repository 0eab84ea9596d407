//! Kernels: passes of operators.

use std::ops::Range;

use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, OpKind};
use shardloom_kernels::device::{self, Input, Output, Setting};
use shardloom_kernels::random::Key;
use shardloom_kernels::{Buffer, window};
use shardloom_program::{Assignment, Instruction, Window};
use smallvec::SmallVec;

use super::arena::Room;
use super::classes::Decision;
use super::link::{Begins, Linker};
use super::rows::Routing;
use super::store::Slot;
use super::{At, Rank, Shared};
use crate::Result;

/// One thing for each tensor that an operator writes; on the heap only beyond four, as the gradients of a
/// concatenation of many may be.
type FewWrites<T> = SmallVec<[T; 4]>;

/// One pass of an operator.
pub(crate) struct Kernel {
    kind: OpKind,
    pass: Pass,
    reads: Box<[Read]>,
    /// The tensors that are written.
    written: Box<[Room]>,
    /// The parts of them that are written, in the order in which they lie in these.
    targets: Box<[Target]>,
    /// What brings them into the order of the operator's writes, if swapped one after the other.
    swaps: Box<[(usize, usize)]>,
    /// Which of the rank's settings is its own, and what of it depends on the micro-batch.
    setting: usize,
    starts: Starts,
    /// What is noted of the rows that it deals to experts.
    routing: Option<Routing>,
    /// What is noted of the classes that samples get, in an evaluation.
    decision: Option<Decision>,
}

/// Where a kernel reads.
struct Read {
    slot: Slot,
    /// Which elements, if not all.
    range: Option<Range<usize>>,
    shape: Box<[usize]>,
}

/// Where a kernel writes.
struct Target {
    /// Its place among the operator's writes.
    index: usize,
    /// Which of the written tensors.
    tensor: usize,
    /// Which elements of it.
    range: Range<usize>,
    shape: Box<[usize]>,
    begins: Begins,
}

/// Where the device's part of loops begins.
struct Starts {
    /// Of those of the dropout mask.
    mask: Box<[Start]>,
    sample: Start,
    position: Start,
    index: Start,
}

/// Where the device's part of a loop begins.
#[derive(Clone, Copy)]
struct Start {
    /// In the first micro-batch of a step.
    first: usize,
    /// How much later in each that follows.
    each: usize,
}

impl Start {
    /// Of what no loop goes over.
    const NONE: Start = Start { first: 0, each: 0 };

    /// In a micro-batch of a step.
    fn of(self, microbatch: usize) -> usize {
        self.first + microbatch * self.each
    }
}

impl Kernel {
    /// Links a pass of an operator.
    pub(super) fn link(
        linker: &mut Linker<'_>,
        (op, pass, assignment): (OpId, Pass, &Assignment),
        instruction: &Instruction,
    ) -> Kernel {
        let Linker { class, position, shared, .. } = *linker;
        let node = shared.graph.op(op);
        let evaluates = class.evaluation.contains(&linker.body);
        let drops = node.kind.dropout().is_some();
        let mut rooms = vec![];
        let mut written = vec![];
        let mut targets = vec![];
        for (index, write) in instruction.writes.iter().enumerate() {
            let id = write.to.tensor;
            let tensor = written.iter().position(|&it| it == id).unwrap_or_else(|| {
                written.push(id);
                rooms.push(linker.room(id));
                written.len() - 1
            });
            // Without dropout there is no mask to make.
            if index > 0 && evaluates && drops && pass == Pass::Forward {
                continue;
            }
            let range = class.view_range(write.to, position);
            let shape = match write.to.window {
                // Rows of a table, each as long as all are.
                Window::Next { .. } => {
                    let columns = &class.shape(write.to)[1..];
                    let rows = range.len() / columns.iter().product::<usize>().max(1);
                    std::iter::once(rows).chain(columns.iter().copied()).collect()
                }
                _ => class.shape(write.to).into(),
            };
            targets.push(Target { index, tensor, range, shape, begins: Begins::of(*write) });
        }
        // Several gradients may lie in one tensor.
        targets.sort_unstable_by_key(|it| (it.tensor, it.range.start));
        let swaps = sorting_swaps(targets.iter().map(|it| it.index).collect());
        let read = |&view: &shardloom_program::View| {
            let range = match view.window {
                Window::Param(param) => Some(class.param(param).range()),
                Window::Elements { start, end } => Some(start..end),
                Window::Whole | Window::Share | Window::SecondShare | Window::Next { .. } => None,
            };
            Read { slot: linker.slot(view), range, shape: class.shape(view).into() }
        };
        let reads = instruction.reads.iter().map(read).collect();
        let (setting, starts) = setting(linker, op, assignment, evaluates);
        let first = (starts.sample.first, starts.index.first);
        let decision = evaluates.then(|| Decision::link(linker, op, instruction, first)).flatten();
        let routing = match pass {
            Pass::Forward => Routing::link(linker, op, instruction),
            Pass::Input | Pass::Weight => None,
        };
        linker.settings.push(setting);
        Kernel {
            kind: if evaluates { node.kind.in_evaluation() } else { node.kind },
            pass,
            reads,
            written: rooms.into(),
            targets: targets.into(),
            swaps,
            setting: linker.settings.len() - 1,
            starts,
            routing,
            decision,
        }
    }

    /// What is noted of the rows that it deals to experts.
    pub(super) fn routing(&self) -> Option<&Routing> {
        self.routing.as_ref()
    }
}

/// What sorts a permutation, swapped one after the other.
fn sorting_swaps(mut order: Vec<usize>) -> Box<[(usize, usize)]> {
    let mut swaps = vec![];
    for place in 0..order.len() {
        let found = (place..order.len()).min_by_key(|&at| order[at]).unwrap_or(place);
        if found != place {
            order.swap(place, found);
            swaps.push((place, found));
        }
    }
    swaps.into()
}

/// What an operator depends on besides tensors, as in the first micro-batch of the first step, and what of it
/// depends on the micro-batch.
fn setting(
    linker: &Linker<'_>,
    op: OpId,
    assignment: &Assignment,
    evaluates: bool,
) -> (Setting, Starts) {
    let Linker { class, position, shared, extents, .. } = *linker;
    let (graph, program, mesh) = (&shared.graph, &shared.program, &class.mesh);
    let node = graph.op(op);
    let is_batch = |each: usize| node.signature.loops[each].dim == graph.batch();
    // How much of each loop is this device's part, and where that begins.
    let local = |each: usize| {
        extents.get(node.signature.loops[each].dim) / mesh.span(&assignment.loops[each])
    };
    let start = |each: usize| Start {
        first: mesh.index_along(position, &assignment.loops[each]) * local(each),
        each: if is_batch(each) { program.microbatch_samples } else { 0 },
    };
    let masked = node.mask_loops().filter(|_| !evaluates);
    let mask = masked.as_ref().map(|loops| {
        let global = |each: usize| match is_batch(each) {
            true => program.global_batch,
            false => extents.get(node.signature.loops[each].dim),
        };
        window::Window {
            extent: loops.iter().map(|&each| local(each)).collect(),
            start: loops.iter().map(|&each| start(each).first).collect(),
            global: loops.iter().map(|&each| global(each)).collect(),
        }
    });
    let starts = Starts {
        mask: masked.into_iter().flatten().map(start).collect(),
        sample: (0..node.signature.loops.len()).find(|&it| is_batch(it)).map_or(Start::NONE, start),
        position: node.position_loop().map_or(Start::NONE, start),
        index: node.index_loop().map_or(Start::NONE, start),
    };
    let setting = Setting {
        mask,
        first_position: starts.position.first,
        first_index: starts.index.first,
        loss_scale: 1.0 / targets(shared) as f32,
        key: Key { seed: shared.seed, stream: stream(&node.name), step: 0 },
    };
    (setting, starts)
}

/// The targets of a step, over which the loss is the mean.
pub(super) fn targets(shared: &Shared) -> usize {
    shared.program.global_batch * shared.graph.targets_per_sample()
}

impl Rank {
    /// Has backward passes begin with the gradient of the loss times `scale`.
    pub(super) fn set_loss_scale(&mut self, scale: f64) {
        self.loss_scale = scale;
        let factor = scale as f32 / self.targets as f32;
        self.settings.iter_mut().for_each(|setting| setting.loss_scale = factor);
    }

    /// Runs one pass of an operator.
    ///
    /// # Errors
    /// If rows are dealt to an expert that has no room for them, and that is to stop the run.
    pub(super) fn compute(&mut self, kernel: &Kernel, at: At) -> Result<()> {
        let microbatches = self.shared.program.microbatches;
        let step = self.now.first_step + self.step_of(at.microbatch());
        let Rank { shared, scratch, arena, store, parameters, settings, .. } = self;
        let setting = &mut settings[kernel.setting];
        let microbatch = at.microbatch() as usize % microbatches;
        let Starts { mask, position, index, .. } = &kernel.starts;
        setting.key.step = step;
        setting.first_position = position.of(microbatch);
        setting.first_index = index.of(microbatch);
        if let Some(window) = &mut setting.mask {
            let starts = window.start.iter_mut().zip(mask);
            starts.for_each(|(start, linked)| *start = linked.of(microbatch));
        }

        // What is written is taken out first, so that the rest can be read meanwhile.
        let mut written: FewWrites<Buffer> = FewWrites::new();
        for room in &kernel.written {
            written.push(store.take(room.slot, at).unwrap_or_else(|| arena.take(room, at)));
        }
        let reads: SmallVec<[Input<'_>; 6]> = kernel
            .reads
            .iter()
            .map(|Read { slot, range, shape }| {
                let whole = store.get(*slot, at).view();
                let data = range.as_ref().map_or(whole, |range| whole.slice(range.clone()));
                Input { shape, data }
            })
            .collect();
        let mut outputs: FewWrites<Output<'_>> = FewWrites::new();
        let mut targets = kernel.targets.iter().peekable();
        for (tensor, buffer) in written.iter_mut().enumerate() {
            let (mut rest, mut passed) = (buffer.view_mut(), 0);
            while let Some(target) = targets.next_if(|it| it.tensor == tensor) {
                let Target { range, shape, begins, .. } = target;
                let start = match *begins {
                    Begins::Behind(tensor) => parameters.sums.fill(tensor, range.len()),
                    _ => range.start,
                };
                let (_, behind) = rest.split_at(start - passed);
                let (data, tail) = behind.split_at(range.len());
                (rest, passed) = (tail, start + range.len());
                let accumulate = !parameters.sums.begin(*begins);
                outputs.push(Output { shape, data, accumulate });
            }
        }
        kernel.swaps.iter().for_each(|&(one, other)| outputs.swap(one, other));
        let of = device::Kernel { kind: &kernel.kind, pass: kernel.pass, setting };
        let scratch = scratch.as_mut().expect("one instruction runs at a time");
        shared.device.run(of, &reads, &mut outputs, scratch.view_mut());
        drop((reads, outputs));
        for (room, buffer) in kernel.written.iter().zip(written) {
            store.put(room.slot, at, buffer);
        }
        if let Some(decision) = &kernel.decision {
            self.note_classes(decision, at);
        }
        match &kernel.routing {
            Some(routing) => self.note_rows(routing, at),
            None => Ok(()),
        }
    }

    /// The step that a micro-batch belongs to, counted from the one that micro-batches are counted from.
    fn step_of(&self, microbatch: u32) -> u64 {
        u64::from(microbatch) / self.shared.program.microbatches as u64
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

#[cfg(test)]
mod tests {
    use super::sorting_swaps;

    #[test]
    fn swaps_sort_every_order() {
        let orders = (0..4_usize.pow(4)).map(|code| [0, 1, 2, 3].map(|at| code >> (2 * at) & 3));
        let orders = orders.filter(|order| (0..4).all(|index| order.contains(&index)));
        let mut count = 0;
        for mut order in orders {
            let swaps = sorting_swaps(order.to_vec());
            swaps.iter().for_each(|&(one, other)| order.swap(one, other));
            assert_eq!(order, [0, 1, 2, 3]);
            count += 1;
        }
        assert_eq!(count, 24);
    }
}
