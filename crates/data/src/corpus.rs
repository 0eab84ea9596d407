//! One stream of tokens, cut into a training and a validation part.

use std::ops::Range;
use std::path::PathBuf;

use crate::cache::{Digest, add};
use crate::reading::{Progress, Reading, Stage};
use crate::stretch::Stretch;
use crate::text;
use crate::token_files::Kind;
use crate::tokenizer::Tokenizer;
use crate::{DataError, Result};

/// The tokens of all training data in a fixed order. The last part of them is
/// kept for validation.
///
/// They are read from files where they are wanted. A text of bytes is such a file itself; the tokens of other
/// tokenizers are in a cache. Little data is held in memory instead.
#[derive(Debug)]
pub struct Corpus {
    stretches: Vec<Stretch>,
    /// Where each of them ends, in tokens from the start of the first.
    ends: Vec<u64>,
    training_tokens: u64,
    vocabulary_size: usize,
    end_of_text: Option<u32>,
    digest: String,
    skipped: Vec<PathBuf>,
}

impl Corpus {
    /// Opens files, and folders with everything below them.
    ///
    /// Paths are read in the order given, the files of a folder sorted by
    /// path, and simply strung together. In folders, hidden files and folders,
    /// folders named `target`, symbolic links and files that are not UTF-8 text
    /// are skipped. A file named itself must be text, unless `tokenizer` is
    /// [`Tokenizer::bytes`].
    ///
    /// Files called `.jsonl` or `.ndjson` have a document in each line, the text in one of its fields, and `.parquet`
    /// one in each row, the text in a column (with the feature `parquet`). Documents are strung together, behind each
    /// the tokenizer's end of text, if it has one. A `.bin` with its `.idx` as Megatron-LM writes them (also by their
    /// name without an ending) and a `.ds` as datatrove does are tokens of this tokenizer already; they are read as
    /// they lie.
    ///
    /// Text is encoded by all cores and its tokens are kept in a cache, a file for each path, unless it is 1 MiB
    /// or less. Bytes of more than 16 MiB in all are read where they lie: the files must stay as they are.
    ///
    /// The last `validation_fraction` of the tokens, rounded up, is for
    /// validation; 0 is none.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] for anything unreadable, [`DataError::NotText`] and
    /// [`DataError::NotAFile`] for a named path, [`DataError::Tokenize`] if the
    /// tokenizer fails, [`DataError::NoCut`] for text without lines, [`DataError::Cache`] if its tokens cannot be
    /// kept, [`DataError::Document`] for a line that is no document, [`DataError::Table`] for Parquet that has no
    /// such text or [`DataError::NoParquet`] without the feature, [`DataError::TokenFile`] for tokens that are
    /// none of this tokenizer, [`DataError::EmptyCorpus`] if there is no token,
    /// [`DataError::ValidationFraction`] for a fraction outside `0..1`.
    pub fn open(
        paths: &[PathBuf],
        tokenizer: &Tokenizer,
        validation_fraction: f64,
        reading: &Reading<'_>,
    ) -> Result<Self> {
        require_fraction(validation_fraction)?;
        let text::Opened { stretches, skipped } = text::open(paths, tokenizer, reading)?;
        let size = tokenizer.vocabulary_size();
        let corpus = Self::of(stretches, size, validation_fraction, reading);
        match corpus {
            Ok(corpus) => Ok(Self { skipped, end_of_text: tokenizer.end_of_text(), ..corpus }),
            Err(DataError::EmptyCorpus { .. }) => Err(match unread(&skipped) {
                Some(path) => DataError::NoParquet { path: path.clone() },
                None => DataError::EmptyCorpus { paths: paths.to_vec() },
            }),
            Err(error) => Err(error),
        }
    }

