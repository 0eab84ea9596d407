//! What can go wrong in this crate, in words a person can act on.

use std::io;
use std::path::{Path, PathBuf};

use shardloom_document::at_line;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, DataError>;

/// What went wrong. Every message names the file or setting concerned
/// and says what would be right; the underlying cause is part of the message.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder it was tried on.
        path: PathBuf,
        /// What the operating system answered.
        error: io::Error,
    },

    /// A `tokenizer.json` that cannot be used.
    #[error("{}: cannot use this tokenizer: {reason}", at_line(&path.display().to_string(), *line))]
    Tokenizer {
        /// The tokenizer file.
        path: PathBuf,
        /// The line, from 1, where one is known.
        line: Option<usize>,
        /// What is wrong with it.
        reason: String,
    },

    /// The tokenizer failed on a text or on a list of tokens.
    #[error("the tokenizer failed: {reason}")]
    Tokenize {
        /// What the tokenizer answered.
        reason: String,
    },

    /// Bytes given to a tokenizer that works on text are not text.
    #[error("not UTF-8 text at byte {offset}; only the byte tokenizer takes arbitrary bytes")]
    NotUtf8 {
        /// The first byte that is not part of valid UTF-8.
        offset: usize,
    },

    /// A file with the ending of tokens that Megatron-LM writes has no index, and is not text.
    #[error(
        "{} is not UTF-8 text at byte {offset}, and as tokens of Megatron-LM it needs {} beside it; give it another \
         ending to train on its bytes",
        path.display(),
        index.display()
    )]
    NoIndex {
        /// The file.
        path: PathBuf,
        /// The index that is missing.
        index: PathBuf,
        /// The first byte that is not part of valid UTF-8.
        offset: u64,
    },

    /// A file named as training data is not text.
    #[error(
        "{} is not UTF-8 text at byte {offset}; name a text file, {}",
        path.display(),
        match path.extension() {
            Some(ending) if ending == "jsonl" => "as JSON is text",
            _ => "or use the byte tokenizer",
        }
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of valid UTF-8.
        offset: u64,
    },

    /// A text in which no place to cut it at was found.
    #[error(
        "{} has {bytes} bytes in a row without a line end between two words, which is where text is cut \
         to be encoded; break it into lines",
        path.display()
    )]
    NoCut {
        /// The file.
        path: PathBuf,
        /// Bytes without such a place.
        bytes: usize,
    },

    /// The tokens of a text cannot be kept.
    #[error(
        "cannot keep encoded text in {}: {error}; name another folder with --cache DIR",
        folder.display()
    )]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the operating system answered.
        error: io::Error,
    },

    /// A line that is no document.
    #[error("{}:{line}: {reason}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },

    /// A Parquet file, where this was built without its feature.
    #[error(
        "{} is a Parquet file, which this build cannot read: install it with --features parquet, or write the \
         documents as JSON lines",
        path.display()
    )]
    NoParquet {
        /// The file.
        path: PathBuf,
    },

    /// A file of tokens that is none.
    #[error("cannot use the tokens in {}: {reason}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// Data that is no longer what it was when it was opened.
    #[error(
        "{} was changed while it was in use; start again, or resume from a checkpoint with the data as it was",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },

    /// The system has no room for a thread that encodes text.
    #[error("cannot start a thread to encode text: {error}; raise the system's limit of threads")]
    Threads {
        /// What the system answered.
        error: io::Error,
    },

    /// A path named as training data is neither a file nor a folder.
    #[error(
        "{} is {}",
        path.display(),
        if path.is_dir() { "a folder; name a file" } else { "neither a file nor a folder" }
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
    },

    /// A token id that the vocabulary does not have.
    #[error("token {token} at position {position} is outside the vocabulary of {vocabulary_size}")]
    TokenOutOfVocabulary {
        /// The token id.
        token: u32,
        /// Its index in the list of tokens.
        position: u64,
        /// Ids must be below this.
        vocabulary_size: usize,
    },

    /// A share of the data for validation that is not a share.
    #[error("validation fraction is {fraction}, but must be at least 0 and below 1")]
    ValidationFraction {
        /// The value given.
        fraction: f64,
    },

    /// No token at all in the training data.
    #[error("no text in {}", display_paths(paths))]
    EmptyCorpus {
        /// The files and folders named; empty for a corpus made from tokens.
        paths: Vec<PathBuf>,
    },

    /// Too few tokens for one window.
    #[error(
        "the {part} part of the corpus has {tokens} tokens, but one window of sequence length \
         {sequence_length} needs {needed}; use more data, a shorter sequence or another \
         validation fraction"
    )]
    CorpusTooShort {
        /// `training` or `validation`.
        part: &'static str,
        /// Tokens in that part.
        tokens: u64,
        /// Tokens of one window: the sequence and one more to predict.
        needed: u64,
        /// Input tokens of one window.
        sequence_length: usize,
    },

    /// A sequence length of zero.
    #[error("sequence length is 0, but must be at least 1")]
    SequenceLength,

    /// A vocabulary of too few words.
    #[error(
        "a vocabulary of {size} words has none beside those for unknown words and the end of a line; take 3 or more"
    )]
    VocabularySize {
        /// The size given.
        size: usize,
    },

    /// A table in a text that cannot be trained on.
    #[error("{}: {reason}", at_line(&path.display().to_string(), *line))]
    Table {
        /// The file.
        path: PathBuf,
        /// The line, from 1; none for the table as a whole.
        line: Option<usize>,
        /// What is wrong and what would be right.
        reason: String,
    },

    /// A table in a file without lines that cannot be trained on.
    #[error("{}{}: {reason}", path.display(), if *row > 0 { format!(", row {row}") } else { String::new() })]
    Column {
        /// The file.
        path: PathBuf,
        /// The row, from 1; 0 for the table as a whole.
        row: u64,
        /// What is wrong and what would be right.
        reason: String,
    },

    /// The data is not what a checkpoint was trained on.
    #[error(
        "the corpus has digest {found}, but the checkpoint was trained on {recorded}; \
         resume with the same data and tokenizer"
    )]
    CorpusChanged {
        /// Digest recorded in the checkpoint.
        recorded: String,
        /// Digest of the corpus at hand.
        found: String,
    },
}

impl DataError {
    /// A [`DataError::Io`] for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { action, path: path.to_path_buf(), error }
    }
}

fn display_paths(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "an empty list of tokens".to_owned();
    }
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
