//! What can go wrong in this crate, in words a person can act on.

use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ProfileError>;

/// What went wrong. Every message names the rank or property of the machine concerned
/// and says what would be right; the underlying cause is part of the message.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
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
    #[error("{ranks} ranks are too many to run here at once; at most {most} can")]
    TooManyRanks {
        /// Ranks asked for.
        ranks: u32,
        /// The most there can be.
        most: u32,
    },

    /// Communication between ranks failed.
    #[error(transparent)]
    Fabric(#[from] shardloom_fabric::FabricError),

    /// Measurements that make no profile.
    #[error(transparent)]
    Cluster(#[from] shardloom_cluster::ClusterError),

    /// A rank failed.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: u32,
        /// What happened there.
        error: Box<ProfileError>,
    },

    /// Ranks of one machine that do not follow each other.
    #[error(
        "the ranks of {machine} do not follow each other; start processes machine by machine (mpirun's \
         default, --map-by slot)"
    )]
    Scattered {
        /// The machine.
        machine: String,
    },

    /// A rank broke one of its own rules.
    #[error("rank {rank} stopped: {reason}; this is a defect of the program, please report it")]
    RankPanicked {
        /// The rank.
        rank: u32,
        /// The broken rule.
        reason: String,
    },
}
