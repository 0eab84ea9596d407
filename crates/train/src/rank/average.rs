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
        let (kept, taken) = factors(rate, replicas);
        Average { sum, weights, kept, taken }
    }
}

/// What weights are multiplied by that take in such a share of the mean over replicas, and what the sum over these
/// is: together all of it, as near as fp32 comes, so that equal replicas stay what they are.
fn factors(rate: f64, replicas: u32) -> (f32, f32) {
    let kept = (1.0 - rate) as f32;
    (kept, ((1.0 - f64::from(kept)) / f64::from(replicas)) as f32)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a rate that is no number of fp32 what is kept and the rate would each be rounded by themselves.
    #[test]
    fn what_is_kept_and_what_is_taken_in_of_equal_replicas_are_exactly_all() {
        for rate in [0.1, 0.05, 0.3, 0.5, 0.7, 1.0] {
            for replicas in [1, 2, 4, 8] {
                let (kept, taken) = factors(rate, replicas);
                let all = f64::from(kept) + f64::from(taken) * f64::from(replicas);
                assert_eq!(all, 1.0, "{rate} of {replicas}");
                assert!((f64::from(kept) - (1.0 - rate)).abs() < 1e-7, "{rate}: {kept}");
            }
        }
    }
}
