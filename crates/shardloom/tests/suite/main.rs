//! Tests of the whole crate, as one program.

mod clusters;
mod elsewhere;
mod generating;
mod guards;
mod huggingface;
mod methods;
mod planned;
mod reference;
mod resuming;
mod texts;
mod trials;
mod utilisation;
