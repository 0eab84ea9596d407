//! Folders of files that commands write.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::output_file::OutputFile;

/// Writes files of these names and contents into a folder, which is made if it does not exist. All of them are there
/// then, or none, and no folder that was made for them.
///
/// # Errors
/// If a file exists without `force`, or something cannot be written.
pub fn write_folder(
    folder: &Path,
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
    force: bool,
) -> Result<Vec<PathBuf>, Failure> {
    let made: Vec<&Path> = folder.ancestors().take_while(|it| is_missing(it)).collect();
    let written = write(folder, files, force);
    if written.is_err() {
        for folder in made {
            // Only what is empty goes.
            let _ = fs::remove_dir(folder);
        }
    }
    written
}

fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && !folder.exists()
}

fn write(
    folder: &Path,
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
    force: bool,
) -> Result<Vec<PathBuf>, Failure> {
    if let Err(error) = fs::create_dir_all(folder) {
        let message = format!("cannot make the folder {}: {error}", folder.display());
        return Err(Failure::file(folder, message));
    }
    let file =
        |(name, bytes): (String, Vec<u8>)| Ok((OutputFile::within(folder, &name, force)?, bytes));
    let files = files.into_iter().map(file).collect::<Result<Vec<_>, Failure>>()?;
    OutputFile::write_all(&files)?;
    Ok(files.iter().map(|(file, _)| file.path().to_path_buf()).collect())
}
