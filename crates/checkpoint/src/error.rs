//! What can go wrong in this crate, in words a person can act on.

use std::io;
use std::path::{Path, PathBuf};

use crate::Refused;

/// A result of this crate.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// What went wrong. Every message names the file or tensor concerned
/// and says what would be right; the underlying cause is part of the message.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
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

    /// A piece of a tensor whose numbers do not fit together.
    #[error("piece of tensor `{name}`: {reason}")]
    Piece {
        /// The tensor.
        name: String,
        /// Which numbers contradict each other.
        reason: String,
    },

    /// Two pieces disagree on the shape of their tensor, or two replicas.
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

    /// The state of a run in memory does not hold a tensor of that name.
    #[error("no tensor `{name}` in the state of the run")]
    NotInSnapshot {
        /// The name asked for.
        name: String,
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

    /// Another run writes in a folder of checkpoints.
    #[error("another run writes in {}: {owner}; wait for its end, or name another folder", root.display())]
    InUse {
        /// The folder.
        root: PathBuf,
        /// Whose run it is.
        owner: String,
    },

    /// In the folder of a checkpoint that is to be deleted is something else.
    #[error("{} is in the folder of a checkpoint and none of its files; move it away", path.display())]
    Foreign {
        /// What is there.
        path: PathBuf,
    },

    /// There is no folder to read checkpoints from.
    #[error("there is no folder {}; checkpoints are in the one that a run was given with --checkpoint", root.display())]
    NoFolder {
        /// What was to be the folder.
        root: PathBuf,
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

impl CheckpointError {
    /// A [`CheckpointError::Io`] for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { action, path: path.to_path_buf(), error }
    }
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
