//! All state of a run in memory, whole, so that another plan can take it without files.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::overlap::{Run, for_each_run};
use crate::piece::{Piece, Region, volume};
use crate::reader::Checkpoint;
use crate::{CheckpointError, Result};

/// Where ranks find the state that they begin with.
pub trait Saved {
    /// The shape of a whole tensor, if there is one of that name.
    fn global_shape(&self, name: &str) -> Option<&[usize]>;

    /// The elements `range` of the box at `start` of `extent` elements along each axis.
    ///
    /// # Errors
    /// If there is no such tensor, or the box is not inside it.
    fn read_flat(
        &self,
        name: &str,
        start: &[usize],
        extent: &[usize],
        range: Range<usize>,
    ) -> Result<Vec<f32>>;

    /// All values of a tensor.
    ///
    /// # Errors
    /// If there is no such tensor.
    fn read_whole(&self, name: &str) -> Result<Vec<f32>>;
}

impl Saved for Checkpoint {
    fn global_shape(&self, name: &str) -> Option<&[usize]> {
        Checkpoint::global_shape(self, name)
    }

    fn read_flat(
        &self,
        name: &str,
        start: &[usize],
        extent: &[usize],
        range: Range<usize>,
    ) -> Result<Vec<f32>> {
        Checkpoint::read_flat(self, name, start, extent, range)
    }

    fn read_whole(&self, name: &str) -> Result<Vec<f32>> {
        Checkpoint::read_whole(self, name)
    }
}

/// Whole tensors by name.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    tensors: BTreeMap<String, Whole>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Whole {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Snapshot {
    /// Adds what a rank owns.
    ///
    /// # Errors
    /// If the piece's numbers do not fit together or to the others of its tensor.
    pub fn add(&mut self, piece: &Piece<'_>) -> Result<()> {
        let shape = &piece.global_shape;
        let new = || Whole { shape: shape.clone(), values: vec![0.0; volume(shape)] };
        let whole = self.tensors.entry(piece.name.clone()).or_insert_with(new);
        piece.place(&mut whole.values)
    }

    fn whole(&self, name: &str) -> Result<&Whole> {
        let missing = || CheckpointError::NotInSnapshot { name: name.to_owned() };
        self.tensors.get(name).ok_or_else(missing)
    }
}

impl Saved for Snapshot {
    fn global_shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|whole| whole.shape.as_slice())
    }

    fn read_flat(
        &self,
        name: &str,
        start: &[usize],
        extent: &[usize],
        range: Range<usize>,
    ) -> Result<Vec<f32>> {
        let Whole { shape, values } = self.whole(name)?;
        let region = Region::new(name, shape, start, extent, range)?;
        let mut found = vec![0.0; region.len()];
        for_each_run(&Region::whole(shape), &region, |Run { source, target, elements }| {
            found[target..target + elements].copy_from_slice(&values[source..source + elements]);
        });
        Ok(found)
    }

    fn read_whole(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.whole(name)?.values.clone())
    }
}
