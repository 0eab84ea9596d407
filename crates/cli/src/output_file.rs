//! Files that commands write.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{self, Path, PathBuf};

use crate::failure::Failure;

/// A file to be written at the end of a command, looked at before its work begins, so that nothing is
/// computed in vain.
#[derive(Clone, Debug)]
pub struct OutputFile {
    path: PathBuf,
    force: bool,
}

impl OutputFile {
    /// A file at `path`, which must not exist unless `force` is given.
    ///
    /// # Errors
    /// If it exists, is a folder, or its folder does not exist.
    pub fn new(path: &Path, force: bool) -> Result<OutputFile, Failure> {
        let at = path.display();
        if path.is_dir() {
            return Err(Failure::file(path, format!("{at} is a folder; name a file")));
        }
        if path.exists() && !force {
            let message = format!("{at} exists; name another file, or overwrite it with --force");
            return Err(Failure::file(path, message));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let message = format!("cannot write {at}: there is no folder {}", folder.display());
            return Err(Failure::file(path, message));
        }
        Ok(OutputFile { path: path.to_path_buf(), force })
    }

    /// The same for a file that need not be asked for.
    ///
    /// # Errors
    /// As [`OutputFile::new`].
    pub fn optional(path: Option<&PathBuf>, force: bool) -> Result<Option<OutputFile>, Failure> {
        path.map(|path| OutputFile::new(path, force)).transpose()
    }

    /// Refuses two files of one path, of which only the second would be left.
    ///
    /// # Errors
    /// If both are given with the same path.
    pub fn require_distinct(files: [&Option<OutputFile>; 2]) -> Result<(), Failure> {
        let [Some(one), Some(other)] = files else { return Ok(()) };
        let same = match (path::absolute(&one.path), path::absolute(&other.path)) {
            (Ok(one), Ok(other)) => one == other,
            _ => one.path == other.path,
        };
        if same {
            let message = format!("{} is given for two files; name two", one.path.display());
            return Err(Failure::file(&one.path, message));
        }
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it.
    ///
    /// # Errors
    /// If it came to exist meanwhile, or cannot be written.
    pub fn write(&self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let written = match self.force {
            true => fs::write(&self.path, bytes),
            false => OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&self.path)
                .and_then(|mut file| file.write_all(bytes.as_ref())),
        };
        written.map_err(|error| {
            Failure::file(&self.path, format!("cannot write {}: {error}", self.path.display()))
        })
    }
}
