//! The engine whose ranks are threads of one process.
//!
//! - `roster`: which ranks there are, where each waits (`wakeup`), which are gone.
//! - `endpoint` over `channel`: point-to-point messages, in buffers of a `pool`.
//! - `communicator`: collectives; `registry` matches members up.
//! - `rendezvous`: how members agree that a collective starts and ends.
//! - `shared_memory`: Direct collectives; all others over `channel` by `messaging`.

mod communicator;
mod endpoint;
mod messaging;
mod pool;
mod registry;
mod rendezvous;
mod roster;
mod shared_memory;
mod wakeup;
mod window;

/// The most ranks that one process can be asked for: between every two is a channel.
pub const MOST_RANKS: u32 = 4096;

pub use endpoint::InProcess;
