//! What can go wrong in this crate, in words a person can act on.

use std::io;

use shardloom_program::quantity::bytes;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Every message names the file, tensor or setting concerned
/// and says what would be right; the underlying cause is part of the message.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan has no program.
    #[error(transparent)]
    Program(#[from] shardloom_program::ProgramError),

    /// The plan asks for what training here does not do.
    #[error("cannot train this plan here: {reason}")]
    Unsupported {
        /// What it asks for and what would be right.
        reason: String,
    },

    /// A checkpoint has state of so many replicas with weights of their own, and the plan has another number.
    #[error(
        "the checkpoint has weights or optimizer state of {saved} replicas of their own, and the plan has \
         {replicas}: resume with as many, or start a new run from its exported weights, the mean where they differ"
    )]
    Replicas {
        /// Replicas that were saved.
        saved: usize,
        /// Replicas with such of their own in the plan; 1 where replicas are kept equal.
        replicas: usize,
    },
    /// A parameter of which several replicas have weights of their own cannot be frozen as it is.
    #[error(
        "the checkpoint has {parameter} of {saved} replicas with weights of their own, and the plan freezes it for all \
         alike: freeze it in a new run from the checkpoint's exported weights, which are the mean"
    )]
    FrozenReplicas {
        /// The parameter.
        parameter: String,
        /// Replicas that were saved.
        saved: usize,
    },

    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] shardloom_checkpoint::CheckpointError),

    /// A model that no text can be sampled from.
    #[error("cannot sample: {reason}")]
    Sampling {
        /// What is missing.
        reason: String,
    },

    /// A model that gives no class to samples.
    #[error("cannot classify: {reason}")]
    Classes {
        /// What is wrong, and what would be right.
        reason: String,
    },

    /// Communication between ranks failed.
    #[error(transparent)]
    Fabric(#[from] shardloom_fabric::FabricError),

    /// The modelled machine cannot run the program.
    #[error(transparent)]
    Simulation(#[from] shardloom_sim::SimError),

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

    /// A rank failed.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// The rank.
        rank: u32,
        /// What happened there, as the rank reported it.
        reason: String,
    },

    /// A process of the run is gone.
    #[error("process {process}{host} of the run is gone: {reason}")]
    ProcessGone {
        /// The process.
        process: u32,
        /// The machine that it ran on, as " (on NAME)", where that is known.
        host: String,
        /// Why, as far as it said.
        reason: String,
    },

    /// The processes of a run do not fit together.
    #[error("the processes of the run: {reason}")]
    Processes {
        /// In what.
        reason: String,
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
        "{}, {layer}: {count} rows of {} {sample} chose expert {expert}, which has {bound} slots; give it \
         more, or say overflow = \"drop\"",
        .step.map_or("validation".to_owned(), |step| format!("step {step}")),
        if .step.is_some() { "sample" } else { "validation sample" },
    )]
    Overflow {
        /// The step; none in validation.
        step: Option<u64>,
        /// The routing.
        layer: String,
        /// The expert.
        expert: usize,
        /// The sample, counted from the start of the data; in validation from the start of that part.
        sample: u64,
        /// Rows that chose the expert.
        count: u64,
        /// Slots that it has for rows of a sample.
        bound: u64,
    },

    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] shardloom_data::DataError),

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

    /// Passes of a trained model need more memory than there is.
    #[error(
        "the model needs {} for its weights and what it computes, but this machine has {} available",
        bytes(*needed_bytes),
        bytes(*available_bytes)
    )]
    Memory {
        /// What it needs.
        needed_bytes: u64,
        /// What there is.
        available_bytes: u64,
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
         clip gradients, scale the loss by less if the plan scales it (loss_scale), or choose to skip or continue on \
         such steps"
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
}
