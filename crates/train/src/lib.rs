//! Execution of a program with kernels and a fabric.

mod blueprint;
mod classifier;
mod delay_bound;
pub mod error;
mod executor;
mod forward;
pub mod learning_rate;
mod optimizer;
mod processes;
mod rank;
mod sampler;
mod stragglers;
mod trainer;

pub use blueprint::Blueprint;
pub(crate) use blueprint::Connected;
pub use classifier::{Classification, Classifier};
pub use delay_bound::{BoundChange, DelayBound, Distances};
pub use error::{Error, Result};
pub use processes::Processes;
pub use rank::{Contribution, RowExchange};
pub use sampler::Sampler;
/// The environment variable that chooses the instructions of the kernels.
pub use shardloom_kernels::tier::VARIABLE as KERNELS_VARIABLE;
pub use stragglers::Straggler;
pub use trainer::{Evaluation, LostServer, OnNonFinite, RunClock, Settings, Step, Trainer};
