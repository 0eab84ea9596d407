//! Frozen parameters: read and never updated. Ranks hold no gradient and no optimizer state of them, and exchange
//! nothing but, where replicas share weights (ZeRO stage 3), what they gather for use.

use shardloom_collectives::Algorithm;

use super::{Replicated, Synchronisation, Unheld, Zero, add};
use crate::{Content, Extent, Format, Instruction, Keep, Tensor, View};

/// Replicas that hold the same frozen parameters.
#[derive(Clone, Copy, Debug)]
pub struct Frozen {
    /// If replicas share them, how they are gathered for use.
    pub shared: Option<Zero>,
}

impl Frozen {
    /// A bucket whose replicas are those that share it.
    fn shared<'a>(bucket: &Unheld<'a>) -> Unheld<'a> {
        Unheld { replicas: bucket.shards, ..bucket.clone() }
    }
}

impl Synchronisation for Frozen {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let is_shared = self.shared.is_some() && !bucket.shards.is_empty();
        let whole = Extent::Exactly(bucket.elements);
        let extent = if is_shared { Extent::Share } else { whole };
        let weights = add(tensors, bucket.weights(extent));
        let mut used = weights;
        if is_shared {
            let format = Format::of_number(bucket.precision.compute);
            let (name, keep) = ("gathered weights", Keep::Transient);
            used = add(tensors, bucket.flat(name, whole, format, keep, Content::Weight));
        }
        Replicated {
            weights,
            used,
            gradients: None,
            looked_up: None,
            updated: View::whole(weights),
            own: vec![],
        }
    }

    fn before_use(&self, bucket: &Unheld<'_>, held: &Replicated) -> Option<Instruction> {
        self.shared?.before_use(&Frozen::shared(bucket), held)
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
