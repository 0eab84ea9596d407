//! Tests of the whole crate, as one program.

mod builder;
mod classes;
mod fused_attention;
mod limits;
mod operators;
mod own_network;
mod published_parameters;
mod published_work;
mod representative;
mod routing;
mod sparse_families;
mod spec_text;
mod structure;
mod transformer_families;
mod u_transformer;
mod windows;
