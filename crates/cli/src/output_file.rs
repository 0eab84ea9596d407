//! Files that commands write.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{self, Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::failure::Failure;

/// A file to be written at the end of a command, looked at before its work begins, so that nothing is
/// computed in vain. It is there whole or not at all.
#[derive(Clone, Debug)]
pub struct OutputFile {
    path: PathBuf,
    force: bool,
}

impl OutputFile {
    /// A file at `path`, which must not exist unless `force` is given.
    ///
    /// # Errors
    /// If it exists, is a folder, its folder does not exist, or nothing can be written there.
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
        let file = OutputFile { path: path.to_path_buf(), force };
        file.probe().map_err(|error| Failure::file(path, format!("cannot write {at}: {error}")))?;
        Ok(file)
    }

    /// Sees that it can be written; what there is stays as it is.
    fn probe(&self) -> io::Result<()> {
        match self.is_special() {
            true => OpenOptions::new().write(true).open(&self.path).map(drop),
            false => self.beside().and_then(NamedTempFile::close),
        }
    }

    /// Whether it is there and no plain file, as a device or a pipe, which takes what is written to it.
    fn is_special(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|it| !it.is_file())
    }

    /// A file in the same folder, gone unless it gets this one's name.
    fn beside(&self) -> io::Result<NamedTempFile> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut builder = Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        builder.prefix(".shardloom-").tempfile_in(folder.unwrap_or(Path::new(".")))
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
        self.replace(bytes.as_ref()).map_err(|error| Failure::unwritten(&self.path, &error))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        if self.is_special() {
            return OpenOptions::new().write(true).open(&self.path)?.write_all(bytes);
        }
        let mut beside = self.beside()?;
        beside.write_all(bytes)?;
        beside.as_file().sync_all()?;
        let named = match self.force {
            true => beside.persist(fs::canonicalize(&self.path).as_ref().unwrap_or(&self.path)),
            false => beside.persist_noclobber(&self.path),
        };
        named.map(drop).map_err(|error| error.error)
    }
}
