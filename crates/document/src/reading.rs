//! Reading files that people name, which may be other than they think.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The bytes that a document has at most, 256 MiB.
const LONGEST: u64 = 1 << 28;

/// Reads a document as text.
///
/// # Errors
/// If it cannot be read, is no UTF-8, or is longer than 256 MiB, as devices without an end are.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_document(path)?;
    // As the standard library says it.
    let no_text = |_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(bytes).map_err(no_text)
}

/// Reads a document.
///
/// # Errors
/// If it cannot be read, or is longer than 256 MiB, as devices without an end are.
pub fn read_document(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    match file.metadata()?.len() {
        length if length > LONGEST => Err(too_long()),
        length => read_most(file, length),
    }
}

/// Reads a file however long it is; of what is no file, as a pipe or a device, no more than of a document.
///
/// # Errors
/// If it cannot be read, or is no file and has more than 256 MiB.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    match file.metadata()?.is_file() {
        true => std::fs::read(path),
        false => read_most(file, 0).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge => {
                let message = format!("{error}, the most that is read of what is no file");
                io::Error::new(ErrorKind::FileTooLarge, message)
            }
            _ => error,
        }),
    }
}

/// Reads what is about `length` long, and no more than a document.
fn read_most(file: File, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    bytes.try_reserve_exact(length as usize)?;
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > LONGEST {
        true => Err(too_long()),
        false => Ok(bytes),
    }
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {} MiB", LONGEST >> 20))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_document_is_read_as_it_is_and_one_that_is_too_long_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("document");
        fs::write(&path, "a\u{e4}\n").expect("it is written");
        assert_eq!(read_text(&path).expect("it is text"), "a\u{e4}\n");
        fs::write(&path, [0x61, 0xff]).expect("it is written");
        assert_eq!(read_text(&path).expect_err("no text").kind(), ErrorKind::InvalidData);
        assert_eq!(read_document(&path).expect("it is there"), [0x61, 0xff]);
        assert_eq!(read_file(&path).expect("it is there"), [0x61, 0xff]);
        // Of a length that nothing was written of.
        let long = File::create(&path).expect("it is there");
        long.set_len(LONGEST + 1).expect("it is made longer");
        for read in [read_text(&path).err(), read_document(&path).err()] {
            assert_eq!(read.expect("too long").to_string(), "it is longer than 256 MiB");
        }
        assert!(read_text(&folder.path().join("none")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_an_end_is_refused() {
        let zero = Path::new("/dev/zero");
        for error in [read_document(zero).err(), read_file(zero).err(), read_text(zero).err()] {
            assert_eq!(error.expect("it has no end").kind(), ErrorKind::FileTooLarge);
        }
        assert!(read_file(Path::new("/dev/null")).expect("it is empty").is_empty());
    }
}
