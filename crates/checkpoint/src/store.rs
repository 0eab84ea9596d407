//! A folder of checkpoints.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::durable::{remove_folder, rename};
use crate::names::{DELETING, REPLACED, is_of_checkpoint, step_folder, step_of};
use crate::reader::Checkpoint;
use crate::{CheckpointError, Result};

/// The checkpoints of a run. Looking at them changes nothing, so it may be done
/// while the run goes on.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// A checkpoint that was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong, with the file concerned.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} refused: {}", self.path.display(), self.reason)
    }
}

impl Store {
    /// Opens a folder of checkpoints.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if it cannot be listed.
    pub fn open(root: &Path) -> Result<Self> {
        let store = Self { root: root.to_path_buf() };
        store.list()?;
        Ok(store)
    }

    /// The steps there are checkpoints of, ascending, and their folders.
    /// Nothing is said about whether they are sound.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoFolder`] if there is no such folder, [`CheckpointError::Io`] if it cannot be listed.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        if !self.root.exists() {
            return Err(CheckpointError::NoFolder { root: self.root.clone() });
        }
        let mut whole = BTreeMap::new();
        let mut replaced = BTreeMap::new();
        for entry in fs::read_dir(&self.root).map_err(CheckpointError::io("list", &self.root))? {
            let entry = entry.map_err(CheckpointError::io("list", &self.root))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(step) = step_of(name) {
                whole.insert(step, entry.path());
            } else if let Some(step) = name.strip_prefix(REPLACED).and_then(step_of) {
                replaced.insert(step, entry.path());
            }
        }
        // A checkpoint whose replacement was cut short is the one to use.
        for (step, path) in replaced {
            whole.entry(step).or_insert(path);
        }
        Ok(whole.into_iter().collect())
    }

    /// Deletes all checkpoints, and nothing else.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Foreign`] if something else is in the folder of one, before anything is deleted,
    /// [`CheckpointError::Io`].
    pub fn delete_all(&self) -> Result<()> {
        let all = self.list()?;
        for (_, folder) in &all {
            let entries = fs::read_dir(folder).map_err(CheckpointError::io("list", folder))?;
            for entry in entries {
                let entry = entry.map_err(CheckpointError::io("list", folder))?;
                if !entry.file_name().to_str().is_some_and(is_of_checkpoint) {
                    return Err(CheckpointError::Foreign { path: entry.path() });
                }
            }
        }
        all.iter().try_for_each(|(step, folder)| self.delete(*step, folder))
    }

    /// Deletes a checkpoint. Under a hidden name, a half deleted one is not taken for damaged.
    pub(crate) fn delete(&self, step: u64, folder: &Path) -> Result<()> {
        let deleting = self.root.join(format!("{DELETING}{}", step_folder(step)));
        rename(folder, &deleting)?;
        remove_folder(&deleting)
    }

    /// Opens the newest sound checkpoint, and says which newer ones were
    /// refused and why.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoUsableCheckpoint`] with all refusals if there is none,
    /// [`CheckpointError::Io`] if the folder cannot be listed.
    pub fn load_latest(&self) -> Result<(Checkpoint, Vec<Refused>)> {
        let mut refused = Vec::new();
        for (step, path) in self.list()?.into_iter().rev() {
            match open_step(&path, step) {
                Ok(checkpoint) => return Ok((checkpoint, refused)),
                Err(error) => refused.push(Refused { path, reason: error.to_string() }),
            }
        }
        Err(CheckpointError::NoUsableCheckpoint { root: self.root.clone(), refused })
    }
}

/// Opens a checkpoint whose folder claims a step: a renamed one would be taken
/// for newer or older than it is.
fn open_step(path: &Path, step: u64) -> Result<Checkpoint> {
    let checkpoint = Checkpoint::open(path)?;
    if checkpoint.step() == step {
        return Ok(checkpoint);
    }
    let reason = format!("its manifest is of step {}", checkpoint.step());
    Err(CheckpointError::Damaged { path: path.to_path_buf(), reason })
}
