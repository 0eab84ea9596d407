//! Tests of the whole crate, as one program.

mod checkpoints;
mod weights;
