//! Tests of the whole crate, as one program.

mod arrangements;
mod averaging;
mod compression;
mod differences;
mod layouts;
mod loss_scale;
mod meshes;
mod micro_batches;
mod negotiation;
mod optimizer;
mod parameter_groups;
mod refusals;
mod scenario;
mod schedules;
mod servers;
mod sizes;
mod sparse;
mod stages;
mod sync;
mod text;
mod turns;
mod weights;
