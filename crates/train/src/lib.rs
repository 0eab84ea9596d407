//! Execution of a program with kernels and a fabric: the data that feeds
//! training, the learning rate, and checkpoints.

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
mod trainer;

pub use error::{Error, Result};
pub use sampler::Sampler;
pub use source::{Field, Part, Source};
pub use trainer::{OnNonFinite, RunClock, Settings, Step, Trainer};
