//! Encoded text, kept so that it is encoded once.
//!
//! A file has the tokens of one text, or of all texts of a folder. Its name is a digest of these texts, of the tokenizer
//! and of this format, so that another text has another file. It is written under a name of its own and gets the
//! right one when it is whole. It says which tokens it has by a digest, which is held against what it has
//! whenever it is opened: what is damaged is made anew.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::reading::{Progress, Stage};
use crate::stretch::{Stretch, Width};
use crate::tokenizer::check_vocabulary;
use crate::{DataError, Result};

/// What a file begins with.
const MAGIC: &[u8; 16] = b"shardloom tokens";

/// Raised when the same text may get other tokens, or files another form.
const VERSION: u32 = 2;

/// Bytes before the tokens: magic, version, bytes of a token, tokens, key, digest of the tokens.
const HEADER_BYTES: usize = 96;

/// Tokens that are checked at once.
const CHECKED_TOKENS: u64 = 1 << 16;

/// The folder for encoded text beside the text. It is hidden, so that it is not taken for text.
const FOLDER: &str = ".shardloom-cache";

/// Where encoded text is kept: in `named`, else beside the data.
pub(crate) fn folder_for(data: &Path, is_folder: bool, named: Option<&Path>) -> PathBuf {
    match named {
        Some(folder) => folder.to_path_buf(),
        None if is_folder => data.join(FOLDER),
        None => data.parent().unwrap_or(Path::new("")).join(FOLDER),
    }
}

/// Which text by which tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(blake3::Hash);

impl Key {
    /// Of the digests of a tokenizer's file and of texts in their order, and of whatever else decides on the tokens.
    pub fn new(
        tokenizer: &blake3::Hash,
        rule: &str,
        texts: impl Iterator<Item = blake3::Hash>,
    ) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC).update(&VERSION.to_le_bytes()).update(tokenizer.as_bytes());
        hasher.update(&(rule.len() as u64).to_le_bytes()).update(rule.as_bytes());
        texts.for_each(|text| {
            hasher.update(text.as_bytes());
        });
        Key(hasher.finalize())
    }
}

/// The kept tokens of one key.
pub(crate) struct Cache {
    folder: PathBuf,
    key: Key,
    vocabulary_size: usize,
}

impl Cache {
    /// Tokens below `vocabulary_size`, in a folder that need not be there yet.
    pub fn new(folder: PathBuf, key: Key, vocabulary_size: usize) -> Cache {
        Cache { folder, key, vocabulary_size }
    }

