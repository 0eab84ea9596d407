use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::CollectiveError;

/// How a collective is carried out.
///
/// Written as text (and in serde) it is its kebab-case name, `ring` or
/// `halving-doubling`; hierarchical carries its inner group size: `hierarchical:8`.
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
}

impl Algorithm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::BinaryTree => "binary-tree",
            Algorithm::DoubleBinaryTree => "double-binary-tree",
            Algorithm::Hierarchical { .. } => "hierarchical",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Algorithm::Hierarchical { inner } => write!(f, ":{inner}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Algorithm {
    type Err = CollectiveError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || CollectiveError::UnknownAlgorithm { name: name.to_owned() };
        match name {
            "direct" => Ok(Algorithm::Direct),
            "ring" => Ok(Algorithm::Ring),
            "halving-doubling" => Ok(Algorithm::HalvingDoubling),
            "binary-tree" => Ok(Algorithm::BinaryTree),
            "double-binary-tree" => Ok(Algorithm::DoubleBinaryTree),
            _ => {
                let inner = name.strip_prefix("hierarchical:").ok_or_else(unknown)?;
                match inner.parse() {
                    Ok(inner) if inner > 0 => Ok(Algorithm::Hierarchical { inner }),
                    _ => Err(unknown()),
                }
            }
        }
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
