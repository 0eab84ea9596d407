//! Sharing among some replicas: those along some mesh axes share state as in ZeRO, those along the others
//! hold the same shares and sum up the shares' gradients (MiCS, Zhang et al. 2022, arXiv 2205.00119, section
//! 3; PyTorch FSDP's hybrid sharding, Zhao et al. 2023, arXiv 2304.11277, section 3.2.2).
//!
//! Gradients are scattered among the ranks that share, and what is left of them, one over as many, goes to
//! the others: where those that share are in one node, little leaves it.

use super::{Replicated, SUM, Synchronisation, Unheld, UseBy, Zero};
use crate::{Instruction, Tensor};

/// Replicas that share state along a bucket's [`shards`](Unheld::shards) only.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid {
    /// What those along these axes do.
    pub within: Zero,
}

impl Hybrid {
    /// The bucket as it is among the ranks that share.
    fn shared<'a>(bucket: &Unheld<'a>) -> Unheld<'a> {
        Unheld { replicas: bucket.shards, ..bucket.clone() }
    }

    /// The sum of a share's gradients over those who hold the same share.
    fn across(&self, bucket: &Unheld<'_>, held: &Replicated) -> Option<Instruction> {
        let others = bucket.replicas.iter().copied().filter(|axis| !bucket.shards.contains(axis));
        let others: Vec<_> = others.collect();
        (!others.is_empty()).then(|| {
            let bucket = Unheld { replicas: &others, ..bucket.clone() };
            let reduced = held.expect_gradients().reduced;
            bucket.over_replicas(SUM, self.within.algorithm, reduced, reduced)
        })
    }
}

impl Synchronisation for Hybrid {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        self.within.tensors(&Hybrid::shared(bucket), tensors)
    }

    fn before_use(&self, bucket: &Unheld<'_>, held: &Replicated, by: UseBy) -> Option<Instruction> {
        self.within.before_use(&Hybrid::shared(bucket), held, by)
    }

    fn at_first_use(
        &self,
        bucket: &Unheld<'_>,
        held: &Replicated,
        by: UseBy,
    ) -> Option<Instruction> {
        self.within.at_first_use(&Hybrid::shared(bucket), held, by)
    }

    fn after_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        self.within.after_gradient(&Hybrid::shared(bucket), held)
    }

    /// Once, whatever is scattered after each pass.
    fn after_last_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        self.across(bucket, held).into_iter().collect()
    }

    fn gathers_blocks(&self) -> bool {
        self.within.gathers_blocks()
    }

    fn reduces_each_pass(&self) -> bool {
        self.within.reduces_each_pass()
    }

    fn after_update(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        self.within.after_update(&Hybrid::shared(bucket), held)
    }
}
