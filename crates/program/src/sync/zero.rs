//! ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5): replicas share the optimizer's state
//! (stage 1), the gradients as well (stage 2), and the weights as well (stage 3).
//!
//! Which stage it is shows in which tensors are shares, and which are there only while they are used.
//!
//! Under stage 3 fewer of them may share a second copy of the weights besides, such as those of a node: forward passes
//! gather weights from all and renew it, and backward passes gather from it (ZeRO++'s hpZ, Wang et al. 2023, arXiv
//! 2306.10209, section 3.2), so that between those groups weights pass once for a micro-batch and not twice.

use shardloom_collectives::Algorithm;
use shardloom_graph::Reduction;

use super::{Gradients, Replicated, SUM, Synchronisation, Unheld, UseBy, add, share};
use crate::{Action, Collective, Extent, Instruction, Keep, Mode, Tensor, TensorId, View, Window};

/// Replicas that each update a share of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Zero {
    /// ZeRO stage, 1 to 3.
    pub stage: u8,
    /// Whether gradients are summed up by an all-reduce, of which each replica uses its share (stage 1 alone).
    pub all_reduces: bool,
    /// The collectives' algorithm.
    pub algorithm: Algorithm,
}

const GATHER: Collective = Collective::AllGather { axis: 0 };
const SCATTER: Collective = Collective::ReduceScatter { axis: 0, reduction: Reduction::Sum };

/// The second copy of weights of which replicas have shares, if the bucket has such a copy.
pub(super) fn second_copy(
    bucket: &Unheld<'_>,
    are_shares: bool,
    tensors: &mut Vec<Tensor>,
) -> Vec<TensorId> {
    let has_one = are_shares && !bucket.second_shards.is_empty();
    has_one.then(|| add(tensors, bucket.second_weights())).into_iter().collect()
}

impl Synchronisation for Zero {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let whole = Extent::Exactly(bucket.elements);
        let (weights, used, updated) = match self.stage {
            3.. => {
                let weights = add(tensors, bucket.weights(Extent::Share));
                (weights, add(tensors, bucket.gathered_weights()), View::whole(weights))
            }
            _ => {
                let weights = add(tensors, bucket.weights(whole));
                (weights, weights, share(weights))
            }
        };
        let (written, reduced) = match self.stage {
            2.. => {
                let shard = bucket.gradients("gradients", Extent::Share, Keep::Resident);
                let shard = add(tensors, shard);
                let whole = bucket.gradients("whole gradients", whole, Keep::Transient);
                (add(tensors, whole), View::whole(shard))
            }
            _ => {
                let written = bucket.gradients("gradients", whole, Keep::Resident);
                let written = add(tensors, written);
                (written, share(written))
            }
        };
        Replicated {
            weights,
            used,
            gradients: Some(Gradients { written, reduced, rows: None }),
            looked_up: None,
            updated,
            own: second_copy(bucket, weights != used, tensors),
        }
    }

    fn before_use(&self, bucket: &Unheld<'_>, held: &Replicated, by: UseBy) -> Option<Instruction> {
        if held.weights == held.used {
            return None;
        }
        let [shard, gathered] = [held.weights, held.used].map(View::whole);
        Some(match (held.own.first().copied(), by) {
            (Some(second), UseBy::Backward) => {
                let bucket = Unheld { replicas: bucket.second_shards, ..bucket.clone() };
                bucket.over_replicas(GATHER, self.algorithm, View::whole(second), gathered)
            }
            _ => bucket.over_replicas(GATHER, self.algorithm, shard, gathered),
        })
    }

    fn at_first_use(&self, _: &Unheld<'_>, held: &Replicated, by: UseBy) -> Option<Instruction> {
        let second = held.own.first().copied().filter(|_| by == UseBy::Forward)?;
        let own = View { tensor: held.used, window: Window::SecondShare };
        Some(Instruction::new(Action::Copy, [own], [View::whole(second)]))
    }

    fn after_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let Gradients { written, reduced, .. } = held.expect_gradients();
        if self.all_reduces {
            let whole = View::whole(written);
            return vec![bucket.over_replicas(SUM, self.algorithm, whole, whole)];
        }
        let scatter = bucket.over_replicas(SCATTER, self.algorithm, View::whole(written), reduced);
        vec![match reduced.tensor == written {
            true => scatter,
            // A shard takes in each micro-batch, and the whole is done with.
            false => scatter.with_mode(Mode::AddUnlessFirst).freeing([written]),
        }]
    }

    fn gathers_blocks(&self) -> bool {
        self.stage >= 3
    }

    fn reduces_each_pass(&self) -> bool {
        self.stage >= 2
    }

    fn after_update(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let weights = View::whole(held.weights);
        match held.weights == held.used {
            true => vec![bucket.over_replicas(GATHER, self.algorithm, held.updated, weights)],
            false => vec![],
        }
    }
}
