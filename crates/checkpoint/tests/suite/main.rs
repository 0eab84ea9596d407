//! Tests of the whole crate, as one program.

mod damage;
mod export;
mod reading;
mod small_checkpoint;
mod store;
mod weights;
mod writing;
