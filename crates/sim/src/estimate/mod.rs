//! The analytic estimate of a 3D plan: what a step takes and what each stage holds, without lowering.
//!
//! A search asks for hundreds of thousands of plans that differ in a few numbers. What they have in
//! common is tabulated once: for each tensor-parallel width, sequence parallelism, micro-batch and
//! recomputation, every *different* block of the graph is walked through its operators, gradient rules
//! and layouts as lowering would, and timed by the [`CostModel`](crate::CostModel). An estimate then
//! adds up blocks to stages and stages to a pipeline, with the synchronisation that data parallelism and
//! ZeRO call for, in closed form and without allocating.
//!
//! On a cluster of several kinds of machine the slowest kind and the least memory count for all.

mod candidate;
mod class;
mod collective;
mod cut;
mod estimator;
mod parameters;
mod pipeline;
mod place;
mod probe;
mod reverse;
mod stage;
mod table;
mod walk;

pub use candidate::{Candidate, Cut};
pub use cut::balanced_cut;
pub use estimator::{Estimate, Estimator, Settings};
