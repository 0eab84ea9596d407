//! One run at a time writes in a folder of checkpoints.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::names::LOCK;
use crate::{CheckpointError, Result};

/// A folder of checkpoints in which no other run writes as long as this is there. The system lets go of it when the
/// process ends, however it ends. A folder that was made for it, and in which nothing was written, goes with it.
#[derive(Debug)]
pub struct Lock {
    /// Holds the lock while it is open.
    _file: File,
    root: PathBuf,
    /// The folder and those around it, as far as they were made for it, the innermost first.
    made: Vec<PathBuf>,
}

impl Lock {
    /// Takes a folder of checkpoints, which is made if it does not exist, for `owner`, of which others are told. That it
    /// can be written is known then, too. None where the file system has no locks.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::InUse`] if another run has it, [`CheckpointError::Io`].
    pub fn take(root: &Path, owner: &str) -> Result<Option<Lock>> {
        let is_missing = |it: &&Path| !it.as_os_str().is_empty() && !it.exists();
        let made = root.ancestors().take_while(is_missing).map(Path::to_path_buf).collect();
        fs::create_dir_all(root).map_err(CheckpointError::io("create", root))?;
        let path = root.join(LOCK);
        // What it says is of its last owner until it is known that this one has gone.
        let opened =
            File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(CheckpointError::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // What it is called is of help, no more.
                let _ = file.read_to_string(&mut owner);
                if owner.is_empty() {
                    // It has the lock and is about to say so.
                    "a process that has just begun".clone_into(&mut owner);
                }
                return Err(CheckpointError::InUse { root: root.to_path_buf(), owner });
            }
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                return Ok(None);
            }
            Err(TryLockError::Error(error)) => {
                return Err(CheckpointError::io("lock", &path)(error));
            }
        }
        if !path.exists() {
            // The run that had it has just taken the folder away.
            return Lock::take(root, owner);
        }
        let said = file.set_len(0).and_then(|()| file.rewind());
        let said = said.and_then(|()| file.write_all(owner.as_bytes()));
        let lock = Lock { _file: file, root: root.to_path_buf(), made };
        said.map_err(CheckpointError::io("write", &path))?;
        Ok(Some(lock))
    }

    /// Whether nothing is in the folder but the lock.
    fn is_alone(&self) -> bool {
        fs::read_dir(&self.root).is_ok_and(|mut entries| {
            entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK))
        })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Nobody else has it as long as it is locked, and only folders that are empty go.
        if !self.made.is_empty() && self.is_alone() {
            let _ = fs::remove_file(self.root.join(LOCK));
            self.made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_run_s_until_that_lets_go_of_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path().join("run");
        let first = Lock::take(&root, "a process with a long name").expect("free");
        let refused = |owner: &str| match Lock::take(&root, "another") {
            Err(CheckpointError::InUse { owner: found, .. }) => assert_eq!(found, owner),
            other => panic!("{other:?}"),
        };
        refused("a process with a long name");
        refused("a process with a long name");
        drop(first);
        let second = Lock::take(&root, "the next").expect("free again");
        refused("the next");
        // As it is from the moment that somebody has it until his name is written.
        fs::write(root.join(LOCK), "").expect("written");
        refused("a process that has just begun");
        drop(second);
    }

    #[test]
    fn a_folder_that_was_made_for_nothing_goes_and_others_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (outer, root) = (folder.path().join("runs"), folder.path().join("runs/run"));
        drop(Lock::take(&root, "a process").expect("free"));
        assert!(!outer.exists() && folder.path().exists());
        let lock = Lock::take(&root, "a process").expect("free");
        fs::write(root.join("checkpoint"), "").expect("written");
        drop(lock);
        assert!(root.join("checkpoint").exists() && root.join(LOCK).exists());
        // One that was there before, empty or not.
        fs::remove_file(root.join("checkpoint")).expect("removed");
        drop(Lock::take(&root, "a process").expect("free"));
        assert!(root.join(LOCK).exists());
        // Only what was made goes.
        fs::create_dir(folder.path().join("given")).expect("made");
        drop(Lock::take(&folder.path().join("given/run"), "a process").expect("free"));
        assert!(folder.path().join("given").exists() && !folder.path().join("given/run").exists());
    }
}
