//! Averages of weights that each replica has its own of, and whether a step is one that averages.

use std::num::NonZeroU32;

use shardloom_kernels::device::HostSlice;
use shardloom_program::Instruction;

use super::arena::Room;
use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// Weights that take in a share of the mean over replicas.
pub(crate) struct Average {
    sum: Slot,
    weights: Slot,
    /// What they are multiplied by.
    kept: f32,
    /// What the sum over replicas is multiplied by.
    taken: f32,
}

/// Where it is said whether something is due.
pub(crate) struct Due {
    every: NonZeroU32,
    flag: Room,
}

impl Average {
    /// Links an average.
    pub(super) fn link(
        linker: &Linker<'_>,
        (rate, replicas): (f64, u32),
        instruction: &Instruction,
    ) -> Average {
        let [sum, weights] = [instruction.reads[0], instruction.writes[0].to];
        let (sum, weights) = (linker.slot(sum), linker.slot(weights));
        // Together all of it, as near as fp32 comes, so that equal replicas stay what they are.
        let kept = (1.0 - rate) as f32;
        let taken = ((1.0 - f64::from(kept)) / f64::from(replicas)) as f32;
        Average { sum, weights, kept, taken }
    }
}

impl Due {
    /// Links a question.
    pub(super) fn link(linker: &Linker<'_>, every: NonZeroU32, instruction: &Instruction) -> Due {
        Due { every, flag: linker.room(instruction.writes[0].to.tensor) }
    }
}

impl Rank {
    /// Has weights take in their share of the mean.
    pub(super) fn average(&mut self, of: &Average, at: At) {
        let mut held = self.store.take(of.weights, at).expect("weights are there all the time");
        let sum = self.store.get(of.sum, at).view();
        if of.kept == 0.0 {
            // Nothing of them is left, whatever they were, so that replicas are equal to the last bit.
            self.device().copy(sum, held.view_mut());
            self.device().scale_and_add(held.view_mut(), of.taken, sum, 0.0);
        } else {
            self.device().scale_and_add(held.view_mut(), of.kept, sum, of.taken);
        }
        self.store.put(of.weights, at, held);
    }

    /// Says whether the step is one in so many.
    pub(super) fn ask_whether_due(&mut self, Due { every, flag }: &Due, at: At) {
        let mut due = self.arena.take(flag, at);
        let is_due = (self.now.of_step + 1).is_multiple_of(u64::from(every.get()));
        self.device().upload(HostSlice::U8(&[u8::from(is_due)]), due.view_mut());
        self.store.put(flag.slot, at, due);
    }
}
