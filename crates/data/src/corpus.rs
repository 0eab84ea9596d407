//! One stream of tokens, cut into a training and a validation part.

use std::fs;
use std::path::{Path, PathBuf};

use crate::text_files::{files_below, is_folder, read_if_text};
use crate::tokenizer::{Tokenizer, check_vocabulary};
use crate::{DataError, Result};

/// The tokens of all training data in a fixed order. The last part of them is
/// kept for validation.
#[derive(Debug)]
pub struct Corpus {
    tokens: Vec<u32>,
    training_tokens: usize,
    vocabulary_size: usize,
    digest: String,
    skipped: Vec<PathBuf>,
}

impl Corpus {
    /// Reads files, and folders with everything below them.
    ///
    /// Paths are read in the order given, the files of a folder sorted by
    /// path, and simply strung together. In folders, hidden files and folders,
    /// folders named `target`, symbolic links and files that are not UTF-8 text
    /// are skipped. A file named itself must be text, unless `tokenizer` is
    /// [`Tokenizer::bytes`].
    ///
    /// The last `validation_fraction` of the tokens, rounded up, is for
    /// validation; 0 is none.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] for anything unreadable, [`DataError::NotText`] and
    /// [`DataError::NotAFile`] for a named path, [`DataError::Tokenize`] if the
    /// tokenizer fails, [`DataError::EmptyCorpus`] if there is no token,
    /// [`DataError::ValidationFraction`] for a fraction outside `0..1`.
    pub fn open(
        paths: &[PathBuf],
        tokenizer: &Tokenizer,
        validation_fraction: f64,
    ) -> Result<Self> {
        let mut tokens = Vec::new();
        let mut skipped = Vec::new();
        for path in paths {
            if is_folder(path)? {
                for file in files_below(path)? {
                    match read_if_text(&file)? {
                        Some(text) => tokens.extend(tokenizer.encode(text)?),
                        None => skipped.push(file),
                    }
                }
            } else {
                tokens.extend(encode_file(path, tokenizer)?);
            }
        }
        if tokens.is_empty() {
            return Err(DataError::EmptyCorpus { paths: paths.to_vec() });
        }
        let corpus = Self::from_tokens(tokens, tokenizer.vocabulary_size(), validation_fraction)?;
        Ok(Self { skipped, ..corpus })
    }

    /// A corpus of given tokens, all below `vocabulary_size`; the split is that
    /// of [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// [`DataError::EmptyCorpus`], [`DataError::TokenOutOfVocabulary`] or
    /// [`DataError::ValidationFraction`].
    pub fn from_tokens(
        tokens: Vec<u32>,
        vocabulary_size: usize,
        validation_fraction: f64,
    ) -> Result<Self> {
        if !(0.0..1.0).contains(&validation_fraction) {
            return Err(DataError::ValidationFraction { fraction: validation_fraction });
        }
        if tokens.is_empty() {
            return Err(DataError::EmptyCorpus { paths: Vec::new() });
        }
        check_vocabulary(&tokens, vocabulary_size)?;
        // Rounded up, so that a validation part that was asked for and came out
        // too short is noticed instead of vanishing.
        let validation_tokens = (tokens.len() as f64 * validation_fraction).ceil() as usize;
        let training_tokens = tokens.len().saturating_sub(validation_tokens);
        let digest = digest(&tokens);
        Ok(Self { tokens, training_tokens, vocabulary_size, digest, skipped: Vec::new() })
    }

    /// The tokens to train on.
    #[must_use]
    pub fn training(&self) -> &[u32] {
        &self.tokens[..self.training_tokens]
    }

    /// The tokens to validate on.
    #[must_use]
    pub fn validation(&self) -> &[u32] {
        &self.tokens[self.training_tokens..]
    }

    /// The size of the vocabulary; every token is below it.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// The files of named folders that were skipped because they are not text.
    #[must_use]
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// The BLAKE3 digest of the whole stream of tokens in hexadecimal digits.
    /// Checkpoints record it, so that a run is not resumed on other data.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Compares this corpus with the one a checkpoint recorded.
    ///
    /// # Errors
    ///
    /// [`DataError::CorpusChanged`] if they differ.
    pub fn require_digest(&self, recorded: &str) -> Result<()> {
        if self.digest == recorded {
            return Ok(());
        }
        Err(DataError::CorpusChanged { recorded: recorded.to_owned(), found: self.digest.clone() })
    }
}

fn encode_file(path: &Path, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let bytes = fs::read(path).map_err(DataError::io("read", path))?;
    tokenizer.encode(bytes).map_err(|error| match error {
        DataError::NotUtf8 { offset } => DataError::NotText { path: path.to_path_buf(), offset },
        other => other,
    })
}

fn digest(tokens: &[u32]) -> String {
    const TOKENS_PER_UPDATE: usize = 1 << 14;
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::with_capacity(TOKENS_PER_UPDATE * size_of::<u32>());
    for tokens in tokens.chunks(TOKENS_PER_UPDATE) {
        bytes.clear();
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        hasher.update(&bytes);
    }
    hasher.finalize().to_hex().to_string()
}
