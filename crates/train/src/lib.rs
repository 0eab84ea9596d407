//! Execution of a program with kernels and a fabric: the data that feeds
//! training, the learning rate, and checkpoints.

pub mod checkpoint;
pub mod data;
pub mod error;
pub mod learning_rate;

pub use error::{Error, Result};
