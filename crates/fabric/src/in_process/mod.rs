//! The engine whose ranks are threads of one process.
//!
//! - `roster`: which ranks there are, where each waits (`doorbell`), which are gone.
//! - `endpoint` over `channel`: point-to-point messages.
//! - `group`: a communicator; `registry` matches its members up.
//! - `rendezvous`: how members agree that a collective starts and ends.
//! - `shared_memory`: Direct collectives; `stepwise`: all others, over `channel`; `all_to_all_v`: an
//!   all-to-all of unequal parts.

mod all_to_all_v;
mod channel;
mod doorbell;
mod endpoint;
mod group;
mod reduce;
mod registry;
mod rendezvous;
mod roster;
mod shared_memory;
mod stepwise;
mod stock;

pub use endpoint::{Endpoint, InProcess};
pub use group::Group;
