//! The analytic estimate of a 3D plan: what a step takes and what each stage holds, without lowering the
//! plan.
//!
//! A search asks for hundreds of thousands of plans that differ in a few numbers. What they have in
//! common is tabulated once: for each tensor-parallel width, sequence parallelism, micro-batch and
//! recomputation, a model of one block of each kind (an [`Representative`](shardloom_graph::Representative)) is
//! lowered with each block as a stage of its own, its bodies timed by the
//! [`CostModel`](crate::CostModel) and followed with a [`MemoryTracker`](shardloom_program::MemoryTracker). An
//! estimate then adds up blocks to stages, with the synchronisation that data parallelism and ZeRO call
//! for, in closed form, and runs the stages' passes in their schedule's order.
//!
//! On a cluster of several kinds of machine the slowest kind and the least memory count for all.

mod block;
mod candidate;
mod collective;
mod cut;
mod ends;
mod estimator;
mod orders;
mod parameters;
mod pipeline;
mod place;
mod reduced;
mod sequence;
mod stage;
mod table;

pub use candidate::{Candidate, Cut, Undivided};
pub use cut::{balanced_cut, balanced_stages};
pub use estimator::{Estimate, Estimator, Settings};
