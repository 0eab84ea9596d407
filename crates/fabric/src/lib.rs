//! Communication between ranks.
//!
//! An [`Engine`] connects ranks: it gives each an [`Endpoint`]. An endpoint sends and receives messages,
//! builds [`Group`]s, whose members carry out collectives together, and has a [`Window`] in which it publishes
//! what others may read without its taking part. [`InProcess`] is the engine whose
//! ranks are threads of one process; it works in shared memory
//! ([`Algorithm::Direct`](shardloom_collectives::Algorithm::Direct)) or follows the step list of any other
//! algorithm over real messages. [`MessagePassing`] is the engine whose ranks live in several processes, over
//! whatever carries packets between these ([`Transport`]); MPI does with the feature `mpi`. [`Overlapped`] gives the ranks of any engine a thread each, on which
//! collectives proceed while ranks compute. [`Negotiated`] has the members of a group of any engine agree while
//! running in which order they carry collectives out.
//!
//! ```
//! use shardloom_collectives::{Algorithm, Kind, Reduction};
//! use shardloom_fabric::{
//!     Collective, Contents, Engine, FabricError, Format, InProcess, Reduce, Settings, View, ViewMut,
//! };
//!
//! /// Engines have no arithmetic of their own.
//! struct Sums;
//!
//! impl Reduce for Sums {
//!     fn reduce(&self, _: Reduction, into: ViewMut<'_>, part: View<'_>) {
//!         if let (ViewMut::F32(into), View::F32(part)) = (into, part) {
//!             into.iter_mut().zip(part).for_each(|(into, part)| *into += part);
//!         }
//!     }
//! }
//!
//! let timeout = std::time::Duration::from_secs(600);
//! let settings = Settings { timeout, arithmetic: std::sync::Arc::new(Sums) };
//! let (kind, algorithm, reduction) = (Kind::AllReduce, Algorithm::Direct, Reduction::Sum);
//! let sums = std::thread::scope(|scope| {
//!     let ranks = InProcess.connect(3, &settings)?.into_iter().map(|mut endpoint| {
//!         scope.spawn(move || {
//!             let mut world = endpoint.group(&[0, 1, 2])?;
//!             let mut buffer = Contents::zeroed(Format::F32, 4);
//!             if let ViewMut::F32(values) = buffer.view_mut() {
//!                 values.fill(endpoint.rank() as f32);
//!             }
//!             // Lent until it has been waited for.
//!             let started = world.start(Collective::Equal { kind, algorithm, reduction }, buffer);
//!             let (buffer, outcome) = world.wait(started);
//!             outcome.map(|()| buffer)
//!         })
//!     });
//!     let ranks: Vec<_> = ranks.collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
//! })?;
//! assert!(sums.iter().all(|sum| sum.view() == View::F32(&[3.0; 4])));
//! # Ok::<(), FabricError>(())
//! ```
//!
//! Nothing waits for ever: whoever waits for a rank that is gone, or longer than the
//! timeout in [`Settings`], gets a [`FabricError`] that names what it waited for.
//!
//! # Messages and what is lent
//!
//! No pointer, lock or thread shows in the interface, so that an engine over a message-passing library is
//! one more implementation. A [`Message`] is written in a buffer that the engine lends, and read in one:
//! the in-process engine moves it to the receiver, which gives it back by dropping it. What a collective
//! works on is given to the engine and comes back to who waits for it ([`Lent`]).

#![deny(unsafe_code)]

mod apply;
mod by_messages;
mod channel;
mod collective;
mod contents;
mod counters;
mod engine;
mod error;
mod in_line;
mod in_process;
mod members;
mod message;
mod message_passing;
#[cfg(feature = "mpi")]
mod mpi;
mod negotiated;
mod operation;
mod overlapped;
mod reduce;
mod settings;
mod view;
mod window;

pub use apply::{apply, apply_fused};
pub use collective::{Collective, Completed, Handle, Lent};
pub use contents::Contents;
pub use counters::Counters;
pub use engine::{Endpoint, Engine, Group, Process};
pub use error::FabricError;
pub use in_process::{InProcess, MOST_RANKS};
pub use message::{Message, Pool, PoolId, Priority, Returns};
pub use message_passing::{Arrived, MessagePassing, Packet, Queues, Transport};
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use negotiated::{Fusible, Negotiated, Negotiation, Request};
pub use operation::{Call, Operation};
pub use overlapped::Overlapped;
pub use reduce::Reduce;
pub use settings::Settings;
pub use view::{Format, View, ViewMut};
pub use window::Window;
