//! Parameter servers: ranks of their own hold weights and optimizer state, and workers get the one from them and
//! send them their gradients (Li et al. 2014, OSDI, "Scaling Distributed Machine Learning with the Parameter
//! Server").
//!
//! A worker's gradients are its part of the mean over the step. A server sends a worker that has ended `t` steps
//! the weights for the next once all have ended `t - staleness`.
//!
//! - *Synchronous*, staleness 0: a server adds up the gradients of all workers, in the order of workers, and
//!   updates once a step. A step is that of data parallelism, with any optimizer.
//! - *Bounded* (Ho et al. 2013, NIPS, stale synchronous parallel) and *asynchronous*, without a bound: a server
//!   updates with the gradients of a worker as soon as they come. Whatever an update does besides descending,
//!   it does once for each worker's part of a step: decaying weights, keeping momentum or moments, counting
//!   updates for bias correction.
//!
//! Or workers update by themselves, each with the mean of its own gradients and an optimizer's state of its own, and
//! push deltas: by how much that has changed the weights. A server adds each worker's to its weights as it comes; without
//! staleness in the order of workers, which then all go on from the same weights.
//!
//! Servers hold ranges of the parameters: buckets are cut into pieces, and [`Ring`](crate::Ring) says whose each
//! is.

mod deltas;
mod ranges;
mod roles;

use shardloom_collectives::Algorithm;
use shardloom_plan::{Push, Servers};

pub(crate) use deltas::AddedTo;
pub(super) use roles::{Service, class};

use super::{AllReduce, Replicated, Synchronisation, Unheld};
use crate::Tensor;

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
        let mut held = self.within().tensors(bucket, tensors);
        if self.servers.push == Push::Deltas {
            held.own.push(deltas::add_delta(bucket, tensors));
        }
        held
    }

    fn servers(&self) -> Option<Servers> {
        Some(self.servers)
    }
}
