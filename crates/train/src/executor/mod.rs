//! Execution of a program: one thread per rank in real time.

mod communicators;
mod recorder;
mod threads;

pub(crate) use threads::{Command, Crew, Done};
