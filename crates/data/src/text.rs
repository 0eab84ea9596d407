//! Texts to tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::cache::{Cache, Key, folder_for};
use crate::encode::encode_in_order;
use crate::parts::Parts;
use crate::reading::{Progress, Reading, Stage};
use crate::stretch::{MOST_OPEN, Stretch, Width};
use crate::text_files::{examine, files_below, is_folder};
use crate::tokenizer::{InParts, PART_BYTES, Tokenizer};
use crate::{DataError, Result};

/// Bytes of text that are held in memory, and so may change while they are trained on.
const MOST_HELD: u64 = 1 << 24;

/// Text that was opened.
pub(crate) struct Opened {
    pub stretches: Vec<Stretch>,
    /// Files of folders that are not text.
    pub skipped: Vec<PathBuf>,
}

/// A named path, and the files to be read of it.
struct Named<'a> {
    path: &'a Path,
    is_folder: bool,
    /// With their bytes.
    files: Vec<(PathBuf, u64)>,
}

impl Named<'_> {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Opens files and all below folders.
pub(crate) fn open(
    paths: &[PathBuf],
    tokenizer: &Tokenizer,
    reading: &Reading<'_>,
) -> Result<Opened> {
    let with_bytes = |path: PathBuf| {
        let bytes = fs::metadata(&path).map_err(DataError::io("read", &path))?.len();
        Ok((path, bytes))
    };
    let mut named = vec![];
    for path in paths {
        let is_folder = is_folder(path)?;
        let files = match is_folder {
            true => files_below(path)?,
            false => vec![path.clone()],
        };
        let files = files.into_iter().map(with_bytes).collect::<Result<_>>()?;
        named.push(Named { path, is_folder, files });
    }
    let mut texts = Texts {
        reading,
        // What is small is held, all of it or nothing.
        held: named.iter().map(Named::bytes).sum::<u64>() <= MOST_HELD,
        opened: Opened { stretches: vec![], skipped: vec![] },
        done: 0,
        total: named.iter().map(Named::bytes).sum(),
    };
    for path in &named {
        match tokenizer.in_parts() {
            None => texts.add_bytes(path)?,
            Some(by) => texts.add_encoded(path, &by, tokenizer.vocabulary_size())?,
        }
    }
    Ok(texts.opened)
}

/// Texts as they are opened.
struct Texts<'a> {
    reading: &'a Reading<'a>,
    held: bool,
    opened: Opened,
    /// Bytes looked at, and bytes of all.
    done: u64,
    total: u64,
}

impl Texts<'_> {
    /// Adds texts whose bytes are tokens.
    fn add_bytes(&mut self, named: &Named<'_>) -> Result<()> {
        for (file, _) in &named.files {
            let stretch = match self.held {
                true => {
                    let bytes = fs::read(file).map_err(DataError::io("read", file))?;
                    let is_text =
                        !named.is_folder || !bytes.contains(&0) && str::from_utf8(&bytes).is_ok();
                    is_text.then(|| Stretch::held_bytes(bytes))
                }
                false => {
                    // A file that is named itself need not be text.
                    let is_text = !named.is_folder || self.examine(file, true)?.is_ok();
                    let open = self.opened.stretches.len() < MOST_OPEN;
                    let stretch = || Stretch::of_file(file, 0, Width::One, open);
                    is_text.then(stretch).transpose()?
                }
            };
            match stretch {
                Some(stretch) => self.opened.stretches.push(stretch),
                None => self.opened.skipped.push(file.clone()),
            }
        }
        Ok(())
    }

    /// Adds the tokens of all texts of a path.
    fn add_encoded(
        &mut self,
        named: &Named<'_>,
        by: &InParts<'_>,
        vocabulary_size: usize,
    ) -> Result<()> {
        let (mut files, mut digests) = (vec![], vec![]);
        for (file, bytes) in &named.files {
            match self.examine(file, named.is_folder)? {
                Ok(digest) => {
                    files.push((file, *bytes));
                    digests.push(digest);
                }
                Err(_) if named.is_folder => self.opened.skipped.push(file.clone()),
                Err(offset) => return Err(DataError::NotText { path: file.clone(), offset }),
            }
        }
        let total = files.iter().map(|(_, bytes)| bytes).sum();
        let heard = self.reading.heard;
        let make = |accept: &mut dyn FnMut(&[u32]) -> Result<()>| {
            let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
            let (mut files, mut parts, mut done) = (files.iter(), None, 0);
            let next = || {
                loop {
                    if let Some(open) = &mut parts
                        && let Some(part) = Parts::next(open)?
                    {
                        done += part.len() as u64;
                        heard(Progress { stage: Stage::Encoding, done, total });
                        return Ok(Some(part));
                    }
                    let Some((file, _)) = files.next() else { return Ok(None) };
                    parts = Some(Parts::open(file, by.cuts, PART_BYTES)?);
                }
            };
            encode_in_order(by, threads, next, accept)
        };
        let stretch = if total <= PART_BYTES as u64 {
            let mut tokens = vec![];
            make(&mut |more| {
                tokens.extend(more);
                Ok(())
            })?;
            Stretch::held(&tokens, vocabulary_size)
        } else {
            let folder = folder_for(named.path, named.is_folder, self.reading.cache.as_deref());
            let key = Key::new(by.digest, "text", digests.into_iter());
            Cache::new(folder, key, vocabulary_size).tokens(heard, make)?
        };
        self.opened.stretches.push(stretch);
        Ok(())
    }

    /// Looks at a file, and says how far that is.
    fn examine(
        &mut self,
        path: &Path,
        strict: bool,
    ) -> Result<std::result::Result<blake3::Hash, u64>> {
        examine(path, strict, &mut |bytes| {
            self.done += bytes;
            let (done, total) = (self.done.min(self.total), self.total);
            (self.reading.heard)(Progress { stage: Stage::Checking, done, total });
        })
    }
}
