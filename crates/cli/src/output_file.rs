//! Files that commands write.

use std::env;
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
    /// If it exists, is a folder, is named for something else in the command, its folder does not exist, or nothing
    /// can be written there.
    pub fn new(path: &Path, force: bool) -> Result<OutputFile, Failure> {
        OutputFile::named(path, force, is_named_twice(path), "file")
    }

    /// A file in a folder that the command names.
    ///
    /// # Errors
    /// As [`OutputFile::new`], also if it is named itself.
    pub fn within(folder: &Path, name: &str, force: bool) -> Result<OutputFile, Failure> {
        let path = folder.join(name);
        OutputFile::named(&path, force, times_named(&path) > 0, "folder")
    }

    /// The file at `path`, or why it cannot be, where the command names a `place` for it, a file or a folder.
    fn named(path: &Path, force: bool, is_input: bool, place: &str) -> Result<OutputFile, Failure> {
        let at = path.display();
        if path == Path::new("-") {
            let message = "- is read as the name of a file: write /dev/stdout for standard output, or ./- if that is its name";
            return Err(Failure::file(path, message));
        }
        if path.is_dir() {
            return Err(Failure::file(path, format!("{at} is a folder; name a file")));
        }
        if is_of_checkpoint(path) {
            let message = format!("{at} is a file of a checkpoint; name another file");
            return Err(Failure::file(path, message));
        }
        let file = OutputFile { path: path.to_path_buf(), force };
        if path.exists() && !force && file.stream().is_none() {
            let message =
                format!("{at} exists; name another {place}, or overwrite it with --force");
            return Err(Failure::file(path, message));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let message = format!("cannot write {at}: there is no folder {}", folder.display());
            return Err(Failure::file(path, message));
        }
        if is_input && !file.is_special() {
            let message = format!(
                "{at} is named for something else, too, and would be overwritten; name another file"
            );
            return Err(Failure::file(path, message));
        }
        file.probe().map_err(|error| Failure::file(path, format!("cannot write {at}: {error}")))?;
        Ok(file)
    }

    /// Sees that it can be written, and that the disk is not full; what there is stays as it is.
    fn probe(&self) -> io::Result<()> {
        match self.is_special() {
            true if self.stream().is_some() => Ok(()),
            // Whoever reads a pipe would take its end for that of the file.
            true if self.is_pipe() => Ok(()),
            true => OpenOptions::new().write(true).open(&self.path).map(drop),
            false => {
                let beside = self.beside()?;
                beside.as_file().write_all(&[0; PROBED])?;
                beside.close()
            }
        }
    }

    /// Whether it is there and no plain file, as a device or a pipe, which takes what is written to it.
    fn is_special(&self) -> bool {
        self.stream().is_some() || fs::metadata(&self.path).is_ok_and(|it| !it.is_file())
    }

    /// What this process writes to already, if it is that, wherever it leads. Opened by its name a file that it leads to
    /// would be written from its begin.
    fn stream(&self) -> Option<Box<dyn Write>> {
        match self.path.to_str() {
            Some("/dev/stdout") => Some(Box::new(io::stdout())),
            Some("/dev/stderr") => Some(Box::new(io::stderr())),
            _ => None,
        }
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

    /// Refuses to be where a folder of the command is, or will be.
    ///
    /// # Errors
    /// If it is `folder`.
    pub fn require_no_folder(&self, folder: &Path) -> Result<(), Failure> {
        let same = match (path::absolute(&self.path), path::absolute(folder)) {
            (Ok(one), Ok(other)) => one.components().eq(other.components()),
            _ => self.path == folder,
        };
        match same {
            true => {
                let message =
                    format!("{} is the folder of checkpoints; name a file", folder.display());
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
    /// If it came to exist meanwhile, where it gets another name, or cannot be written.
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
        if let Some(mut stream) = self.stream() {
            stream.write_all(bytes)?;
            stream.flush()?;
            return Ok(None);
        }
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
        match named {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(self.name_otherwise(error.file))
            }
            Err(error) => Err(error.error),
        }
    }

    /// Gives what was written another name, as somebody else has taken this one's. What to say of it.
    fn name_otherwise(&self, mut beside: NamedTempFile) -> io::Error {
        let extension = self.path.extension().map(|it| it.to_string_lossy().into_owned());
        for number in 2..100 {
            let name = match &extension {
                Some(extension) => format!("{number}.{extension}"),
                None => number.to_string(),
            };
            let other = self.path.with_extension(name);
            match beside.persist_noclobber(&other) {
                Ok(_) => {
                    let at = other.display();
                    return io::Error::other(format!(
                        "it came to exist meanwhile; what was computed is in {at}"
                    ));
                }
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                    beside = error.file;
                }
                Err(error) => return error.error,
            }
        }
        io::ErrorKind::AlreadyExists.into()
    }
}

/// As many bytes are written to see whether a disk is full.
const PROBED: usize = 1 << 12;

/// Whether the command line names a file that is there for something else than to be written to.
fn is_named_twice(path: &Path) -> bool {
    let own = words().any(|word| word == path);
    times_named(path) > usize::from(own) || is_of_model(path)
}

/// How often the command line names a file that is there.
fn times_named(path: &Path) -> usize {
    let Ok(place) = fs::canonicalize(path) else { return 0 };
    words().filter(|word| fs::canonicalize(word).is_ok_and(|word| word == place)).count()
}

/// Whether a file is one of a folder that the command line names and that is a model.
fn is_of_model(path: &Path) -> bool {
    let Ok(place) = fs::canonicalize(path) else { return false };
    let is_read =
        matches!(place.extension().and_then(|it| it.to_str()), Some("json" | "safetensors"));
    let folders = words().filter(|word| word.join("config.json").is_file());
    let mut folders = folders.filter_map(|folder| fs::canonicalize(folder).ok());
    is_read && folders.any(|folder| place.parent() == Some(&folder))
}

/// What the command line says, also behind `--option=`.
fn words() -> impl Iterator<Item = PathBuf> {
    env::args_os().skip(1).map(|word| match word.to_str().and_then(|it| it.split_once('=')) {
        Some((option, value)) if option.starts_with('-') => value.into(),
        _ => word.into(),
    })
}

/// Whether a file belongs to a checkpoint, of which nothing is to be overwritten.
fn is_of_checkpoint(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else { return false };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named = name.starts_with("manifest.") || name.starts_with("shard-");
    is_named && path.with_file_name("manifest.blake3").is_file()
}

/// The system's error, without the name of a file that nobody has asked for.
fn of_the_system(error: io::Error) -> io::Error {
    match error.get_ref() {
        Some(_) => error.kind().into(),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_has_another_name_where_its_own_was_taken_meanwhile() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let file = OutputFile::new(&at("page.html"), false).expect("there is nothing yet");
        fs::write(at("page.html"), "another's").expect("it is taken");
        fs::write(at("page.2.html"), "another's, too").expect("it is taken");
        let Err(Failure::Message(said)) = file.write("ours") else { panic!("it says nothing") };
        let said = serde_json::to_string(&said).expect("JSON");
        assert!(
            said.contains("what was computed is in ") && said.contains("page.3.html"),
            "{said}"
        );
        let read = |name: &str| fs::read_to_string(at(name)).expect("it is there");
        assert_eq!(
            ["page.html", "page.2.html", "page.3.html"].map(read),
            ["another's", "another's, too", "ours"]
        );
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
    }
}
