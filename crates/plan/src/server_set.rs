//! Some parameter servers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Different servers, by their numbers from 0, which are less than [`ServerSet::MOST`]: a list of numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct ServerSet {
    /// Bit n is set if server n is one of them.
    bits: u64,
}

impl ServerSet {
    /// Numbers are less than this.
    pub const MOST: u32 = u64::BITS;

    /// These and another; none if its number is too large.
    #[must_use]
    pub fn with(self, server: u32) -> Option<ServerSet> {
        let bit = 1u64.checked_shl(server)?;
        Some(ServerSet { bits: self.bits | bit })
    }

    /// Whether a server is one of them.
    pub fn contains(self, server: u32) -> bool {
        1u64.checked_shl(server).is_some_and(|bit| self.bits & bit != 0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Their numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..ServerSet::MOST).filter(move |&server| self.contains(server))
    }
}

impl TryFrom<Vec<u32>> for ServerSet {
    type Error = String;

    fn try_from(servers: Vec<u32>) -> Result<ServerSet, String> {
        let mut set = ServerSet::default();
        for server in servers {
            let with = set.with(server).filter(|_| !set.contains(server));
            set = with.ok_or_else(|| {
                format!("different servers are listed, with numbers below {}", ServerSet::MOST)
            })?;
        }
        Ok(set)
    }
}

impl From<ServerSet> for Vec<u32> {
    fn from(set: ServerSet) -> Vec<u32> {
        set.iter().collect()
    }
}

impl fmt::Display for ServerSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<u32> = self.iter().collect();
        write!(out, "{numbers:?}")
    }
}

impl fmt::Debug for ServerSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_different_and_have_numbers_that_fit() {
        let set = ServerSet::try_from(vec![63, 0]).expect("two servers");
        assert_eq!(Vec::from(set), [0, 63]);
        assert!(set.contains(63) && !set.contains(62) && !set.contains(64));
        for wrong in [vec![1, 1], vec![64]] {
            let error = ServerSet::try_from(wrong).expect_err("it is refused");
            assert_eq!(error, "different servers are listed, with numbers below 64");
        }
    }
}
