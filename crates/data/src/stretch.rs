//! Tokens that lie in a row: in memory or in a file.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{DataError, Result};

/// Bytes that are read of a file at once.
const READ_BYTES: usize = 1 << 13;

/// Files of a corpus that stay open. Systems let a process open some hundreds; the others are opened for each read.
pub(crate) const MOST_OPEN: usize = 128;

/// How many bytes a token takes, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    One,
    Two,
    Four,
}

impl Width {
    /// The least that has room for every token below `vocabulary_size`.
    pub fn of(vocabulary_size: usize) -> Width {
        match vocabulary_size {
            0..=0x100 => Width::One,
            0x101..=0x1_0000 => Width::Two,
            _ => Width::Four,
        }
    }

    /// Bytes of a token.
    pub fn bytes(self) -> usize {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
        }
    }

    /// Appends tokens, each of which must have room.
    pub fn write(self, tokens: &[u32], to: &mut Vec<u8>) {
        match self {
            Width::One => to.extend(tokens.iter().map(|&token| token as u8)),
            Width::Two => to.extend(tokens.iter().flat_map(|&token| (token as u16).to_le_bytes())),
            Width::Four => to.extend(tokens.iter().flat_map(|token| token.to_le_bytes())),
        }
    }

    /// Appends the tokens that some bytes are.
    fn read(self, bytes: &[u8], to: &mut Vec<u32>) {
        match self {
            Width::One => to.extend(bytes.iter().map(|&byte| u32::from(byte))),
            Width::Two => {
                let (pairs, _) = bytes.as_chunks();
                to.extend(pairs.iter().map(|&pair| u32::from(u16::from_le_bytes(pair))));
            }
            Width::Four => {
                let (fours, _) = bytes.as_chunks();
                to.extend(fours.iter().map(|&four| u32::from_le_bytes(four)));
            }
        }
    }
}

/// Tokens in a row.
#[derive(Debug)]
pub(crate) struct Stretch {
    lies: Lies,
    width: Width,
    tokens: u64,
    /// The digest of all of them, where it is known already.
    pub digest: Option<blake3::Hash>,
}

#[derive(Debug)]
enum Lies {
    Held(Vec<u8>),
    In(TokenFile),
}

impl Stretch {
    /// Tokens in memory, all below `vocabulary_size`.
    pub fn held(tokens: &[u32], vocabulary_size: usize) -> Stretch {
        let width = Width::of(vocabulary_size);
        let mut bytes = Vec::with_capacity(tokens.len() * width.bytes());
        width.write(tokens, &mut bytes);
        Stretch { lies: Lies::Held(bytes), width, tokens: tokens.len() as u64, digest: None }
    }

    /// Bytes in memory, each of which is a token.
    pub fn held_bytes(bytes: Vec<u8>) -> Stretch {
        let tokens = bytes.len() as u64;
        Stretch { lies: Lies::Held(bytes), width: Width::One, tokens, digest: None }
    }

    /// All that a file has behind its first `offset` bytes. It stays open if `held`.
    ///
    /// # Errors
    /// If it cannot be opened, or does not end with a token.
    pub fn of_file(path: &Path, offset: u64, width: Width, held: bool) -> Result<Stretch> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        let metadata = file.metadata().map_err(DataError::io("look at", path))?;
        let bytes = metadata.len().saturating_sub(offset);
        if metadata.len() < offset || !bytes.is_multiple_of(width.bytes() as u64) {
            let reason = format!("{bytes} bytes are no tokens of {} bytes each", width.bytes());
            return Err(DataError::TokenFile { path: path.to_path_buf(), reason });
        }
        let file = TokenFile {
            path: path.to_path_buf(),
            seen: Seen::of(&metadata),
            open: held.then_some(file),
            offset,
        };
        let tokens = bytes / width.bytes() as u64;
        Ok(Stretch { lies: Lies::In(file), width, tokens, digest: None })
    }

    /// How many there are.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The file that has them, if one has.
    pub fn path(&self) -> Option<&Path> {
        match &self.lies {
            Lies::Held(_) => None,
            Lies::In(file) => Some(&file.path),
        }
    }

    /// Bytes of memory that they take.
    pub fn held_in_memory(&self) -> u64 {
        match &self.lies {
            Lies::Held(bytes) => bytes.len() as u64,
            Lies::In(_) => 0,
        }
    }

    /// Appends the tokens of a range, which must be there.
    ///
    /// # Errors
    /// If the file cannot be read, or is not what it was.
    pub fn read(&self, range: Range<u64>, to: &mut Vec<u32>) -> Result<()> {
        let width = self.width.bytes() as u64;
        let bytes = range.start * width..range.end * width;
        match &self.lies {
            Lies::Held(held) => {
                self.width.read(&held[bytes.start as usize..bytes.end as usize], to);
                Ok(())
            }
            Lies::In(file) => file.read(bytes, |part| self.width.read(part, to)),
        }
    }
}

