//! How data is read.

use std::path::PathBuf;

/// Where encoded text is kept, and who hears how far reading is.
pub struct Reading<'a> {
    /// The folder for encoded text; none for one beside the text.
    pub cache: Option<PathBuf>,
    /// Which field or column of documents is their text.
    pub text_field: String,
    /// Told now and then what is done.
    pub heard: &'a dyn Fn(Progress),
}

impl Default for Reading<'_> {
    /// Encoded text is kept beside the text, and nobody hears of it.
    fn default() -> Self {
        Reading { cache: None, text_field: TEXT_FIELD.into(), heard: &|_| {} }
    }
}

/// The field of a document that is its text, where nothing else is said.
pub const TEXT_FIELD: &str = "text";

/// How far reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes or tokens of it that are done.
    pub done: u64,
    /// Those that there are.
    pub total: u64,
}

/// What reading data consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Data is read to know it again.
    Checking,
    /// Another process encodes the same text.
    Waiting,
    /// Text is encoded.
    Encoding,
}
