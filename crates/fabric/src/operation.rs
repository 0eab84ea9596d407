use std::fmt;

use shardloom_collectives::{Algorithm, Kind, Reduction};

use crate::{FabricError, Format};

/// What a rank was doing, for errors to name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Operation {
    /// Sending a message.
    Send {
        /// Receiving rank.
        to: u32,
        /// Tag of the message.
        tag: u64,
    },
    /// Receiving a message.
    Receive {
        /// Sending rank.
        from: u32,
        /// Tag asked for.
        tag: u64,
    },
    /// Receiving a message from whichever rank sends one first.
    ReceiveAny {
        /// Ranks asked, each with the tag asked for.
        from: Vec<(u32, u64)>,
    },
    /// Waiting until what the rank publishes has been read.
    Fetched {
        /// How often it is to be.
        times: u64,
    },
    /// Reading what a rank publishes.
    Fetch {
        /// The rank.
        from: u32,
    },
    /// Taking part in a collective.
    Collective {
        /// What was called.
        call: Call,
        /// Ranks of the group.
        members: Vec<u32>,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Send { to, tag } => write!(f, "send of tag {tag} to rank {to}"),
            Operation::Receive { from, tag } => write!(f, "receive of tag {tag} from rank {from}"),
            Operation::ReceiveAny { from } => {
                f.write_str("receive of any of")?;
                for (index, (rank, tag)) in from.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "," };
                    write!(f, "{separator} tag {tag} from rank {rank}")?;
                }
                Ok(())
            }
            Operation::Fetched { times } => {
                write!(f, "wait for {times} fetches of what it publishes")
            }
            Operation::Fetch { from } => write!(f, "fetch of what rank {from} publishes"),
            Operation::Collective { call, members } => write!(f, "{call} in group {members:?}"),
        }
    }
}

/// A collective as called; all members of a group must make equal calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Call {
    /// Waiting for all members.
    Barrier,
    /// Exchanging buffers.
    Exchange {
        /// What is achieved.
        kind: Kind,
        /// How.
        algorithm: Algorithm,
        /// What reducing means; [`Reduction::Sum`] for kinds that reduce nothing.
        reduction: Reduction,
        /// Length of the buffer.
        elements: usize,
        /// How they are stored.
        format: Format,
    },
    /// Exchanging parts of whatever length members agree on.
    AllToAllV {
        /// How elements are stored.
        format: Format,
    },
}

impl Call {
    /// Exchanging buffers; what reducing means is passed over where nothing is reduced.
    pub(crate) fn exchange(
        kind: Kind,
        algorithm: Algorithm,
        reduction: Reduction,
        (elements, format): (usize, Format),
    ) -> Call {
        let reduction = match kind {
            Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. } => reduction,
            Kind::AllGather | Kind::AllToAll | Kind::Broadcast { .. } => Reduction::Sum,
        };
        Call::Exchange { kind, algorithm, reduction, elements, format }
    }
}

/// What is wrong with the calls of a group's members, by position, if they differ.
pub(crate) fn disagreement(
    members: &[u32],
    calls: impl IntoIterator<Item = Call>,
) -> Option<FabricError> {
    let mut calls = calls.into_iter().zip(members);
    let (call, _) = calls.next()?;
    let (other_call, &other_rank) = calls.find(|&(other, _)| other != call)?;
    let (members, rank) = (members.to_vec(), members[0]);
    Some(FabricError::Mismatch { members, rank, call, other_rank, other_call })
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Barrier => f.write_str("barrier"),
            Call::AllToAllV { format } => write!(f, "all-to-all of {format} with counts"),
            Call::Exchange { kind, algorithm, reduction, elements, format } => {
                write!(f, "{kind} of {elements} {format} ({algorithm}")?;
                match (kind, reduction) {
                    (Kind::AllGather | Kind::AllToAll | Kind::Broadcast { .. }, _) => {}
                    (_, Reduction::Sum) => f.write_str(", sum")?,
                    (_, Reduction::Max) => f.write_str(", max")?,
                }
                f.write_str(")")
            }
        }
    }
}
