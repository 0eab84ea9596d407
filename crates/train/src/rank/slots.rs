//! The values of micro-batches in flight.

use shardloom_kernels::Buffer;
use shardloom_program::{Instruction, SlotId};

/// Buffers by micro-batch and slot.
pub(super) struct Slots {
    /// One row for each micro-batch that can be in flight at a time; they take turns.
    held: Vec<Vec<Option<Buffer>>>,
}

impl Slots {
    pub fn new(slots: usize, in_flight: usize) -> Slots {
        let row = || std::iter::repeat_with(|| None).take(slots).collect();
        Slots { held: std::iter::repeat_with(row).take(in_flight).collect() }
    }

    /// What a slot holds.
    ///
    /// # Panics
    /// If it holds nothing: the program reads before it writes, a mistake in lowering.
    pub fn get(&self, slot: SlotId, microbatch: u32) -> &Buffer {
        match &self.held[self.row(microbatch)][slot.0 as usize] {
            Some(buffer) => buffer,
            None => panic!("slot {} of micro-batch {microbatch} is read while empty", slot.0),
        }
    }

    pub fn take(&mut self, slot: SlotId, microbatch: u32) -> Option<Buffer> {
        let row = self.row(microbatch);
        self.held[row][slot.0 as usize].take()
    }

    pub fn put(&mut self, slot: SlotId, microbatch: u32, buffer: Buffer) {
        let row = self.row(microbatch);
        self.held[row][slot.0 as usize] = Some(buffer);
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.held.iter_mut().flatten().for_each(|slot| *slot = None);
    }

    fn row(&self, microbatch: u32) -> usize {
        microbatch as usize % self.held.len()
    }

    /// Frees what `instruction` says is dead.
    pub fn free(&mut self, instruction: &Instruction, microbatch: u32) {
        for &slot in &instruction.frees {
            self.take(slot, microbatch);
        }
    }
}
