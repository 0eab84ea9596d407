//! Frozen parameters: read and never updated. Ranks hold no gradient and no optimizer state of them, and exchange
//! nothing but, where replicas share weights (ZeRO stage 3), what they gather for use.

use shardloom_collectives::Algorithm;

use super::zero::second_copy;
use super::{Hybrid, Replicated, Synchronisation, Unheld, UseBy, Zero, add};
use crate::{Extent, Instruction, Tensor, View};

/// Replicas that hold the same frozen parameters.
#[derive(Clone, Copy, Debug)]
pub struct Frozen {
    /// If replicas share them, how they are gathered for use.
    pub shared: Option<Zero>,
}

impl Synchronisation for Frozen {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let is_shared = self.shared.is_some() && !bucket.shards.is_empty();
        let whole = Extent::Exactly(bucket.elements);
        let extent = if is_shared { Extent::Share } else { whole };
        let weights = add(tensors, bucket.weights(extent));
        let used = if is_shared { add(tensors, bucket.gathered_weights()) } else { weights };
        Replicated {
            weights,
            used,
            gradients: None,
            looked_up: None,
            updated: View::whole(weights),
            own: second_copy(bucket, is_shared, tensors),
        }
    }

    fn before_use(&self, bucket: &Unheld<'_>, held: &Replicated, by: UseBy) -> Option<Instruction> {
        Hybrid { within: self.shared? }.before_use(bucket, held, by)
    }

    fn at_first_use(
        &self,
        bucket: &Unheld<'_>,
        held: &Replicated,
        by: UseBy,
    ) -> Option<Instruction> {
        Hybrid { within: self.shared? }.at_first_use(bucket, held, by)
    }

    fn gathers_blocks(&self) -> bool {
        self.shared.is_some()
    }

    fn over_partial(&self, _: &Unheld<'_>, _: &Replicated, _: Algorithm) -> Vec<Instruction> {
        vec![]
    }

    fn over_classes(&self, _: &Unheld<'_>, _: &Replicated, _: Algorithm) -> Vec<Instruction> {
        vec![]
    }
}
