//! Which files of a folder are training text.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{DataError, Result};

/// Text files hold no zero byte; that many bytes are searched for one before
/// the rest of a file is read.
const PROBED_BYTES: u64 = 8192;

/// Whether a path is a folder, and not a file.
///
/// # Errors
/// [`DataError::NotAFile`] if it is neither, as a pipe may never end, or it cannot be looked at.
pub(crate) fn is_folder(path: &Path) -> Result<bool> {
    let kind = fs::metadata(path).map_err(DataError::io("read", path))?;
    if kind.is_dir() || kind.is_file() {
        return Ok(kind.is_dir());
    }
    Err(DataError::NotAFile { path: path.to_owned() })
}

/// Every regular file below `folder`, sorted by path. Hidden files and folders,
/// folders named `target` (build output) and symbolic links are left out: a
/// link may lead outside the folder or back into it.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(DataError::io("list", &folder))? {
            let entry = entry.map_err(DataError::io("list", &folder))?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type().map_err(DataError::io("look at", &path))?;
            if kind.is_file() {
                files.push(path);
            } else if kind.is_dir() && name != "target" {
                folders.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file, or nothing if it is not UTF-8 or holds a zero byte.
pub(crate) fn read_if_text(path: &Path) -> Result<Option<String>> {
    let mut file = File::open(path).map_err(DataError::io("open", path))?;
    let mut bytes = Vec::new();
    (&mut file).take(PROBED_BYTES).read_to_end(&mut bytes).map_err(DataError::io("read", path))?;
    if bytes.contains(&0) {
        return Ok(None);
    }
    file.read_to_end(&mut bytes).map_err(DataError::io("read", path))?;
    Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
}
