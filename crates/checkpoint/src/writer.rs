//! Writing a checkpoint: whole or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::durable::{remove_folder, rename, sync_folder};
use crate::index::Index;
use crate::manifest::{FORMAT_VERSION, Manifest, Meta};
use crate::names::{DELETING, REPLACED, WRITING, shard_file, step_folder, step_of};
use crate::piece::Piece;
use crate::shard::{self, ShardRecord};
use crate::store::Store;
use crate::{CheckpointError, Result};

/// A checkpoint being written. Dropped before [`finish`](Self::finish), it
/// leaves nothing behind.
///
/// One writer at a time may work in a folder of checkpoints.
#[derive(Debug)]
pub struct Writer {
    root: PathBuf,
    /// Where the files go until the checkpoint is whole.
    folder: PathBuf,
    step: u64,
    written: Mutex<Written>,
}

/// Where the ranks of a run write their shards of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shards {
    folder: PathBuf,
}

impl Shards {
    /// Writes the pieces of a rank and flushes them to the disk.
    ///
    /// # Errors
    ///
    /// As [`Writer::shard`].
    pub fn write<'a>(
        &self,
        rank: u32,
        pieces: impl IntoIterator<Item = Piece<'a>>,
    ) -> Result<Shard> {
        let pieces: Vec<Piece<'a>> = pieces.into_iter().collect();
        let path = self.folder.join(shard_file(rank));
        if path.exists() {
            return Err(CheckpointError::ShardTwice { rank, path });
        }
        let mut index = Index::default();
        let record = shard::write(&path, rank, &pieces, &mut index)?;
        Ok(Shard { record, index })
    }
}

/// What a rank has written: which pieces, and the length and digest of their file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shard {
    record: ShardRecord,
    index: Index,
}

#[derive(Debug, Default)]
struct Written {
    shards: BTreeMap<u32, ShardRecord>,
    index: Index,
}

impl Writer {
    /// Begins the checkpoint of `step` in folder `root`, which is made if it
    /// does not exist, and clears what writers that did not finish left there.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`].
    pub fn create(root: &Path, step: u64) -> Result<Self> {
        fs::create_dir_all(root).map_err(CheckpointError::io("create", root))?;
        clear_leftovers(root)?;
        let folder = root.join(format!("{WRITING}{}", step_folder(step)));
        fs::create_dir(&folder).map_err(CheckpointError::io("create", &folder))?;
        Ok(Self { root: root.to_path_buf(), folder, step, written: Mutex::default() })
    }

    /// Writes the pieces of a rank and flushes them to the disk. Ranks may do
    /// so at the same time. Where ranks hold the same elements, any one of them
    /// may write them; if several do, they must agree.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Piece`] for a piece whose numbers do not fit together,
    /// [`CheckpointError::ShapeConflict`] if other pieces give the tensor another shape,
    /// [`CheckpointError::ShardTwice`] if this rank has written before, [`CheckpointError::Io`].
    /// After an error the writer is of no more use.
    pub fn shard<'a>(&self, rank: u32, pieces: impl IntoIterator<Item = Piece<'a>>) -> Result<()> {
        self.add(self.shards().write(rank, pieces)?)
    }

    /// Where ranks write their shards, who then send what comes of it to be [added](Self::add).
    pub fn shards(&self) -> Shards {
        Shards { folder: self.folder.clone() }
    }

    /// Takes note of what a rank has written.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::ShapeConflict`] if other pieces give a tensor another shape.
    pub fn add(&self, Shard { record, index }: Shard) -> Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.index.merge(index)?;
        written.shards.insert(record.rank, record);
        Ok(())
    }

    /// Completes the checkpoint and returns its folder, `root/step-NNNNNNNN`.
    /// One of the same step that exists is replaced, which is what a run
    /// resumed from an earlier step needs; of the two, one is there at any
    /// moment.
    ///
    /// With `keep`, that many checkpoints are kept: this one and those of the
    /// nearest earlier steps. Still earlier ones are deleted; those of later
    /// steps are left alone.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoTensors`] and [`CheckpointError::MissingElements`] if the shards could
    /// not be read back whole, [`CheckpointError::Io`].
    pub fn finish(self, meta: Meta, keep: Option<NonZeroUsize>) -> Result<PathBuf> {
        let written =
            std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        if written.index.names().len() == 0 {
            return Err(CheckpointError::NoTensors { step: self.step });
        }
        written.index.require_complete()?;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            step: self.step,
            meta,
            shards: written.shards.into_values().collect(),
        };
        manifest.write(&self.folder)?;
        sync_folder(&self.folder)?;

        let name = step_folder(self.step);
        let target = self.root.join(&name);
        let former = self.root.join(format!("{REPLACED}{name}"));
        let replaces = target.exists();
        if replaces {
            rename(&target, &former)?;
        }
        rename(&self.folder, &target)?;
        sync_folder(&self.root)?;
        if replaces {
            remove_folder(&former)?;
        }
        if let Some(keep) = keep {
            self.delete_earlier_than_last(keep)?;
        }
        Ok(target)
    }

    fn delete_earlier_than_last(&self, keep: NonZeroUsize) -> Result<()> {
        let store = Store::open(&self.root)?;
        let mut checkpoints = store.list()?;
        checkpoints.retain(|&(step, _)| step <= self.step);
        let excess = checkpoints.len().saturating_sub(keep.get());
        for (step, path) in checkpoints.into_iter().take(excess) {
            store.delete(step, &path)?;
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` the folder has another name and there is nothing to
        // remove; an error here would hide the one that led here.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes unfinished checkpoints, and settles those caught being replaced.
fn clear_leftovers(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).map_err(CheckpointError::io("list", root))? {
        let entry = entry.map_err(CheckpointError::io("list", root))?;
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let ours = |prefix| name.strip_prefix(prefix).filter(|&name| step_of(name).is_some());
        if let Some(step) = ours(REPLACED)
            && !root.join(step).exists()
        {
            rename(&path, &root.join(step))?;
        } else if [WRITING, DELETING, REPLACED].into_iter().any(|prefix| ours(prefix).is_some()) {
            remove_folder(&path)?;
        }
    }
    Ok(())
}
