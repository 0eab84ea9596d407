use crate::{Algorithm, Kind, Member};

/// Why a collective cannot be planned, parsed or applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum CollectiveError {
    /// No step list exists for this pair.
    #[error("{kind} has no {algorithm} algorithm; it has {}", .kind.algorithm_names().join(", "))]
    Unsupported {
        /// What was asked for.
        kind: Kind,
        /// The algorithm that does not do it.
        algorithm: Algorithm,
    },
    /// A group needs at least one member.
    #[error("a collective needs at least 1 member, got 0")]
    NoMembers,
    /// A broadcast or reduce names a root outside the group.
    #[error("root {} is outside the group: members are 0 to {}", .root.0, .members - 1)]
    RootOutside {
        /// The root asked for.
        root: Member,
        /// Size of the group.
        members: u32,
    },
    /// All-to-all swaps chunks pairwise, so all of them must be equally long.
    #[error(
        "all-to-all over {members} members needs a buffer divisible by {members}, got {elements} elements"
    )]
    UnequalChunks {
        /// Length of the buffer.
        elements: usize,
        /// Size of the group.
        members: u32,
    },
    /// An algorithm with inner groups needs a whole number of them.
    #[error(
        "{algorithm} cannot cut {members} members into inner groups of that size, which must divide {members}"
    )]
    InnerDoesNotDivide {
        /// The algorithm, with the size of its inner groups.
        algorithm: Algorithm,
        /// Size of the whole group.
        members: u32,
    },
    /// The buffers given to the interpreter do not fit the list.
    #[error(
        "the step list is for {members} buffers of {elements} elements each, got lengths {lengths:?}"
    )]
    BufferShape {
        /// Number of buffers the list is for.
        members: u32,
        /// Length each must have.
        elements: usize,
        /// Lengths given.
        lengths: Vec<usize>,
    },
    /// A name that stands for no algorithm.
    #[error(
        "unknown collective algorithm `{name}`; known: direct, ring, halving-doubling, binary-tree, \
         double-binary-tree, star; and with N members per inner group, at least 1: hierarchical:N, \
         two-level-star:N, multi-star:N, binary-tree-star:N, multi-binary-tree-star:N"
    )]
    UnknownAlgorithm {
        /// The name given.
        name: String,
    },
    /// A name that stands for no collective.
    #[error(
        "unknown collective `{name}`; known: all-reduce, reduce-scatter, all-gather, all-to-all, \
         broadcast:ROOT, reduce:ROOT"
    )]
    UnknownKind {
        /// The name given.
        name: String,
    },
}
