//! Tests of the whole crate, as one program.

mod averaging;
mod blocking;
mod control;
mod eight_bits;
mod lowering;
mod measured_rows;
mod memory_without_flush;
mod negotiation;
mod outstanding;
mod overlap;
mod pipelines;
mod post_validation;
mod recomputation;
mod ring;
mod server_deltas;
mod server_replicas;
mod servers;
mod skips;
mod summing;
mod summing_by_group;
mod text;
mod timeline;
mod trace;
mod verifier;
