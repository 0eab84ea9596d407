//! A file, block by block, as bytes and as text.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::{DataError, Result};

/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 18;

/// The most bytes of a character that a block may end within.
const PART_OF_CHARACTER: usize = 3;

/// What is read of a file at once.
pub(crate) struct Block<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The whole characters that these bytes complete; where the file is not UTF-8, the offset of the first
    /// byte that is not, in this block and all that follow.
    pub text: std::result::Result<&'a str, u64>,
}

/// The blocks of a file. Nothing but one block is in memory.
pub(crate) struct Blocks {
    path: PathBuf,
    file: File,
    /// The start of a character, and then a block.
    buffer: Vec<u8>,
    /// Bytes of that start, and where they were left.
    held: usize,
    left_at: usize,
    /// Bytes read so far, but for that start.
    offset: u64,
    /// Where the file was found not to be UTF-8.
    broken: Option<u64>,
}

impl Blocks {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Blocks> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        Ok(Blocks {
            path: path.to_path_buf(),
            file,
            buffer: vec![0; PART_OF_CHARACTER + BLOCK_BYTES],
            held: 0,
            left_at: 0,
            offset: 0,
            broken: None,
        })
    }

    /// The next block; none behind the last. A file that ends within a character has a last one without bytes.
    pub fn next(&mut self) -> Result<Option<Block<'_>>> {
        let start = self.held;
        self.buffer.copy_within(self.left_at..self.left_at + start, 0);
        let read = self.fill(start)?;
        let end = start + read;
        if end == 0 {
            return Ok(None);
        }
        if let Some(offset) = self.broken {
            return Ok(
                (read > 0).then(|| Block { bytes: &self.buffer[start..end], text: Err(offset) })
            );
        }
        let whole = match str::from_utf8(&self.buffer[..end]) {
            Ok(_) => end,
            Err(error) if error.error_len().is_none() && read > 0 => error.valid_up_to(),
            Err(error) => {
                let offset = self.offset + error.valid_up_to() as u64;
                (self.broken, self.held, self.left_at) = (Some(offset), 0, 0);
                return Ok(Some(Block { bytes: &self.buffer[start..end], text: Err(offset) }));
            }
        };
        self.offset += whole as u64;
        (self.held, self.left_at) = (end - whole, whole);
        Ok(Some(Block {
            bytes: &self.buffer[start..end],
            text: Ok(str::from_utf8(&self.buffer[..whole]).unwrap_or_default()),
        }))
    }

    fn fill(&mut self, start: usize) -> Result<usize> {
        let mut read = 0;
        let room = &mut self.buffer[start..start + BLOCK_BYTES];
        while read < room.len() {
            match self.file.read(&mut room[read..]) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(DataError::io("read", &self.path)(error)),
            }
        }
        Ok(read)
    }
}
