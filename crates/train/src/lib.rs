//! Execution of a program with kernels and a fabric: the data that feeds
//! training, the learning rate, and checkpoints.

mod blueprint;
pub mod checkpoint;
pub mod data;
pub mod error;
mod executor;
pub mod learning_rate;
mod optimizer;
pub mod profile;
mod rank;
mod sampler;
mod source;
mod system_memory;
mod trainer;

pub use blueprint::Blueprint;
pub use error::{Error, Result};
pub use rank::Contribution;
pub use sampler::Sampler;
/// The environment variable that chooses the instructions of the kernels.
pub use shardloom_kernels::tier::VARIABLE as KERNELS_VARIABLE;
pub use source::{Field, Part, Source};
pub use system_memory::SystemMemory;
pub use trainer::{OnNonFinite, RunClock, Settings, Step, Trainer};
