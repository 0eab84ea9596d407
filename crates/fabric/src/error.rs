use std::time::Duration;

use shardloom_collectives::CollectiveError;

use crate::{Call, Operation};

/// Why communication failed.
///
/// An error in a collective other than [`FabricError::Collective`] breaks the group:
/// all members get the same error, now or at their next call, and so does every later
/// call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum FabricError {
    /// Other ranks took longer than the timeout in [`Settings`](crate::Settings).
    #[error(
        "{operation} timed out on rank {rank} after {after:?}, still waiting for rank {}",
        list(.waiting_for)
    )]
    Timeout {
        /// The rank that gave up.
        rank: u32,
        /// What it gave up.
        operation: Operation,
        /// The ranks that had not done their part.
        waiting_for: Vec<u32>,
        /// How long it waited.
        after: Duration,
    },
    /// The other side can no longer do its part.
    #[error("{operation} on rank {rank} cannot finish: rank {peer} is gone ({reason})")]
    PeerGone {
        /// The rank that noticed.
        rank: u32,
        /// What it was doing.
        operation: Operation,
        /// The rank that is gone.
        peer: u32,
        /// Why, as that rank reported it.
        reason: String,
    },
    /// Members of a group called different collectives at the same point.
    #[error(
        "the members of group {members:?} disagree: rank {rank} called {call}, rank {other_rank} \
         called {other_call}; all members must make the same calls in the same order"
    )]
    Mismatch {
        /// Ranks of the group.
        members: Vec<u32>,
        /// The group's first rank.
        rank: u32,
        /// What it called.
        call: Call,
        /// The first rank that called something else.
        other_rank: u32,
        /// What that one called.
        other_call: Call,
    },
    /// Members count what one sends to the other differently, or have no room for it.
    #[error("all-to-all with counts in group {members:?} on rank {rank}: {reason}")]
    Counts {
        /// Ranks of the group.
        members: Vec<u32>,
        /// The rank that noticed.
        rank: u32,
        /// What does not fit what.
        reason: String,
    },
    /// Requests that some member does not make, or in other lists than are repeated.
    #[error(
        "requests {} of rank {rank} were not answered for {after:?}: some member of their group does not make \
         them, or lists are repeated that are of other requests",
        list(.requests)
    )]
    Unanswered {
        /// The rank that gave up.
        rank: u32,
        /// The numbers of its requests.
        requests: Vec<u32>,
        /// For how long nothing was answered.
        after: Duration,
    },
    /// What a rank publishes is not what another has room for.
    #[error("rank {rank} cannot fetch what rank {from} publishes: {reason}")]
    Unfit {
        /// The rank that fetched.
        rank: u32,
        /// The rank that publishes.
        from: u32,
        /// What does not fit what.
        reason: String,
    },
    /// An engine that cannot be started.
    #[error("the engine cannot start: {reason}")]
    Start {
        /// Why.
        reason: String,
    },
    /// A rank outside the engine.
    #[error("there is no rank {rank}: ranks are below {ranks}")]
    NoSuchRank {
        /// The rank named.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// A group that lists a rank twice.
    #[error("group {members:?} lists rank {rank} more than once; members must be distinct")]
    RepeatedMember {
        /// Ranks of the group.
        members: Vec<u32>,
        /// The rank listed twice.
        rank: u32,
    },
    /// A group built by a rank that is not in it.
    #[error("rank {rank} cannot build group {members:?}: only members can")]
    NotAMember {
        /// Ranks of the group.
        members: Vec<u32>,
        /// The rank that tried.
        rank: u32,
    },
    /// There is no such collective for this group and buffer. The group stays usable.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
