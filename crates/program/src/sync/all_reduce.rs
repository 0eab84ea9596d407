//! Plain data parallelism: every replica holds and updates everything, and gradients are summed over all.

use shardloom_collectives::Algorithm;

use super::{Gradients, Replicated, SUM, Synchronisation, Unheld, add};
use crate::{Extent, Instruction, Keep, Tensor, View};

/// Replicas that sum their gradients up by an all-reduce.
#[derive(Clone, Copy, Debug)]
pub struct AllReduce {
    /// The all-reduce's algorithm.
    pub algorithm: Algorithm,
}

impl Synchronisation for AllReduce {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let whole = Extent::Exactly(bucket.elements);
        let weights = add(tensors, bucket.weights(whole));
        let written = add(tensors, bucket.gradients("gradients", whole, Keep::Resident));
        Replicated {
            weights,
            used: weights,
            gradients: Some(Gradients { written, reduced: View::whole(written), rows: None }),
            looked_up: None,
            updated: View::whole(weights),
            own: vec![],
        }
    }

    fn after_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        if bucket.replicas.is_empty() {
            return vec![];
        }
        let gradients = View::whole(held.expect_gradients().written);
        vec![bucket.over_replicas(SUM, self.algorithm, gradients, gradients)]
    }
}
