//! The folder that a run keeps its checkpoints in.

use std::path::{Path, PathBuf};

use shardloom_checkpoint::{Lock, Store};

use crate::huggingface_folder::{CONFIG, WEIGHTS};
use crate::saved::open_checkpoint;
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
    /// If it is no folder, another process has it, or files cannot be made there.
    pub fn claim(path: &Path) -> Result<CheckpointFolder> {
        if path.exists() && !path.is_dir() {
            return Err(Error::NotFolder { path: path.to_path_buf() });
        }
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

    /// Whether what is at `path` is deleted with the checkpoints of this folder, or is the folder itself.
    pub fn holds(&self, path: &Path) -> bool {
        let (Ok(folder), Ok(path)) = (self.path.canonicalize(), path.canonicalize()) else {
            return false;
        };
        path.strip_prefix(folder).is_ok_and(|rest| {
            let first = rest.components().next();
            first.is_none_or(|it| it.as_os_str().to_string_lossy().starts_with("step-"))
        })
    }

    /// Sees that a checkpoint of so many bytes has room, as far as the file system tells.
    ///
    /// # Errors
    /// If it has none.
    pub fn require_room(&self, bytes: u64) -> Result<()> {
        #[cfg(unix)]
        if let Ok(system) = rustix::fs::statvfs(&self.path) {
            // Some say nothing of their size.
            let free = system.f_bavail.saturating_mul(system.f_frsize);
            if system.f_blocks > 0 && free < bytes {
                return Err(Error::NoRoom { folder: self.path.clone(), bytes });
            }
        }
        #[cfg(not(unix))]
        let _ = bytes;
        Ok(())
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

/// Refuses a folder that has checkpoints and nothing else that is read. `export` says how what is needed comes of them.
pub(crate) fn refuse_checkpoints(folder: &Path, export: &'static str) -> Result<()> {
    let is_read = |file: &str| folder.join(file).is_file();
    let has_any = latest_step(folder).is_ok_and(|step| step.is_some());
    if !has_any || [CONFIG, WEIGHTS].into_iter().any(is_read) {
        return Ok(());
    }
    let newest = open_checkpoint(folder).ok();
    let model = newest.map_or_else(|| "MODEL".into(), |(newest, _)| newest.meta().model.clone());
    Err(Error::Checkpoints { folder: folder.to_path_buf(), model, export })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_folder() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = CheckpointFolder::claim(file.path()).expect_err("it is a file");
        assert!(error.to_string().contains("is a file; checkpoints go in a folder"), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn a_checkpoint_that_no_disk_has_room_for_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let claimed = CheckpointFolder::claim(folder.path()).expect("nobody has it");
        assert!(claimed.require_room(1).is_ok());
        let error = claimed.require_room(u64::MAX).expect_err("no disk is as large");
        assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    }

    #[test]
    fn a_folder_holds_itself_and_its_checkpoints_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let claimed = CheckpointFolder::claim(folder.path()).expect("nobody has it");
        for name in ["step-00000001", "notes"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
            std::fs::write(folder.path().join(name).join("file"), "").expect("a file");
        }
        let holds = |name: &str| claimed.holds(&folder.path().join(name));
        assert_eq!(
            ["", "step-00000001", "step-00000001/file", "notes/file", "nothing"].map(holds),
            [true, true, true, false, false]
        );
    }
}
