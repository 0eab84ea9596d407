//! By how much an update has changed weights, for servers that add it to theirs.

use shardloom_program::Instruction;

use super::link::Linker;
use super::store::Slot;
use super::{At, Rank};

/// Weights as they were, which become by how much they have changed.
pub(crate) struct Difference {
    weights: Slot,
    delta: Slot,
}

impl Difference {
    /// Links a difference.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Difference {
        let [weights, delta] = [instruction.reads[0], instruction.writes[0].to];
        Difference { weights: linker.slot(weights), delta: linker.slot(delta) }
    }
}

impl Rank {
    /// Makes of weights as they were by how much they have changed.
    pub(super) fn subtract(&mut self, of: &Difference, at: At) {
        let mut delta = self.store.take(of.delta, at).expect("the weights were kept");
        let weights = self.store.get(of.weights, at).view();
        self.device().scale_and_add(delta.view_mut(), -1.0, weights, 1.0);
        self.store.put(of.delta, at, delta);
    }
}
