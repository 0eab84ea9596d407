//! Which files of a folder are training text.

use std::fs;
use std::path::{Path, PathBuf};

use crate::blocks::Blocks;
use crate::{DataError, Result};

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

/// What the bytes of a file have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// UTF-8 without a zero byte, as text in a folder of all kinds of files is.
    StrictText,
    /// UTF-8.
    Text,
    /// Any.
    Bytes,
}

/// Reads a file to know it again: gives its digest, or where it is found not to be what is expected.
/// `heard` is told of bytes that are done.
pub(crate) fn examine(
    path: &Path,
    expected: Expected,
    heard: &mut dyn FnMut(u64),
) -> Result<std::result::Result<blake3::Hash, u64>> {
    let mut blocks = Blocks::open(path)?;
    let (mut hasher, mut offset) = (blake3::Hasher::new(), 0);
    while let Some(block) = blocks.next()? {
        if expected != Expected::Bytes
            && let Err(offset) = block.text
        {
            return Ok(Err(offset));
        }
        if expected == Expected::StrictText
            && let Some(zero) = block.bytes.iter().position(|&byte| byte == 0)
        {
            return Ok(Err(offset + zero as u64));
        }
        hasher.update(block.bytes);
        offset += block.bytes.len() as u64;
        heard(block.bytes.len() as u64);
    }
    Ok(Ok(hasher.finalize()))
}
