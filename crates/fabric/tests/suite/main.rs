//! Tests of the whole crate, as one program.

mod apply;
mod overlapped;
mod places;
mod priorities;
