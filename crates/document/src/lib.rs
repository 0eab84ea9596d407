//! Documents that people write, read as far as they may go, and what is wrong with one, in TOML, JSON or rows of comma-separated values: the line, the key, and what would be right, in
//! words that name no types of this program. All crates that read documents say it by these.

mod fault;
mod json;
mod json_value;
mod reading;
mod rows;
mod toml_text;
mod words;

pub use fault::{Fault, at_line};
pub use json::{json_fault, json_fault_in, json_line_of, json_line_of_path};
pub use json_value::json_value;
pub use reading::{read_document, read_file, read_text};
pub use rows::row_line;
pub use toml_text::{toml_fault, toml_line_of};
pub use words::{in_words, nearest};

/// The line of a byte of a text, from 1.
pub fn line_at(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}
