//! Servers that sum gradients: workers hold weights and optimizer state and update them; they send pieces of
//! their gradients to servers, which sum each piece over all workers and send the sum back.
//!
//! - Jiang et al. 2020, OSDI, "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
//!   GPU/CPU Clusters" (BytePS): pieces of bounded size are dealt to servers by hashes of their numbers, and
//!   servers on machines of their own share the work with servers on the workers' machines. What the latter do is
//!   a direct all-reduce among the workers, in which each sums a part and sends it to the others; here it is one.
//! - Thangakrishnan et al. 2020, SC, "Herring: Rethinking the Parameter Server at Scale for the Cloud": a buffer
//!   of gradients is cut into as many equal ranges as there are servers, wherever parameters begin and end.
//!
//! A server adds up a piece in the order of workers, as a direct all-reduce does, so that all workers have the
//! same sum and it is the same in every run. It holds a piece only from when it comes until its sum is sent.

mod next_use;
mod pieces;
mod roles;

use shardloom_collectives::Algorithm;
use shardloom_plan::Summation;

pub(super) use roles::Sums;

use super::{AllReduce, Replicated, Synchronisation, Unheld};
use crate::Tensor;

/// Workers whose gradients servers sum.
#[derive(Clone, Copy, Debug)]
pub struct Summing {
    /// The servers.
    pub summation: Summation,
}

impl Summing {
    /// Replicas within a worker, of which there are none.
    fn within(&self) -> AllReduce {
        AllReduce { algorithm: Algorithm::Direct }
    }
}

impl Synchronisation for Summing {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        self.within().tensors(bucket, tensors)
    }

    fn summation(&self) -> Option<Summation> {
        Some(self.summation)
    }
}
