//! Measures this machine: the profile that predicted step times come from.
//!
//! Single operators and links are timed, never a model or a layer. What is timed runs on all ranks at
//! once, as it does in training, because ranks share memory bandwidth and power. Every pass of every
//! operator runs its real kernel; its operands lie where they would in training: what the operator
//! before has just made is in cache, weights and what was kept since the forward pass are not.
//!
//! Of the repeats of a measurement the lower quartile counts: other work on the machine can only add
//! time.

mod crew;
mod curve;
mod fit;
mod links;
mod machine;
mod operand;
mod operators;
mod specimen;
mod stopwatch;
mod subject;
mod updates;

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

pub use fit::fit;
pub use shardloom_cluster::Profile;
pub use subject::Subject;

use crate::Result;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Ranks that run at once, each on a core of its own: the devices of the profile. All cores if
    /// absent.
    pub ranks: Option<NonZeroUsize>,
    /// Memory of the machine in bytes. What the system says if absent, which it does on Linux.
    pub memory_bytes: Option<u64>,
    /// How long to take.
    pub effort: Effort,
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    /// Some ten seconds.
    #[default]
    Quick,
    /// More repeats of more sizes, for a machine on which other work disturbs: about two minutes.
    Thorough,
}
