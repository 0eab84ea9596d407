//! Which pieces there are of each tensor.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
    /// Errors unless every element of `region` is in some piece.
    pub(crate) fn require(&self, name: &str, region: &Region) -> Result<()> {
        let mut covered = vec![false; region.len()];
        for piece in &self.pieces {
            for_each_run(&piece.region, region, |run| {
                covered[run.target..run.target + run.elements].fill(true);
            });
        }
        match covered.iter().position(|&covered| !covered) {
            None => Ok(()),
            Some(first) => Err(CheckpointError::MissingElements {
                name: name.to_owned(),
                missing: covered.iter().filter(|&&covered| !covered).count(),
                elements: covered.len(),
                first: region.coordinates(first),
            }),
        }
    }
}