/// A file of tokens.
#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    /// None where so many are open that it is opened for each read.
    open: Option<File>,
    /// Where tokens begin.
    offset: u64,
    seen: Seen,
}

/// What a file was when it was opened. In a run all samples are of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    changed: Option<SystemTime>,
}

impl Seen {
    fn of(metadata: &Metadata) -> Seen {
        // Not every system knows when.
        Seen { bytes: metadata.len(), changed: metadata.modified().ok() }
    }
}

impl TokenFile {
    /// Visits a range of bytes behind the offset, in pieces of whole tokens.
    fn read(&self, mut range: Range<u64>, mut visit: impl FnMut(&[u8])) -> Result<()> {
        let opened = match &self.open {
            Some(_) => None,
            None => Some(File::open(&self.path).map_err(DataError::io("open", &self.path))?),
        };
        let Some(file) = opened.as_ref().or(self.open.as_ref()) else { return Ok(()) };
        let metadata = file.metadata().map_err(DataError::io("look at", &self.path))?;
        if Seen::of(&metadata) != self.seen {
            return Err(DataError::Changed { path: self.path.clone() });
        }
        let mut room = [0; READ_BYTES];
        while range.start < range.end {
            let most = (range.end - range.start).min(READ_BYTES as u64) as usize;
            let piece = &mut room[..most];
            read_exact_at(file, piece, self.offset + range.start).map_err(|error| {
                match error.kind() {
                    // It was cut since its length was looked at.
                    io::ErrorKind::UnexpectedEof => DataError::Changed { path: self.path.clone() },
                    _ => DataError::io("read", &self.path)(error),
                }
            })?;
            visit(piece);
            range.start += most as u64;
        }
        Ok(())
    }
}

/// Reads all of `to` from a place of a file, which several threads may do at once.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, to: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset)
}

/// Reads all of `to` from a place of a file, which several threads may do at once.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut to: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !to.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, to, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => (to, offset) = (&mut to[read..], offset + read as u64),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_whole_tokens_behind_its_beginning_or_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        let tokens: Vec<u32> = (0..20).map(|it| 256 + it).collect();
        let mut bytes = vec![];
        Width::of(1000).write(&tokens, &mut bytes);
        assert_eq!(bytes.len(), 40, "two bytes each");
        for (length, offset) in (0..=40usize).flat_map(|it| (0..=44).map(move |at| (it, at))) {
            std::fs::write(&path, &bytes[..length]).expect("written");
            for held in [false, true] {
                let found = Stretch::of_file(&path, offset as u64, Width::of(1000), held);
                let is_whole = length >= offset && (length - offset).is_multiple_of(2);
                let Ok(found) = found else {
                    assert!(!is_whole, "{length} bytes from {offset} on");
                    continue;
                };
                assert!(is_whole, "{length} bytes from {offset} on");
                let count = (length - offset) as u64 / 2;
                assert_eq!((found.tokens(), found.held_in_memory()), (count, 0));
                if offset.is_multiple_of(2) && count > 1 {
                    let mut read = vec![9];
                    found.read(1..count, &mut read).expect("tokens");
                    assert_eq!((read[0], &read[1..]), (9, &tokens[offset / 2 + 1..length / 2]));
                }
            }
        }
    }
}
