//! A checkpoint that was found sound, and the tensors in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::index::{Index, StoredPiece, StoredTensor};
use crate::manifest::{Manifest, Meta};
use crate::names::shard_file;
use crate::overlap::{Run, for_each_run};
use crate::piece::Region;
use crate::replicas::{replica_name, replica_of};
use crate::safetensors_file::{Stored, decode_values, write_safetensors};
use crate::shard;
use crate::{CheckpointError, Result};

/// An open checkpoint. It holds the description of every piece, and reads
/// values from the files when asked, so it takes little memory itself and may
/// be read by several threads at once.
#[derive(Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    path: PathBuf,
    step: u64,
    meta: Meta,
    index: Index,
}

impl Checkpoint {
    /// Opens the checkpoint in folder `path`, after comparing every file with
    /// its recorded length and digest.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if a file is missing or unreadable, [`CheckpointError::Damaged`] if
    /// one is not as it was written, [`CheckpointError::FormatVersion`] if another
    /// version of the format wrote it.
    pub fn open(path: &Path) -> Result<Self> {
        let manifest = Manifest::read(path)?;
        let mut index = Index::default();
        for record in &manifest.shards {
            let shard = path.join(shard_file(record.rank));
            shard::verify(&shard, record)?;
            shard::read(&shard, record.rank, &mut index)?;
        }
        Ok(Self { path: path.to_path_buf(), step: manifest.step, meta: manifest.meta, index })
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Optimizer steps done when it was written.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// What was recorded besides the tensors.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.index.names()
    }

    /// The shape of a whole tensor, if there is one of that name, or replicas have their own of it.
    #[must_use]
    pub fn global_shape(&self, name: &str) -> Option<&[usize]> {
        self.stored_shape(name).or_else(|| self.stored_shape(&replica_name(0, name)))
    }

    pub(crate) fn stored_shape(&self, name: &str) -> Option<&[usize]> {
        self.index.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// The values of the box at `start` of `extent` elements along each axis,
    /// in row-major order, from whichever pieces hold them.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::UnknownTensor`], [`CheckpointError::Piece`] if the box is not inside the
    /// tensor, [`CheckpointError::MissingElements`], or [`CheckpointError::Io`] and
    /// [`CheckpointError::Damaged`] if a file was changed after it was opened.
    pub fn read(&self, name: &str, start: &[usize], extent: &[usize]) -> Result<Vec<f32>> {
        // An overflowing product belongs to a box that is refused just below.
        let elements = extent.iter().fold(1_usize, |product, &axis| product.saturating_mul(axis));
        self.read_flat(name, start, extent, 0..elements)
    }

    /// The elements `range` of a box, counted in row-major order within it.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`CheckpointError::Piece`] if the range is not inside
    /// the box.
    pub fn read_flat(
        &self,
        name: &str,
        start: &[usize],
        extent: &[usize],
        range: Range<usize>,
    ) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        let region = Region::new(name, &tensor.shape, start, extent, range)?;
        tensor.require(name, &region)?;
        let mut values = vec![0.0; region.len()];
        for piece in &tensor.pieces {
            self.copy(piece, &region, &mut values)?;
        }
        Ok(values)
    }

    /// All values of a tensor; where replicas have their own of it, the mean over them.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_whole(&self, name: &str) -> Result<Vec<f32>> {
        let replicas = self.replicas(name);
        if replicas > 0 && self.stored_shape(name).is_none() {
            return self.mean(name, replicas);
        }
        let shape = &self.tensor(name)?.shape;
        self.read(name, &vec![0; shape.len()], shape)
    }

    /// Writes the tensors whose names `include` accepts, whole, into one plain
    /// safetensors file, in the order of their names; the mean over replicas that have their own of
    /// one. A file of that path is replaced at once when the new one is complete.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`CheckpointError::NoTensors`] if no name is
    /// accepted.
    pub fn export_safetensors(&self, path: &Path, include: impl Fn(&str) -> bool) -> Result<()> {
        self.export_first_rows(path, include, |_| None)
    }

    /// Likewise, but of a tensor that `rows` names only so many of its first rows: those behind are no weights of the
    /// model.
    ///
    /// # Errors
    ///
    /// As [`export_safetensors`](Self::export_safetensors).
    pub fn export_first_rows(
        &self,
        path: &Path,
        include: impl Fn(&str) -> bool,
        rows: impl Fn(&str) -> Option<usize>,
    ) -> Result<()> {
        let plain = |name| replica_of(name).map_or(name, |(_, plain)| plain);
        let names: BTreeSet<&str> = self.names().map(plain).filter(|name| include(name)).collect();
        if names.is_empty() {
            return Err(CheckpointError::NoTensors { step: self.step });
        }
        let mut tensors = Vec::with_capacity(names.len());
        for name in &names {
            let mut shape = self.global_shape(name).unwrap_or_default().to_vec();
            if let (Some(first), Some(rows)) = (shape.first_mut(), rows(name)) {
                *first = rows.min(*first);
            }
            tensors.push(((*name).to_owned(), shape));
        }
        let elements: BTreeMap<String, usize> =
            tensors.iter().map(|(name, shape)| (name.clone(), shape.iter().product())).collect();
        write_safetensors(path, Stored::F32, tensors, None, |name| {
            let mut values = self.read_whole(name)?;
            values.truncate(elements.get(name).copied().unwrap_or(values.len()));
            Ok(values)
        })
    }

    fn tensor(&self, name: &str) -> Result<&StoredTensor> {
        self.index.get(name).ok_or_else(|| CheckpointError::UnknownTensor {
            name: name.to_owned(),
            path: self.path.clone(),
            available: self.names().map(str::to_owned).collect(),
        })
    }

    /// Copies what a piece has of a region.
    fn copy(&self, piece: &StoredPiece, region: &Region, values: &mut [f32]) -> Result<()> {
        let mut span: Option<Range<usize>> = None;
        for_each_run(&piece.region, region, |run| {
            let end = run.source + run.elements;
            span = Some(span.as_ref().map_or(run.source, |span| span.start)..end);
        });
        let Some(span) = span else { return Ok(()) };
        // One read for all runs: rows are short and lie close to each other.
        let bytes = self.read_bytes(piece, &span)?;
        for_each_run(&piece.region, region, |Run { source, target, elements }| {
            let first = (source - span.start) * size_of::<f32>();
            decode_values(&bytes[first..], &mut values[target..target + elements]);
        });
        Ok(())
    }

    fn read_bytes(&self, piece: &StoredPiece, elements: &Range<usize>) -> Result<Vec<u8>> {
        let path = self.path.join(shard_file(piece.rank));
        let mut file = File::open(&path).map_err(CheckpointError::io("open", &path))?;
        let first = piece.offset_bytes + (elements.start * size_of::<f32>()) as u64;
        file.seek(SeekFrom::Start(first)).map_err(CheckpointError::io("read", &path))?;
        let mut bytes = vec![0; elements.len() * size_of::<f32>()];
        file.read_exact(&mut bytes).map_err(CheckpointError::io("read", &path))?;
        Ok(bytes)
    }
}
