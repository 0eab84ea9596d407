//! Tests that take up to an hour, and so are run by hand: CONTRIBUTING, "Attacks".
#![cfg(target_os = "linux")]

mod attack;
mod bad_inputs;
#[path = "../suite/invocation/mod.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod invocation;
mod kills;
mod material;
#[path = "../suite/invocation/mpirun.rs"]
mod mpirun;
mod mutation;
mod places;
mod restarts;
