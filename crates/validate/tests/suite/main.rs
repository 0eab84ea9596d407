//! Tests of the whole crate, as one program.

mod fuzz_corpus;
mod measurements;
