use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::CollectiveError;

/// How a collective is carried out.
///
/// Written as text (and in serde) it is its kebab-case name, `ring` or
/// `halving-doubling`; those with inner groups carry the size of these: `hierarchical:8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Algorithm {
    /// Everyone talks to everyone at once. Chunk owners reduce in ascending member
    /// order, so the sum does not depend on how the buffer was cut; this is also
    /// what reducing straight in shared memory does.
    Direct,
    /// Neighbours on a ring, one chunk per step (Patarasuk and Yuan, 2009): the
    /// fewest bytes, a number of steps that grows with the group. Broadcast and
    /// reduce run as a pipelined chain.
    Ring,
    /// Recursive halving, then recursive doubling (Thakur, Rabenseifner and Gropp,
    /// 2005): the ring's bytes in logarithmically many steps when the group is a
    /// power of two. Other sizes fold the extra members into partners first.
    HalvingDoubling,
    /// One binary tree, pipelined in segments.
    BinaryTree,
    /// Two binary trees, each carrying half of the buffer, such that inner nodes of
    /// one are leaves of the other (Sanders, Speck and Träff, 2009): logarithmic
    /// latency at nearly the ring's bandwidth.
    DoubleBinaryTree,
    /// Rings within groups of `inner` consecutive members (a node), then rings
    /// across them between members of equal position.
    Hierarchical {
        /// Members per inner group; must divide the size of the whole group.
        inner: u32,
    },
    /// All to the first member, which reduces in ascending member order, and from it to all: the fewest
    /// messages, all of them to or from one member. KungFu's `STAR` (Mai et al., OSDI 2020), as those below are
    /// its graphs.
    Star,
    /// A star within each inner group, and one between the first members of these. KungFu's `TREE`.
    TwoLevelStar {
        /// Members per inner group; must divide the size of the whole group.
        inner: u32,
    },
    /// As many two-level stars as there are inner groups, each around the first member of another one and with
    /// an equal chunk of the buffer. KungFu's `MULTI_STAR`.
    MultiStar {
        /// Members per inner group; must divide the size of the whole group.
        inner: u32,
    },
    /// A star within each inner group, and a binary tree between the first members of these, pipelined in
    /// segments. KungFu's `BINARY_TREE_STAR`.
    BinaryTreeStar {
        /// Members per inner group; must divide the size of the whole group.
        inner: u32,
    },
    /// As many such trees as there are inner groups, each rooted in another one and with an equal chunk of the
    /// buffer. KungFu's `MULTI_BINARY_TREE_STAR`.
    MultiBinaryTreeStar {
        /// Members per inner group; must divide the size of the whole group.
        inner: u32,
    },
}

/// An algorithm with inner groups, by their size.
type OfInner = fn(u32) -> Algorithm;

impl Algorithm {
    /// Those without inner groups.
    pub const FLAT: [Algorithm; 6] = [
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::BinaryTree,
        Algorithm::DoubleBinaryTree,
        Algorithm::Star,
    ];

    /// Those with inner groups, by the size of these.
    pub const NESTED: [OfInner; 5] = [
        |inner| Algorithm::Hierarchical { inner },
        |inner| Algorithm::TwoLevelStar { inner },
        |inner| Algorithm::MultiStar { inner },
        |inner| Algorithm::BinaryTreeStar { inner },
        |inner| Algorithm::MultiBinaryTreeStar { inner },
    ];

    /// Members per inner group, where it has such groups.
    pub fn inner(self) -> Option<u32> {
        match self {
            Algorithm::Hierarchical { inner }
            | Algorithm::TwoLevelStar { inner }
            | Algorithm::MultiStar { inner }
            | Algorithm::BinaryTreeStar { inner }
            | Algorithm::MultiBinaryTreeStar { inner } => Some(inner),
            _ => None,
        }
    }

    /// What a group of `members` takes where this is asked for: this, or the ring where inner groups do not
    /// divide the group.
    pub fn among(self, members: u32) -> Algorithm {
        match self.inner() {
            Some(inner) if inner == 0 || !members.is_multiple_of(inner) => Algorithm::Ring,
            _ => self,
        }
    }

    /// Its name, without the size of inner groups.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::BinaryTree => "binary-tree",
            Algorithm::DoubleBinaryTree => "double-binary-tree",
            Algorithm::Hierarchical { .. } => "hierarchical",
            Algorithm::Star => "star",
            Algorithm::TwoLevelStar { .. } => "two-level-star",
            Algorithm::MultiStar { .. } => "multi-star",
            Algorithm::BinaryTreeStar { .. } => "binary-tree-star",
            Algorithm::MultiBinaryTreeStar { .. } => "multi-binary-tree-star",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.inner() {
            Some(inner) => write!(f, ":{inner}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Algorithm {
    type Err = CollectiveError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is = |it: &Algorithm, name: &str| it.name().eq_ignore_ascii_case(name);
        let found = match text.split_once(':') {
            None => Algorithm::FLAT.into_iter().find(|it| is(it, text)),
            Some((name, inner)) => {
                inner.parse().ok().filter(|&inner| inner > 0).and_then(|inner| {
                    Algorithm::NESTED.into_iter().map(|of| of(inner)).find(|it| is(it, name))
                })
            }
        };
        found.ok_or_else(|| CollectiveError::UnknownAlgorithm { name: text.to_owned() })
    }
}

impl From<Algorithm> for String {
    fn from(algorithm: Algorithm) -> String {
        algorithm.to_string()
    }
}

impl TryFrom<String> for Algorithm {
    type Error = CollectiveError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}
