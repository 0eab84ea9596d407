//! Communication between ranks.
//!
//! [`InProcess`] makes the ranks of one process: one [`Endpoint`] per rank, each to
//! be moved to a thread of its own. An endpoint sends and receives messages and
//! builds [`Group`]s, and groups carry out collectives: natively in shared memory
//! ([`Algorithm::Direct`](shardloom_collectives::Algorithm::Direct)) or by following
//! the step list of any other algorithm over real messages.
//!
//! ```
//! use shardloom_collectives::{Algorithm, Kind, Reduction};
//! use shardloom_fabric::{FabricError, InProcess, Settings};
//!
//! let sums = std::thread::scope(|scope| {
//!     let ranks = InProcess::<Vec<f32>>::new(3, Settings::default())
//!         .into_iter()
//!         .map(|endpoint| {
//!             scope.spawn(move || {
//!                 let mut world = endpoint.group(&[0, 1, 2])?;
//!                 let mut buffer = vec![endpoint.rank() as f32; 4];
//!                 world.collective(Kind::AllReduce, Algorithm::Direct, Reduction::Sum, &mut buffer)?;
//!                 Ok::<_, FabricError>(buffer)
//!             })
//!         })
//!         .collect::<Vec<_>>();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
//! })?;
//! assert_eq!(sums, vec![vec![3.0; 4]; 3]);
//! # Ok::<(), FabricError>(())
//! ```
//!
//! Nothing waits for ever: whoever waits for a rank that is gone, or longer than the
//! timeout in [`Settings`], gets a [`FabricError`] that names what it waited for.
//!
//! # Engines
//!
//! `in_process` is the one engine there is: ranks are threads, messages are moved.
//! No pointer, lock or thread shows in the interface, so that an engine over a
//! message-passing library can offer the same calls from a module beside it.

#![deny(unsafe_code)]

mod counters;
mod error;
mod in_process;
mod operation;
mod payload;
mod settings;

pub use counters::Counters;
pub use error::FabricError;
pub use in_process::{Endpoint, Group, InProcess, MOST_RANKS};
pub use operation::{Call, Operation};
pub use payload::Payload;
pub use settings::Settings;
