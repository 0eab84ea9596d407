//! Tests of the whole crate, as one program.

mod experts;
mod fifty;
mod from_elsewhere;
mod golden;
mod matrix;
mod models;
mod of_numbers;
mod plans;
mod refusals;
mod scripts;
mod there_and_back;
mod words;
