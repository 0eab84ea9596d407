//! Tests of the whole crate, as one program.

mod cache;
mod corpora;
mod formats;
mod parquet;
mod tables;