    /// The tokens, which `make` gives one piece after the other to what it is handed if they are not there. Of
    /// several processes that want them one makes them, and the others wait.
    ///
    /// # Errors
    /// If they cannot be made or kept.
    pub fn tokens(
        &self,
        heard: &dyn Fn(Progress),
        make: impl FnOnce(&mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()>,
    ) -> Result<Stretch> {
        // A folder that others filled may not be ours to write to.
        if let Some(tokens) = self.sound(heard)? {
            return Ok(tokens);
        }
        let unkept = |error| DataError::Cache { folder: self.folder.clone(), error };
        self.make_folder().map_err(unkept)?;
        let lock = Lock::take(self.path("lock"), heard).map_err(unkept)?;
        if let Some(tokens) = self.sound(heard)? {
            return Ok(tokens);
        }
        if lock.is_some() {
            self.remove_partial().map_err(unkept)?;
        }
        let partial = Partial(self.path(&format!("{}.partial", std::process::id())));
        let written = self
            .write(&partial.0, make)
            .and_then(|()| fs::rename(&partial.0, self.path("tokens")).map_err(unkept));
        drop(lock);
        written?;
        let made = self.sound(heard)?;
        made.ok_or_else(|| unkept(io::Error::other("what was written there reads otherwise")))
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{ending}", self.key.0.to_hex()))
    }

    fn make_folder(&self) -> io::Result<()> {
        let is_own = self.folder.ends_with(FOLDER) && !self.folder.exists();
        fs::create_dir_all(&self.folder)?;
        match is_own {
            true => fs::write(self.folder.join(".gitignore"), "*\n"),
            false => Ok(()),
        }
    }

    /// Removes what processes that were killed have left of this key.
    fn remove_partial(&self) -> io::Result<()> {
        let prefix = format!("{}.", self.key.0.to_hex());
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name.ends_with(".partial") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn write(
        &self,
        path: &Path,
        make: impl FnOnce(&mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let unkept = |error| DataError::Cache { folder: self.folder.clone(), error };
        let width = Width::of(self.vocabulary_size);
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path).map_err(unkept)?);
        file.write_all(&[0; HEADER_BYTES]).map_err(unkept)?;
        let (mut count, mut bytes, mut digest) = (0, vec![], Digest::default());
        make(&mut |tokens| {
            digest.update(tokens);
            count += tokens.len() as u64;
            bytes.clear();
            width.write(tokens, &mut bytes);
            file.write_all(&bytes).map_err(unkept)
        })?;
        let header = self.header(count, &digest.finish());
        let mut file = file.into_inner().map_err(|error| unkept(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&header)).map_err(unkept)
    }

    fn header(&self, tokens: u64, digest: &blake3::Hash) -> Vec<u8> {
        let width = Width::of(self.vocabulary_size).bytes() as u32;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend(width.to_le_bytes());
        header.extend(tokens.to_le_bytes());
        header.extend(self.key.0.as_bytes());
        header.extend(digest.as_bytes());
        header
    }

    /// The tokens, if they are there and as they were written.
    fn sound(&self, heard: &dyn Fn(Progress)) -> Result<Option<Stretch>> {
        let path = self.path("tokens");
        let mut header = [0; HEADER_BYTES];
        match File::open(&path).and_then(|mut file| file.read_exact(&mut header)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(DataError::Cache { folder: self.folder.clone(), error }),
        }
        let width = Width::of(self.vocabulary_size);
        let Ok(mut tokens) = Stretch::of_file(&path, HEADER_BYTES as u64, width, true) else {
            return Ok(None);
        };
        let (mut digest, mut done, total) = (Digest::default(), 0, tokens.tokens());
        let mut checked = |tokens| {
            done += tokens;
            heard(Progress { stage: Stage::Checking, done, total });
        };
        let digest = match add(&tokens, &mut digest, (0, self.vocabulary_size), &mut checked) {
            Ok(()) => digest.finish(),
            Err(DataError::TokenOutOfVocabulary { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let as_written = header[..] == self.header(tokens.tokens(), &digest);
        tokens.digest = Some(digest);
        Ok(as_written.then_some(tokens))
    }
}

/// A file that one process has alone. It is removed before others get it, who see then that it is gone.
struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits until nobody else has it; none where the file system has no locks, so that several may make the same, of
    /// which the last to be done stays.
    fn take(path: PathBuf, heard: &dyn Fn(Progress)) -> io::Result<Option<Lock>> {
        loop {
            let file = File::create(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    heard(Progress { stage: Stage::Waiting, done: 0, total: 0 });
                    file.lock()?;
                }
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(None);
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if is_at(&file, &path)? {
                return Ok(Some(Lock { _file: file, path }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // What stays is empty, and taken again.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a file is still the one at a path: who had it before may have removed it.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a file is still the one at a path: here nobody removes what is open.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// A file that is removed unless it gets another name.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The digest of tokens, each as four bytes, the lowest first, whatever they are kept in.
#[derive(Default)]
pub(crate) struct Digest {
    hasher: blake3::Hasher,
    bytes: Vec<u8>,
}

impl Digest {
    /// Adds further tokens.
    pub fn update(&mut self, tokens: &[u32]) {
        for tokens in tokens.chunks(1 << 14) {
            self.bytes.clear();
            Width::Four.write(tokens, &mut self.bytes);
            self.hasher.update(&self.bytes);
        }
    }

    /// The digest of all.
    pub fn finish(self) -> blake3::Hash {
        self.hasher.finalize()
    }
}

/// Adds the tokens of a stretch to a digest. They are behind so many others and must be below `vocabulary_size`.
pub(crate) fn add(
    tokens: &Stretch,
    digest: &mut Digest,
    (before, vocabulary_size): (u64, usize),
    heard: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut read = Vec::new();
    let mut start = 0;
    while start < tokens.tokens() {
        let end = (start + CHECKED_TOKENS).min(tokens.tokens());
        read.clear();
        tokens.read(start..end, &mut read)?;
        check_vocabulary(&read, before + start, vocabulary_size)?;
        digest.update(&read);
        heard(end - start);
        start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Tokens of a vocabulary, and whether they had to be made.
    fn tokens(folder: &Path, vocabulary_size: usize) -> (Vec<u32>, bool) {
        let key =
            Key::new(&blake3::hash(b"tokenizer"), "rule", [blake3::hash(b"text")].into_iter());
        let cache = Cache::new(folder.to_path_buf(), key, vocabulary_size);
        let made = Cell::new(false);
        let kept = cache.tokens(&|_| {}, |accept| {
            made.set(true);
            accept(&[])?;
            accept(&[7, 0, vocabulary_size as u32 - 1])?;
            accept(&[3; 1000])
        });
        let kept = kept.expect("tokens");
        let mut read = vec![];
        kept.read(0..kept.tokens(), &mut read).expect("reads");
        let mut digest = Digest::default();
        digest.update(&read);
        assert_eq!(kept.digest, Some(digest.finish()));
        (read, made.get())
    }

    #[test]
    fn what_is_damaged_is_made_anew_and_all_else_is_read() {
        for (vocabulary_size, width) in [(256, 1), (257, 2), (1 << 16, 2), ((1 << 16) + 1, 4)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (whole, made) = tokens(folder.path(), vocabulary_size);
            assert_eq!((whole.len(), made), (1003, true));
            assert_eq!(whole[..3], [7, 0, vocabulary_size as u32 - 1]);
            let mut files = fs::read_dir(folder.path()).expect("a folder");
            let file = files.next().expect("a file").expect("a file").path();
            assert!(files.next().is_none(), "nothing but the tokens");
            let sound = fs::read(&file).expect("tokens");
            assert_eq!(sound.len(), HEADER_BYTES + 1003 * width);
            assert_eq!(tokens(folder.path(), vocabulary_size), (whole.clone(), false));
            let changed = |at: usize| {
                let mut bytes = sound.clone();
                bytes[at] ^= 1;
                bytes
            };
            for (why, damaged) in [
                ("the first token changed", changed(HEADER_BYTES)),
                ("the last token changed", changed(sound.len() - 1)),
                ("another magic", changed(0)),
                ("another version", changed(16)),
                ("another width", changed(20)),
                ("another number of tokens", changed(24)),
                ("another key", changed(40)),
                ("another digest", changed(80)),
                ("a token less", sound[..sound.len() - width].to_vec()),
                ("a byte less", sound[..sound.len() - 1].to_vec()),
                ("only a header", sound[..HEADER_BYTES].to_vec()),
                ("half a header", sound[..HEADER_BYTES / 2].to_vec()),
                ("nothing", vec![]),
                ("a token more", [&sound[..], &[0; 4][..width]].concat()),
                ("tokens that no vocabulary has", {
                    let mut bytes = sound.clone();
                    bytes[HEADER_BYTES..].fill(0xff);
                    bytes
                }),
            ] {
                fs::write(&file, &damaged).expect("written");
                assert_eq!(tokens(folder.path(), vocabulary_size), (whole.clone(), true), "{why}");
                assert_eq!(fs::read(&file).expect("tokens"), sound, "{why}");
                assert_eq!(tokens(folder.path(), vocabulary_size), (whole.clone(), false), "{why}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_was_removed_meanwhile_is_taken_anew() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lock");
        let take = |heard: &dyn Fn(Progress)| Lock::take(path.clone(), heard);
        let first = take(&|_| {}).expect("free").expect("locks");
        let waits = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let heard = |progress: Progress| {
                    assert_eq!(progress.stage, Stage::Waiting);
                    waits.wait();
                };
                take(&heard).expect("free in the end").expect("locks")
            });
            waits.wait();
            drop(first);
            let second = second.join().expect("no panic");
            // Who comes now meets the second one's.
            let third = File::open(&path).expect("it is there again");
            assert!(matches!(third.try_lock(), Err(TryLockError::WouldBlock)));
            drop(second);
        });
    }

    #[test]
    fn keys_differ_with_whatever_decides_on_the_tokens() {
        let [one, two] = [b"one", b"two"].map(|text| blake3::hash(text));
        let keys = [
            Key::new(&one, "", [one].into_iter()),
            Key::new(&two, "", [one].into_iter()),
            Key::new(&one, "rule", [one].into_iter()),
            Key::new(&one, "", [two].into_iter()),
            Key::new(&one, "", [one, two].into_iter()),
            Key::new(&one, "", [two, one].into_iter()),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "key {at} occurs twice");
        }
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let key = Key::new(&blake3::hash(b"tokenizer"), "rule", [].into_iter());
        let cache = Cache::new(folder.path().join("new"), key, 10);
        let result = cache.tokens(&|_| {}, |accept| {
            accept(&[1, 2])?;
            Err(DataError::SequenceLength)
        });
        assert!(matches!(result, Err(DataError::SequenceLength)), "{result:?}");
        assert_eq!(fs::read_dir(folder.path().join("new")).expect("a folder").count(), 0);
    }
}