    /// A corpus of given tokens, all below `vocabulary_size`, none of which ends a document; the split is that
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
        require_fraction(validation_fraction)?;
        // What is no token of the vocabulary has no room in the width of the others.
        crate::tokenizer::check_vocabulary(&tokens, 0, vocabulary_size)?;
        let stretch = Stretch::held(&tokens, vocabulary_size);
        Self::of(vec![stretch], vocabulary_size, validation_fraction, &Reading::default())
    }

    fn of(
        mut stretches: Vec<Stretch>,
        vocabulary_size: usize,
        validation_fraction: f64,
        reading: &Reading<'_>,
    ) -> Result<Self> {
        stretches.retain(|stretch| stretch.tokens() > 0);
        let total: u64 = stretches.iter().map(Stretch::tokens).sum();
        if total == 0 {
            return Err(DataError::EmptyCorpus { paths: Vec::new() });
        }
        // Rounded up, so that a validation part that was asked for and came out
        // too short is noticed instead of vanishing.
        let validation_tokens = (total as f64 * validation_fraction).ceil() as u64;
        let digest = match stretches.as_slice() {
            [Stretch { digest: Some(digest), .. }] => *digest,
            stretches => digest(stretches, total, vocabulary_size, reading)?,
        };
        let mut end = 0;
        let ends = stretches.iter().map(|stretch| {
            end += stretch.tokens();
            end
        });
        Ok(Self {
            ends: ends.collect(),
            stretches,
            training_tokens: total.saturating_sub(validation_tokens),
            vocabulary_size,
            end_of_text: None,
            digest: digest.to_hex().to_string(),
            skipped: Vec::new(),
        })
    }

    /// How many tokens are to train on: the first ones.
    #[must_use]
    pub fn training_len(&self) -> u64 {
        self.training_tokens
    }

    /// How many tokens are to validate on: those behind the ones to train on.
    #[must_use]
    pub fn validation_len(&self) -> u64 {
        self.ends.last().map_or(0, |end| end - self.training_tokens)
    }

    /// Writes the tokens of a range into `to`, instead of what it has.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if a file cannot be read, [`DataError::Changed`] if it is not what it was.
    ///
    /// # Panics
    ///
    /// If there are not so many tokens.
    pub fn read(&self, range: Range<u64>, to: &mut Vec<u32>) -> Result<()> {
        to.clear();
        let mut start = range.start;
        let first = self.ends.partition_point(|&end| end <= start);
        for (stretch, &end) in self.stretches.iter().zip(&self.ends).skip(first) {
            if start >= range.end {
                break;
            }
            let before = end - stretch.tokens();
            let here = start - before..range.end.min(end) - before;
            stretch.read(here, to)?;
            start = range.end.min(end);
        }
        assert!(start >= range.end, "tokens {range:?} are in the corpus");
        Ok(())
    }

    /// The same, in which this token ends a document.
    #[must_use]
    pub fn with_end_of_text(self, token: u32) -> Self {
        Self { end_of_text: Some(token), ..self }
    }

    /// The token that ends a document, if there is one: that of the tokenizer.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text
    }

    /// The size of the vocabulary; every token is below it.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Bytes of memory that tokens take; those in files take none.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.stretches.iter().map(Stretch::held_in_memory).sum()
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

/// A file among these that another build would have read.
fn unread(skipped: &[PathBuf]) -> Option<&PathBuf> {
    let is_unread =
        |path: &&PathBuf| matches!(Kind::of(path), Kind::Documents(form) if !form.is_known());
    skipped.iter().find(is_unread)
}

fn require_fraction(fraction: f64) -> Result<()> {
    match (0.0..1.0).contains(&fraction) {
        true => Ok(()),
        false => Err(DataError::ValidationFraction { fraction }),
    }
}

fn digest(
    stretches: &[Stretch],
    total: u64,
    vocabulary_size: usize,
    reading: &Reading<'_>,
) -> Result<blake3::Hash> {
    let (mut digest, mut before, mut done) = (Digest::default(), 0, 0);
    let mut heard = |tokens| {
        done += tokens;
        (reading.heard)(Progress { stage: Stage::Checking, done, total });
    };
    for stretch in stretches {
        add(stretch, &mut digest, (before, vocabulary_size), &mut heard)
            .map_err(|error| of_file(error, stretch, before))?;
        before += stretch.tokens();
    }
    Ok(digest.finish())
}

/// What a token that the vocabulary does not have means in a file that was made elsewhere.
fn of_file(error: DataError, stretch: &Stretch, before: u64) -> DataError {
    match (error, stretch.path()) {
        (DataError::TokenOutOfVocabulary { token, position, vocabulary_size }, Some(path)) => {
            let reason = format!(
                "token {token} at position {} is outside the vocabulary of {vocabulary_size}; name the \
                 tokenizer that it was made by with --tokenizer",
                position - before
            );
            DataError::TokenFile { path: path.to_path_buf(), reason }
        }
        (error, _) => error,
    }
}
