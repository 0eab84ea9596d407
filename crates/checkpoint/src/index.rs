//! Which pieces there are of each tensor.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter::once;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::overlap::for_each_run;
use crate::piece::Region;
use crate::{CheckpointError, Result};

/// A piece and where its values are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredPiece {
    pub(crate) region: Region,
    /// The rank in whose shard it is.
    pub(crate) rank: u32,
    /// Where its values begin in the shard file.
    pub(crate) offset_bytes: u64,
}

/// A global tensor and its pieces, which may overlap where replicas were
/// written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredTensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) pieces: Vec<StoredPiece>,
}

/// Every tensor of a checkpoint, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Index {
    tensors: BTreeMap<String, StoredTensor>,
}

impl Index {
    /// Adds a piece of tensor `name`; its shape must be that of the others.
    pub(crate) fn insert(&mut self, name: &str, shape: &[usize], piece: StoredPiece) -> Result<()> {
        match self.tensors.entry(name.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(StoredTensor { shape: shape.to_vec(), pieces: vec![piece] });
            }
            Entry::Occupied(entry) if entry.get().shape != shape => {
                return Err(CheckpointError::ShapeConflict {
                    name: name.to_owned(),
                    first: entry.get().shape.clone(),
                    second: shape.to_vec(),
                });
            }
            Entry::Occupied(entry) => entry.into_mut().pieces.push(piece),
        }
        Ok(())
    }

    /// Adds all of another index.
    pub(crate) fn merge(&mut self, other: Self) -> Result<()> {
        for (name, StoredTensor { shape, pieces }) in other.tensors {
            for piece in pieces {
                self.insert(&name, &shape, piece)?;
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Errors unless every element of every tensor is in some piece.
    pub(crate) fn require_complete(&self) -> Result<()> {
        self.tensors
            .iter()
            .try_for_each(|(name, tensor)| tensor.require(name, &Region::whole(&tensor.shape)))
    }
}

impl StoredTensor {
    /// Errors unless every element of `region` is in some piece. What it takes grows with what pieces hold, not
    /// with the size that a file claims for the tensor.
    pub(crate) fn require(&self, name: &str, region: &Region) -> Result<()> {
        let mut held: Vec<Range<usize>> = vec![];
        for piece in &self.pieces {
            for_each_run(&piece.region, region, |run| {
                let end = run.target + run.elements;
                match held.last_mut() {
                    Some(last) if last.end == run.target => last.end = end,
                    _ => held.push(run.target..end),
                }
            });
        }
        held.sort_unstable_by_key(|run| run.start);
        let (mut reached, mut missing, mut first) = (0, 0, None);
        for run in held.into_iter().chain(once(region.len()..region.len())) {
            if run.start > reached {
                missing += run.start - reached;
                first.get_or_insert(reached);
            }
            reached = reached.max(run.end);
        }
        match first {
            None => Ok(()),
            Some(first) => Err(CheckpointError::MissingElements {
                name: name.to_owned(),
                missing,
                elements: region.len(),
                first: region.coordinates(first),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(shape: &[usize], ranges: &[Range<usize>]) -> StoredTensor {
        let piece = |range: &Range<usize>| {
            let start = vec![0; shape.len()];
            let region = Region::new("w", shape, &start, shape, range.clone()).expect("a region");
            StoredPiece { region, rank: 0, offset_bytes: 0 }
        };
        StoredTensor { shape: shape.to_vec(), pieces: ranges.iter().map(piece).collect() }
    }

    fn missing(shape: &[usize], ranges: &[Range<usize>]) -> Option<(usize, Vec<usize>)> {
        match stored(shape, ranges).require("w", &Region::whole(shape)) {
            Ok(()) => None,
            Err(CheckpointError::MissingElements { missing, first, .. }) => Some((missing, first)),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_no_piece_has_is_missing_in_any_order_of_pieces() {
        assert_eq!(missing(&[2, 4], &[4..8, 0..5]), None);
        assert_eq!(missing(&[2, 4], &[5..7, 0..4, 1..3]), Some((2, vec![1, 0])));
        assert_eq!(missing(&[2, 4], &[]), Some((8, vec![0, 0])));
        assert_eq!(missing(&[0, 4], &[]), None);
        assert_eq!(missing(&[], &[]), Some((1, vec![])));
    }

    #[test]
    fn a_tensor_that_claims_to_be_larger_than_memory_takes_none() {
        let huge = 1 << 50;
        assert_eq!(missing(&[huge], &[0..1, 0..1]), Some((huge - 1, vec![1])));
    }
}
