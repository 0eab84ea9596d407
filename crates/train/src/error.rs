//! What can go wrong in this crate, in words a person can act on.

use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::Refused;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Every message names the file, tensor or setting concerned
/// and says what would be right; the underlying cause is part of the message.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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

    /// The plan has no program.
    #[error(transparent)]
    Program(#[from] shardloom_program::ProgramError),

    /// The plan asks for what training here does not do.
    #[error("cannot train this plan here: {reason}")]
    Unsupported {
        /// What it asks for and what would be right.
        reason: String,
    },

    /// A model that no text can be sampled from.
    #[error("cannot sample: {reason}")]
    Sampling {
        /// What is missing.
        reason: String,
    },

    /// Communication between ranks failed.
    #[error(transparent)]
    Fabric(#[from] shardloom_fabric::FabricError),

    /// The modelled machine cannot run the program.
    #[error(transparent)]
    Simulation(#[from] shardloom_sim::SimError),

    /// The operating system does not say what a profile of this machine needs.
    #[error("the {what} of this machine is unknown: {reason}")]
    Machine {
        /// What is unknown.
        what: &'static str,
        /// Why, and what to do about it.
        reason: String,
    },

    /// The environment asks for kernels that cannot be had.
    #[error(transparent)]
    Kernels(#[from] shardloom_kernels::TierError),

    /// The system has no room for a thread.
    #[error(
        "cannot start a thread for rank {rank} of {ranks}: {error}; use fewer ranks, or raise the \
         system's limit of threads"
    )]
    Thread {
        /// The rank.
        rank: u32,
        /// Ranks in all.
        ranks: u32,
        /// What the system answered.
        error: io::Error,
    },

    /// More ranks than can be threads of one process.
    #[error(
        "{ranks} ranks are too many to run here at once; at most {most} can, and under the virtual clock \
         any number can be trained"
    )]
    TooManyRanks {
        /// Ranks asked for.
        ranks: u32,
        /// The most there can be.
        most: u32,
    },

    /// A rank is asked for more after it failed.
    #[error(
        "it failed before and does no more; start the run again, from a checkpoint if there is one"
    )]
    Failed,

    /// Measurements that make no profile.
    #[error(transparent)]
    Cluster(#[from] shardloom_cluster::ClusterError),

    /// A rank failed.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: u32,
        /// What happened there.
        error: Box<Error>,
    },

    /// A rank broke one of its own rules.
    #[error("rank {rank} stopped: {reason}; this is a defect of the program, please report it")]
    RankPanicked {
        /// The rank.
        rank: u32,
        /// The broken rule.
        reason: String,
    },

    /// More rows of a sample chose an expert than it has slots for, and the model says that this ends the run.
    #[error(
        "step {step}, {layer}: {count} rows of sample {sample} chose expert {expert}, which has {bound} \
         slots; give it more, or say overflow = \"drop\""
    )]
    Overflow {
        /// The step.
        step: u64,
        /// The routing.
        layer: String,
        /// The expert.
        expert: usize,
        /// The sample, counted from the start of the data.
        sample: u64,
        /// Rows that chose the expert.
        count: u64,
        /// Slots that it has for rows of a sample.
        bound: u64,
    },

    /// The data has no such input, or not of the model's shape.
    #[error("sample {position} has no input `{input}` of the shape and kind that the model reads")]
    Input {
        /// The model's input.
        input: String,
        /// The sample.
        position: u64,
    },

    /// A weight that the model has and the file does not.
    #[error("no tensor `{name}`, which the model needs")]
    MissingWeight {
        /// The tensor.
        name: String,
    },

    /// A tensor of another shape than the model's.
    #[error("tensor `{name}` has shape {found:?}, but the model needs {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The model's shape.
        expected: Vec<usize>,
    },

    /// The loss is no number any more.
    #[error(
        "the loss of step {step} is {loss}; lower the learning rate, clip gradients, or choose to \
         skip or continue on such steps"
    )]
    NonFiniteLoss {
        /// The step.
        step: u64,
        /// The loss.
        loss: f64,
    },

    /// The gradient is no number any more; the weights are as they were before.
    #[error(
        "the gradient of step {step} is not finite, and its update was left out; lower the learning rate, \
         clip gradients, or choose to skip or continue on such steps"
    )]
    NonFiniteGradient {
        /// The step.
        step: u64,
    },

    /// Weights or optimizer state are no numbers any more, and nothing that could be gone on from.
    #[error(
        "{name} holds values that are not finite, so no checkpoint is written; lower the learning rate \
         and go on from the one before, or choose to continue on such steps"
    )]
    NonFiniteWeights {
        /// The parameter or its state.
        name: String,
    },

    /// A learning rate schedule that makes no sense.
    #[error("learning rate: {reason}")]
    LearningRate {
        /// Which setting is wrong, its value, and what it must be.
        reason: String,
    },

    /// A `tokenizer.json` that cannot be used.
    #[error("cannot use the tokenizer {}: {reason}", path.display())]
    Tokenizer {
        /// The tokenizer file.
        path: PathBuf,
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

    /// A file named as training data is not text.
    #[error(
        "{} is not UTF-8 text at byte {offset}; name a text file, or use the byte tokenizer",
        path.display()
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of valid UTF-8.
        offset: usize,
    },

    /// A path named as training data is neither a file nor a folder.
    #[error("{} is neither a file nor a folder", path.display())]
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
        position: usize,
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
        tokens: usize,
        /// Tokens of one window: the sequence and one more to predict.
        needed: usize,
        /// Input tokens of one window.
        sequence_length: usize,
    },

    /// A sequence length of zero.
    #[error("sequence length is 0, but must be at least 1")]
    SequenceLength,

    /// A table that cannot be trained on.
    #[error("{}{}: {reason}", path.display(), if *row > 0 { format!(", row {row}") } else { String::new() })]
    Table {
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

    /// A piece of a tensor whose numbers do not fit together.
    #[error("piece of tensor `{name}`: {reason}")]
    Piece {
        /// The tensor.
        name: String,
        /// Which numbers contradict each other.
        reason: String,
    },

    /// Two pieces disagree on the shape of their tensor.
    #[error("tensor `{name}` has shape {first:?} in one piece and {second:?} in another")]
    ShapeConflict {
        /// The tensor.
        name: String,
        /// The shape seen first.
        first: Vec<usize>,
        /// The shape that contradicts it.
        second: Vec<usize>,
    },

    /// The same rank wrote two shards of one checkpoint.
    #[error("rank {rank} has already written its shard {}", path.display())]
    ShardTwice {
        /// The rank.
        rank: u32,
        /// Its shard file.
        path: PathBuf,
    },

    /// A checkpoint without a single tensor.
    #[error(
        "the checkpoint of step {step} has no tensors; write at least one shard before `finish`"
    )]
    NoTensors {
        /// The step.
        step: u64,
    },

    /// A checkpoint does not hold a tensor of that name.
    #[error("no tensor `{name}` in {}; {}", path.display(), some_of(available))]
    UnknownTensor {
        /// The name asked for.
        name: String,
        /// The checkpoint.
        path: PathBuf,
        /// The names it holds.
        available: Vec<String>,
    },

    /// No piece holds some of the elements.
    #[error(
        "tensor `{name}`: {missing} of {elements} elements are in no piece, the first at {first:?}"
    )]
    MissingElements {
        /// The tensor.
        name: String,
        /// Elements that no piece holds.
        missing: usize,
        /// Elements asked for.
        elements: usize,
        /// Global coordinates of the first missing element.
        first: Vec<usize>,
    },

    /// A file of a checkpoint is not as it was written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not match.
        reason: String,
    },

    /// A checkpoint of a format this build does not read.
    #[error(
        "{} has checkpoint format version {found}, but this build reads version {supported}",
        path.display()
    )]
    FormatVersion {
        /// The file that states the version.
        path: PathBuf,
        /// The version it states.
        found: u32,
        /// The version this build reads and writes.
        supported: u32,
    },

    /// Not one checkpoint of a folder can be used.
    #[error("no usable checkpoint in {}{}", root.display(), display_refused(refused))]
    NoUsableCheckpoint {
        /// The folder.
        root: PathBuf,
        /// Every checkpoint in it, newest first, and why it was refused.
        refused: Vec<Refused>,
    },

    /// A safetensors file that cannot be read.
    #[error("{} is not a readable safetensors file: {reason}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A weight of a number format that is not converted.
    #[error(
        "tensor `{name}` in {} has type {dtype}; only F32, F16 and BF16 are read",
        path.display()
    )]
    UnsupportedDtype {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
        /// Its type, as safetensors calls it.
        dtype: String,
    },
}

impl Error {
    /// Errors for more ranks than can be threads of one process: between every two is a channel.
    pub(crate) fn unless_threads(ranks: u32) -> Result<()> {
        const MOST: u32 = 4096;
        match ranks > MOST {
            true => Err(Error::TooManyRanks { ranks, most: MOST }),
            false => Ok(()),
        }
    }

    /// An [`Error::Io`] for `map_err`.
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

fn some_of(available: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = available.iter().take(SHOWN).map(|name| format!("`{name}`"));
    let mut text = format!("it holds {}", shown.collect::<Vec<_>>().join(", "));
    if let Some(more) = available.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        text += &format!(" and {more} more");
    }
    text
}

fn display_refused(refused: &[Refused]) -> String {
    refused.iter().map(|refused| format!("\n  {refused}")).collect()
}
