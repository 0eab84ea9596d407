//! What a program costs on a cluster, and when everything in it happens.
//!
//! [`CostModel`] gives the seconds of single instructions, collectives and messages. [`run`] is the
//! discrete-event engine: it follows the streams of a [`Program`](shardloom_program::Program) and asks
//! a [`Driver`] for every duration. [`Modelled`] answers from the cost model, [`Recorded`] from an
//! earlier run; an executor that runs real kernels under virtual time is a third. [`simulate`] does all
//! of it in one call.

mod actor;
mod contention;
mod cost;
mod driver;
mod engine;
mod error;
mod mail;
mod modelled;
mod rate;
mod recording;
mod rendezvous;
mod script;
mod simulate;
mod summary;
mod track_writer;

pub use cost::CostModel;
pub use driver::{Actor, Call, Driver};
pub use engine::{Options, run};
pub use error::SimError;
pub use modelled::Modelled;
pub use rate::{collective_rate_name, rate_name};
pub use recording::{Recorded, Recorder, Recording};
pub use simulate::{Simulation, simulate};
pub use summary::{Fit, MemoryFit, RankSummary, Summary};
