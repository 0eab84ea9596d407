//! Tests of the whole crate, as one program.

mod all_to_all_v;
mod counts;
mod names;
mod results;
