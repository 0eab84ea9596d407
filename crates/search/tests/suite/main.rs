//! Tests of the whole crate, as one program.

mod algorithms;
mod auto;
mod baseline;
mod bucket_size;
mod circumstance;
mod deep_models;
mod explain;
mod judge;
mod kinds;
mod scenario;
mod space;
