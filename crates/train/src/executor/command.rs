//! What ranks are told and what they answer: data, which might as well come from another process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardloom_program::timeline::Track;

use crate::Result;
use crate::rank::{OwnedPiece, StepOutcome};
use shardloom_checkpoint::{Checkpoint, Saved, Shard, Shards, Snapshot};

/// What all ranks are told to do, in the same order.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Train steps in a row; record a timeline with times since an origin, if given as time since the run
    /// began. The virtual clock always records. The pipeline is empty before and after.
    Train { first_step: u64, steps: u32, record: Option<Duration> },
    /// Evaluate some micro-batches of the validation part, from its first sample on.
    Evaluate { microbatches: u64 },
    /// Something that needs a rank's own state, and nobody else.
    State(StateCommand),
}

/// What a rank is to do with what it holds from step to step.
#[derive(Clone, Debug)]
pub(crate) enum StateCommand {
    /// Name a tensor that the rank owns a part of and that has a number which is not finite.
    FindNonFinite,
    /// Say how many updates the parameters have had that the rank updates.
    ReportUpdates,
    /// Bring the weights that the rank owns.
    BringWeights,
    /// Bring all that the rank owns.
    BringAll,
    /// Write all that the rank owns where it belongs in a checkpoint.
    Save(Shards),
    /// Go on from where a run was saved.
    Restore { from: Arc<SavedState>, updates: Updates },
    /// Start from these weights, whole tensors by parameter name.
    SetWeights(Arc<BTreeMap<String, Vec<f32>>>),
}

/// What ranks go on from. Who holds a copy only reads it.
#[derive(Debug)]
pub(crate) enum SavedState {
    /// Files that all ranks can read.
    Files(Checkpoint),
    /// Whole tensors.
    Memory(Snapshot),
}

impl SavedState {
    pub fn saved(&self) -> &dyn Saved {
        match self {
            SavedState::Files(checkpoint) => checkpoint,
            SavedState::Memory(snapshot) => snapshot,
        }
    }
}

/// How many updates each parameter has had.
#[derive(Clone, Debug, Default)]
pub(crate) struct Updates {
    /// By name, where that is known of the one.
    pub of: BTreeMap<String, u64>,
    /// Of all others.
    pub others: u64,
}

impl Updates {
    pub fn of(&self, name: &str) -> u64 {
        self.of.get(name).copied().unwrap_or(self.others)
    }
}

/// What a command came to on one rank.
#[derive(Debug)]
pub(crate) struct Done {
    /// Of each step; of an evaluation as if it were one.
    pub steps: Vec<StepOutcome>,
    pub track: Option<Track>,
    /// What was asked for of the rank's state.
    pub answer: Option<Answer>,
    /// Bytes sent to other ranks since the start of the run.
    pub sent_bytes: u64,
    pub peak_bytes: u64,
    /// The most bytes of its messages that were on their way at once.
    pub peak_under_way_bytes: u64,
    /// How often the system was asked for a buffer since the rank was built.
    pub system_allocations: usize,
}

/// What a rank answers about its state.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// The name of a tensor with a number that is not finite, if there is one.
    NonFinite(Option<String>),
    /// How many updates parameters have had, by name.
    Updates(Vec<(String, u64)>),
    /// What the rank owns.
    Pieces(Vec<OwnedPiece>),
    /// What it has written.
    Shard(Shard),
}

/// What a rank of a run reports.
#[derive(Debug)]
pub(crate) struct Report {
    pub rank: u32,
    pub outcome: Result<Done>,
}
