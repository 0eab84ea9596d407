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
            // Whoever reads a pipe would take its end for that of the file.
            true if self.is_pipe() => Ok(()),
            true => OpenOptions::new().write(true).open(&self.path).map(drop),
            false => self.beside().and_then(NamedTempFile::close),
        }
    }

    /// Whether it is there and no plain file, as a device or a pipe, which takes what is written to it.
    fn is_special(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|it| !it.is_file())
    }

    fn is_pipe(&self) -> bool {
        #[cfg(unix)]
        return fs::metadata(&self.path)
            .is_ok_and(|it| std::os::unix::fs::FileTypeExt::is_fifo(&it.file_type()));
        #[cfg(not(unix))]
        return false;
    }

    /// A file in the same folder, gone unless it gets this one's name.
    fn beside(&self) -> io::Result<NamedTempFile> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut builder = Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let made = builder.prefix(".shardloom-").tempfile_in(folder.unwrap_or(Path::new(".")));
        made.map_err(of_the_system)
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

    /// Refuses to be written over what the command reads.
    ///
    /// # Errors
    /// If it is one of `inputs`, by whatever name.
    pub fn require_no_input<'a>(
        &self,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<(), Failure> {
        let Ok(place) = fs::canonicalize(&self.path) else { return Ok(()) };
        let is_it = |input: &Path| fs::canonicalize(input).is_ok_and(|input| input == place);
        match inputs.into_iter().any(is_it) && !self.is_special() {
            true => {
                let at = self.path.display();
                let message = format!(
                    "{at} is read by this command, and would be overwritten; name another file"
                );
                Err(Failure::file(&self.path, message))
            }
            false => Ok(()),
        }
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

    /// Writes several files: none gets its name before all are written, so that a full disk leaves none.
    ///
    /// # Errors
    /// As [`OutputFile::write`].
    pub fn write_all(files: &[(OutputFile, Vec<u8>)]) -> Result<(), Failure> {
        let unwritten = |file: &OutputFile, error| Failure::unwritten(&file.path, &error);
        let written = files.iter().map(|(file, bytes)| {
            file.written(bytes).map_err(|error| unwritten(file, error)).map(|it| (file, it))
        });
        for (file, beside) in written.collect::<Result<Vec<_>, Failure>>()? {
            file.name(beside).map_err(|error| unwritten(file, error))?;
        }
        Ok(())
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        self.name(self.written(bytes)?)
    }

    /// What is written, without this one's name yet; nothing where it goes to what is there.
    fn written(&self, bytes: &[u8]) -> io::Result<Option<NamedTempFile>> {
        if self.is_special() {
            OpenOptions::new().write(true).open(&self.path)?.write_all(bytes)?;
            return Ok(None);
        }
        let beside = self.beside()?;
        // Not by its own methods, whose errors name it instead of this one.
        beside.as_file().write_all(bytes)?;
        beside.as_file().sync_all()?;
        Ok(Some(beside))
    }

    fn name(&self, beside: Option<NamedTempFile>) -> io::Result<()> {
        let Some(beside) = beside else { return Ok(()) };
        let named = match self.force {
            true => beside.persist(fs::canonicalize(&self.path).as_ref().unwrap_or(&self.path)),
            false => beside.persist_noclobber(&self.path),
        };
        named.map(drop).map_err(|error| error.error)
    }
}

/// The system's error, without the name of a file that nobody has asked for.
fn of_the_system(error: io::Error) -> io::Error {
    let source = error.get_ref().and_then(|inner| inner.source());
    let code = source.and_then(|it| it.downcast_ref::<io::Error>()?.raw_os_error());
    code.map_or(error, io::Error::from_raw_os_error)
}
