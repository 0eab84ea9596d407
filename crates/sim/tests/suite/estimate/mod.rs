//! The estimate that searches go by, beside simulations and programs of the same candidates.

mod bounds;
pub(crate) mod candidates;
mod memory;
mod orders;
mod passes;
mod ranking;
mod refusals;
mod replicas;
pub(crate) mod simulated;
mod updates;
