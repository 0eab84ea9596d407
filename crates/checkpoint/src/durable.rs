//! File operations that survive a power cut.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::{CheckpointError, Result};

/// Creates a file that must not exist, has it written, and flushes it to the
/// disk. Its name is durable only after [`sync_folder`].
pub(crate) fn write_new<T, E: From<CheckpointError>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    write_new_for(path, path, write)
}

/// The same for a file that gets the name `path` later; errors name that.
pub(crate) fn write_new_for<T, E: From<CheckpointError>>(
    unfinished: &Path,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let file = File::create_new(unfinished).map_err(CheckpointError::io("create", path))?;
    let mut buffered = io::BufWriter::with_capacity(1 << 20, file);
    let written = write(&mut buffered)?;
    let file = buffered
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .map_err(CheckpointError::io("write", path))?;
    file.sync_all().map_err(CheckpointError::io("flush", path))?;
    Ok(written)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    // Elsewhere a folder cannot be opened as a file, and renames are durable.
    if cfg!(unix) {
        let opened = File::open(folder).map_err(CheckpointError::io("open", folder))?;
        opened.sync_all().map_err(CheckpointError::io("flush", folder))?;
    }
    Ok(())
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(CheckpointError::io("rename", from))
}

pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).map_err(CheckpointError::io("delete", folder))
}
