//! Lowering of a plan to per-device programs.

pub mod timeline;
