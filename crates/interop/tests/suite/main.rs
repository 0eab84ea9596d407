//! Tests of the whole crate, as one program.

mod configs;
mod weights;
