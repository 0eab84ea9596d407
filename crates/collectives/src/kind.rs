use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Algorithm, CollectiveError};

/// Index of a member within its group, from 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Member(pub u32);

impl Member {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a collective achieves on the one buffer each member holds.
///
/// "Chunk r" is [`chunk`](crate::chunk)`(elements, members, r)`. Written as text
/// (and in serde) it is its kebab-case name; broadcast and reduce carry their
/// root: `broadcast:0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Kind {
    /// Full buffers in; the reduction of all of them out, on every member.
    AllReduce,
    /// Full buffers in; chunk r of the reduction out on member r. The rest of the
    /// buffer holds partial results afterwards.
    ReduceScatter,
    /// Chunk r of member r in; all chunks out on every member.
    AllGather,
    /// Chunk j of member i afterwards is what chunk i of member j was before. The
    /// buffer must be divisible by the number of members. Exchange is in place:
    /// both directions of a pair happen in the same step.
    AllToAll,
    /// The root's buffer in; a copy of it out on every member.
    Broadcast {
        /// Who has the buffer.
        root: Member,
    },
    /// Full buffers in; their reduction out on the root. Other members' buffers
    /// hold partial results afterwards.
    Reduce {
        /// Who gets the reduction.
        root: Member,
    },
}

impl Kind {
    /// The root, for the kinds that have one.
    pub fn root(self) -> Option<Member> {
        match self {
            Kind::Broadcast { root } | Kind::Reduce { root } => Some(root),
            Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll => None,
        }
    }

    /// Whether [`plan`](crate::plan) has a step list for this pair, whatever the group.
    pub fn has(self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Direct => true,
            Algorithm::Ring => self != Kind::AllToAll,
            Algorithm::HalvingDoubling => {
                matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather)
            }
            Algorithm::BinaryTree => {
                matches!(self, Kind::AllReduce | Kind::Broadcast { .. } | Kind::Reduce { .. })
            }
            Algorithm::Hierarchical { .. } => self.root().is_none(),
            Algorithm::DoubleBinaryTree
            | Algorithm::Star
            | Algorithm::TwoLevelStar { .. }
            | Algorithm::MultiStar { .. }
            | Algorithm::BinaryTreeStar { .. }
            | Algorithm::MultiBinaryTreeStar { .. } => self == Kind::AllReduce,
        }
    }

    pub(crate) fn algorithm_names(self) -> Vec<&'static str> {
        let nested = Algorithm::NESTED.into_iter().map(|of| of(1));
        let all = Algorithm::FLAT.into_iter().chain(nested);
        all.filter(|&algorithm| self.has(algorithm)).map(Algorithm::name).collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::AllReduce => f.write_str("all-reduce"),
            Kind::ReduceScatter => f.write_str("reduce-scatter"),
            Kind::AllGather => f.write_str("all-gather"),
            Kind::AllToAll => f.write_str("all-to-all"),
            Kind::Broadcast { root } => write!(f, "broadcast:{}", root.0),
            Kind::Reduce { root } => write!(f, "reduce:{}", root.0),
        }
    }
}

impl FromStr for Kind {
    type Err = CollectiveError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || CollectiveError::UnknownKind { name: name.to_owned() };
        match name.split_once(':') {
            None => match name {
                "all-reduce" => Ok(Kind::AllReduce),
                "reduce-scatter" => Ok(Kind::ReduceScatter),
                "all-gather" => Ok(Kind::AllGather),
                "all-to-all" => Ok(Kind::AllToAll),
                _ => Err(unknown()),
            },
            Some((kind, root)) => {
                let root = Member(root.parse().map_err(|_| unknown())?);
                match kind {
                    "broadcast" => Ok(Kind::Broadcast { root }),
                    "reduce" => Ok(Kind::Reduce { root }),
                    _ => Err(unknown()),
                }
            }
        }
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> String {
        kind.to_string()
    }
}

impl TryFrom<String> for Kind {
    type Error = CollectiveError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}
