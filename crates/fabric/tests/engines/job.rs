//! An MPI job of one process, in which all ranks live: what they tell each other passes through MPI.

use std::sync::OnceLock;

use shardloom_fabric::{MessagePassing, Mpi};

/// MPI is started once in a process.
pub fn engine() -> &'static MessagePassing {
    static ENGINE: OnceLock<MessagePassing> = OnceLock::new();
    ENGINE.get_or_init(|| MessagePassing::over(Box::new(Mpi::start().unwrap())).unwrap())
}
