//! Tests of the whole crate, as one program.

mod bad_input;
mod clusters;
mod compare;
mod constraints;
mod cost;
mod documents;
mod exchange;
mod folders;
mod help;
mod interruption;
mod invocation;
mod json_contract;
mod launch;
mod methods;
mod model_files;
mod network;
mod nothing_lost;
mod predict;
mod program;
mod routing;
mod schedule;
mod sparse_families;
mod stack;
mod systems;
mod training_log;
mod validate;
