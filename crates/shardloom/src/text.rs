//! Text to train on.

use std::fs;
use std::path::{Path, PathBuf};

use shardloom_train::data::{Batches, Corpus, Tokenizer};

use crate::{Error, Result};

/// A tokenizer and the name under which it is found again.
pub struct TextTokenizer {
    name: String,
    tokenizer: Tokenizer,
}

impl TextTokenizer {
    /// The tokenizer of this name: `bytes`, or the path of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// If the file cannot be read or is no tokenizer.
    pub fn open(name: &str) -> Result<TextTokenizer> {
        if name == "bytes" {
            return Ok(TextTokenizer { name: name.into(), tokenizer: Tokenizer::bytes() });
        }
        let path = Path::new(name);
        // Checkpoints hold the path, and are read from other folders.
        let path = fs::canonicalize(path).map_err(Error::io("read", path))?;
        let tokenizer = Tokenizer::open(&path)?;
        Ok(TextTokenizer { name: path.display().to_string(), tokenizer })
    }

    /// `bytes`, or the full path of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// How text becomes samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Tokens of a sample.
    pub sequence_length: usize,
    /// Seed of the order of samples.
    pub seed: u64,
    /// The share of the text that is kept for validation, from its end.
    pub validation_fraction: f64,
}

/// Text, cut into samples.
pub struct Text {
    pub(crate) batches: Batches,
    pub(crate) tokenizer: String,
}

impl Text {
    /// Reads files, and folders with all text below them.
    ///
    /// # Errors
    /// If a path cannot be read or is no text, or the text is shorter than a sample.
    pub fn open(paths: &[PathBuf], tokenizer: &TextTokenizer, sampling: Sampling) -> Result<Text> {
        let corpus = Corpus::open(paths, &tokenizer.tokenizer, sampling.validation_fraction)?;
        let batches = Batches::new(corpus, sampling.sequence_length, sampling.seed)?;
        Ok(Text { batches, tokenizer: tokenizer.name.clone() })
    }

    /// The samples.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }
}
