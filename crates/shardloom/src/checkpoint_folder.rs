//! The folder that a run keeps its checkpoints in.

use std::path::{Path, PathBuf};

use shardloom_checkpoint::{Lock, Store};

use crate::{Error, Result};

/// A folder of checkpoints that one process alone changes as long as this is there.
#[derive(Debug)]
pub struct CheckpointFolder {
    path: PathBuf,
    lock: Option<Lock>,
}

impl CheckpointFolder {
    /// Makes the folder if it does not exist, sees that files can be made there, and takes it for this process.
    ///
    /// # Errors
    /// If another process has it, or files cannot be made there.
    pub fn claim(path: &Path) -> Result<CheckpointFolder> {
        let host = gethostname::gethostname();
        let owner = format!("process {} on {}", std::process::id(), host.to_string_lossy());
        Ok(CheckpointFolder { path: path.to_path_buf(), lock: Lock::take(path, &owner)? })
    }

    /// The same by a path that holds in whatever folder a process is.
    ///
    /// # Errors
    /// If the system cannot look at it.
    pub fn canonical(self) -> Result<CheckpointFolder> {
        let path = self.path.canonicalize().map_err(Error::io("look at", &self.path))?;
        Ok(CheckpointFolder { path, ..self })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether other processes are kept from it; where the file system has no locks they are not.
    pub fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// Makes sure that it holds no checkpoint of an earlier run, which a new one would be mixed up with. With `delete`,
    /// checkpoints that it holds are deleted, and nothing else.
    ///
    /// # Errors
    /// If it holds checkpoints that are not to be deleted, something else is in the folder of one, or it cannot be
    /// listed.
    pub fn clear(&self, delete: bool) -> Result<()> {
        let Some(step) = latest_step(&self.path)? else { return Ok(()) };
        if !delete {
            return Err(Error::CheckpointsExist { folder: self.path.clone(), step });
        }
        Ok(Store::open(&self.path)?.delete_all()?)
    }
}

/// The step of the newest checkpoint in `folder`, sound or not; none if there is none or no folder.
pub(crate) fn latest_step(folder: &Path) -> Result<Option<u64>> {
    if !folder.try_exists().map_err(Error::io("look at", folder))? {
        return Ok(None);
    }
    Ok(Store::open(folder)?.list()?.last().map(|&(step, _)| step))
}
