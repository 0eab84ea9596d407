//! A rank's memory with the places that the buffer plan assigned ahead: what comes and goes while it
//! trains or evaluates is in its place, and the system is asked for nothing.

use std::sync::Arc;

use shardloom_kernels::{Buffer, Memory};
use shardloom_program::buffers::PlaceId;
use shardloom_program::{BodyId, ClassId, Run, TensorId};

use super::Shared;
use super::store::stored;

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
        memory.reset_peak();
        let now = Now { body: BodyId(0), row: 0, instruction: 0 };
        let reserved = memory.system_allocations();
        Arena { shared: Arc::clone(shared), class, memory: memory.clone(), reserved, now }
    }

    /// How often the system was asked after that.
    pub fn system_allocations(&self) -> usize {
        self.memory.system_allocations() - self.reserved
    }

    /// Comes to an entry.
    pub fn begin_entry(&mut self, run: &Run) {
        let row = self.shared.buffers[self.class.0 as usize].row(run);
        self.now = Now { body: run.entry.body, row, instruction: 0 };
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
    pub fn take(&self, tensor: TensorId, elements: usize) -> Buffer {
        let Now { body, row, instruction } = self.now;
        let plan = &self.shared.buffers[self.class.0 as usize];
        let class = self.shared.program.class(self.class);
        let Some(id) = plan.find(body, row, instruction, tensor) else {
            let (tensor, body) = (&class.tensor(tensor).name, class.body(body).label(None));
            panic!("instruction {instruction} of {body} in row {row} has no place for {tensor}");
        };
        let place = plan.place(id);
        let format = stored(class.tensor(tensor).format);
        let bytes = (elements * format.bytes()) as u64;
        assert!(
            bytes <= place.bytes,
            "{} has a place of {} bytes and needs {bytes}",
            plan.place_text(class, id),
            place.bytes
        );
        let taken = self.memory.take(place.offset as usize, u64::from(id.0), format, elements);
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
