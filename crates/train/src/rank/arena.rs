//! A rank's memory with the places that the buffer plan assigned ahead: what comes and goes while it
//! trains or evaluates is in its place, and the system is asked for nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use shardloom_kernels::{Buffer, DType, Memory, dispatch};
use shardloom_program::buffers::PlaceId;
use shardloom_program::{Action, BodyId, ClassId, Instruction, StreamItem, TensorId};

use super::Shared;

/// The places of one rank.
pub(super) struct Arena {
    shared: Arc<Shared>,
    class: ClassId,
    memory: Memory,
    /// How often the system had been asked when the arena was there.
    reserved: usize,
    now: Now,
}

/// The instruction that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    body: BodyId,
    row: u32,
    instruction: u32,
}

impl Arena {
    /// Asks the system for all that ranks of `class` take while they run, in `memory`.
    pub fn new(shared: &Arc<Shared>, class: ClassId, memory: &Memory) -> Arena {
        memory.reserve(shared.buffers[class.0 as usize].arena_bytes as usize);
        // The kernels' scratch is a freed block, of which each needs at most one at a time.
        for elements in scratch_sizes(shared, class) {
            drop(memory.alloc(DType::F32, elements));
        }
        memory.reset_peak();
        let now = Now { body: BodyId(0), row: 0, instruction: 0 };
        let reserved = memory.system_allocations();
        Arena { shared: Arc::clone(shared), class, memory: memory.clone(), reserved, now }
    }

    /// How often the system was asked after that.
    pub fn system_allocations(&self) -> usize {
        self.memory.system_allocations() - self.reserved
    }

    /// Comes to an entry of the stream in the n-th step in a row.
    pub fn begin_item(&mut self, item: &StreamItem, step: u32) {
        let row = self.shared.buffers[self.class.0 as usize].row(item, step);
        self.now = Now { body: item.body, row, instruction: 0 };
    }

    /// Goes to the n-th instruction of the entry's body.
    pub fn go_to(&mut self, instruction: u32) {
        self.now.instruction = instruction;
    }

    /// Where it is, to come back to.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Comes back to where it was.
    pub fn go_back(&mut self, now: Now) {
        self.now = now;
    }

    /// The current instruction, by its body and its number there.
    pub fn instruction(&self) -> (BodyId, u32) {
        (self.now.body, self.now.instruction)
    }

    /// A buffer at the place of `tensor`, which the current instruction allocates; its contents are
    /// unspecified.
    ///
    /// # Panics
    /// If the plan has no place for it or another tensor is there: a mistake in the plan.
    pub fn take(&self, tensor: TensorId, dtype: DType, elements: usize) -> Buffer {
        let Now { body, row, instruction } = self.now;
        let plan = &self.shared.buffers[self.class.0 as usize];
        let class = self.shared.program.class(self.class);
        let Some(id) = plan.find(body, row, instruction, tensor) else {
            let (tensor, body) = (&class.tensor(tensor).name, class.body(body).label(None));
            panic!("instruction {instruction} of {body} in row {row} has no place for {tensor}");
        };
        let place = plan.place(id);
        let bytes = (elements * dtype.bytes()) as u64;
        assert!(
            bytes <= place.bytes,
            "{} has a place of {} bytes and needs {bytes}",
            plan.place_text(class, id),
            place.bytes
        );
        let taken = self.memory.take(place.offset as usize, u64::from(id.0), dtype, elements);
        taken.unwrap_or_else(|there| {
            let there = PlaceId(there.by as u32);
            panic!(
                "{} is where {} still is",
                plan.place_text(class, id),
                plan.place_text(class, there)
            )
        })
    }
}

/// The sizes of scratch that the kernels of `class` take, each once.
fn scratch_sizes(shared: &Shared, class: ClassId) -> BTreeSet<usize> {
    let class = shared.program.class(class);
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let of = |instruction: &Instruction| {
        let Action::Kernel { op, pass, .. } = instruction.action else { return None };
        let reads: Vec<&[usize]> = instruction.reads.iter().map(|&it| class.shape(it)).collect();
        let writes: Vec<&[usize]> =
            instruction.writes.iter().map(|write| class.shape(write.to)).collect();
        Some(dispatch::scratch_elements(&shared.graph.op(op).kind, pass, &reads, &writes))
    };
    instructions.filter_map(of).filter(|&elements| elements > 0).collect()
}
