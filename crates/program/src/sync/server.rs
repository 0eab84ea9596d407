//! Parameter servers: ranks of their own hold weights and optimizer state, and workers get the one from them and
//! send them their gradients (Li et al. 2014, OSDI, "Scaling Distributed Machine Learning with the Parameter
//! Server"), no further ahead of each other than a bound (Ho et al. 2013, NIPS, stale synchronous parallel).
//!
//! A server applies the gradients of a worker as soon as they come, and sends a worker that has ended `t` steps
//! the weights for the next once all have ended `t - staleness`. A worker's gradients are its part of the mean
//! over the step. With plain gradient descent and no staleness a step is therefore that of synchronous data
//! parallelism, but for the order of additions. Whatever else an update does it does once for each worker's
//! part of a step: decaying weights, keeping momentum or moments, counting updates for bias correction.
//!
//! Buckets are dealt to servers by number, about as many to each, whatever their sizes.

use shardloom_collectives::Algorithm;
use shardloom_plan::Servers;

use super::{AllReduce, Replicated, Synchronisation, Unheld};
use crate::{Instruction, Tensor};

/// Workers whose weights servers hold.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// The servers.
    pub servers: Servers,
}

impl Server {
    /// Replicas within a worker, of which there are none.
    fn within(&self) -> AllReduce {
        AllReduce { algorithm: Algorithm::Ring }
    }
}

impl Synchronisation for Server {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        self.within().tensors(bucket, tensors)
    }

    fn before_use(&self, _: &Unheld<'_>, _: &Replicated) -> Option<Instruction> {
        None
    }

    fn after_gradient(&self, _: &Unheld<'_>, _: &Replicated) -> Vec<Instruction> {
        vec![]
    }

    fn gathers_blocks(&self) -> bool {
        false
    }

    fn reduces_each_pass(&self) -> bool {
        false
    }

    fn after_update(&self, _: &Unheld<'_>, _: &Replicated) -> Vec<Instruction> {
        vec![]
    }

    fn servers(&self) -> Option<Servers> {
        Some(self.servers)
    }
}
