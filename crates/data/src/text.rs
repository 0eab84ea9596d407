//! Named data to tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::cache::{Cache, Key, folder_for};
use crate::documents::{Documents, Form};
use crate::encode::{Piece, encode_in_order};
use crate::parts::Parts;
use crate::reading::{Progress, Reading, Stage};
use crate::stretch::{MOST_OPEN, Stretch, Width};
use crate::text_files::{Expected, examine, files_below, is_folder};
use crate::token_files::{Kind, datatrove, megatron, megatron_data};
use crate::tokenizer::{PART_BYTES, Tokenizer};
use crate::{DataError, Result};
use shardloom_document::read_file;

/// Bytes of text that are held in memory, and so may change while they are trained on.
const MOST_HELD: u64 = 1 << 24;

/// The most documents that are encoded at once.
const DOCUMENTS: usize = 1 << 12;

/// Data that was opened.
pub(crate) struct Opened {
    pub stretches: Vec<Stretch>,
    /// Files of folders that are not text.
    pub skipped: Vec<PathBuf>,
}

/// A named path, and the files to be read of it.
struct Named<'a> {
    path: &'a Path,
    is_folder: bool,
    files: Vec<Item>,
}

/// A file.
struct Item {
    path: PathBuf,
    kind: Kind,
    bytes: u64,
}

impl Item {
    /// Whether it has text.
    fn has_text(&self) -> bool {
        matches!(self.kind, Kind::Text | Kind::Documents(_))
    }

    /// What its bytes have to be, in a folder or by itself.
    fn expected(&self, is_in_folder: bool) -> Expected {
        match self.kind {
            Kind::Documents(form) if !form.is_text() => Expected::Bytes,
            _ if is_in_folder => Expected::StrictText,
            _ => Expected::Text,
        }
    }
}

impl Named<'_> {
    fn of(path: &Path) -> Result<Named<'_>> {
        let data = megatron_data(path);
        let is_folder = data.is_none() && is_folder(path)?;
        let paths = match (data, is_folder) {
            (Some(data), _) => vec![data],
            (None, true) => files_below(path)?,
            (None, false) => vec![path.to_path_buf()],
        };
        let mut files = vec![];
        for path in paths {
            let bytes = fs::metadata(&path).map_err(DataError::io("read", &path))?.len();
            match Kind::of(&path) {
                // No text, where nothing reads it.
                Kind::Documents(form) if !form.is_known() && is_folder => {
                    files.push(Item { path, kind: Kind::Text, bytes });
                }
                Kind::Documents(form) if !form.is_known() => {
                    return Err(DataError::NoParquet { path });
                }
                Kind::Companion if is_folder => {}
                Kind::Companion => files.push(Item { path, kind: Kind::Text, bytes }),
                kind => files.push(Item { path, kind, bytes }),
            }
        }
        Ok(Named { path, is_folder, files })
    }
}

/// Opens files and all below folders.
pub(crate) fn open(
    paths: &[PathBuf],
    tokenizer: &Tokenizer,
    reading: &Reading<'_>,
) -> Result<Opened> {
    let named = paths.iter().map(|path| Named::of(path)).collect::<Result<Vec<_>>>()?;
    let read = named.iter().flat_map(|named| &named.files).filter(|item| item.has_text());
    let total = read.map(|item| item.bytes).sum();
    let mut texts = Texts {
        tokenizer,
        reading,
        // What is small is held, all of it or nothing.
        held: total <= MOST_HELD,
        opened: Opened { stretches: vec![], skipped: vec![] },
        done: 0,
        total,
    };
    for named in &named {
        // Text in a row is encoded together.
        let together =
            |one: &Item, next: &Item| !tokenizer.is_bytes() && one.has_text() && next.has_text();
        for items in named.files.chunk_by(together) {
            texts.add(named, items)?;
        }
    }
    Ok(texts.opened)
}

/// The error of a file that was named and is no text from a byte on.
fn not_text(path: &Path, offset: u64) -> DataError {
    let path = path.to_path_buf();
    match path.extension() {
        Some(ending) if ending == "bin" => {
            DataError::NoIndex { index: path.with_extension("idx"), path, offset }
        }
        _ => DataError::NotText { path, offset },
    }
}

/// Data as it is opened.
struct Texts<'a> {
    tokenizer: &'a Tokenizer,
    reading: &'a Reading<'a>,
    held: bool,
    opened: Opened,
    /// Bytes looked at, and bytes of all.
    done: u64,
    total: u64,
}

impl Texts<'_> {
    fn add(&mut self, named: &Named<'_>, items: &[Item]) -> Result<()> {
        let open = self.opened.stretches.len() < MOST_OPEN;
        let vocabulary_size = self.tokenizer.vocabulary_size();
        let stretch = match items {
            [Item { path, kind: Kind::Megatron, .. }] => megatron(path, open)?,
            [Item { path, kind: Kind::Datatrove, .. }] => datatrove(path, vocabulary_size, open)?,
            [item @ Item { kind: Kind::Text, .. }] if self.tokenizer.is_bytes() => {
                match self.bytes(named, &item.path, open)? {
                    Some(stretch) => stretch,
                    None => {
                        self.opened.skipped.push(item.path.clone());
                        return Ok(());
                    }
                }
            }
            items => self.encoded(named, items)?,
        };
        self.opened.stretches.push(stretch);
        Ok(())
    }

    /// A text whose bytes are tokens; none if it is in a folder and no text.
    fn bytes(&mut self, named: &Named<'_>, path: &Path, open: bool) -> Result<Option<Stretch>> {
        if !named.is_folder && path.extension().is_some_and(|ending| ending == "bin") {
            self.examine(path, Expected::Text)?.map_err(|offset| not_text(path, offset))?;
        }
        if self.held {
            let bytes = read_file(path).map_err(DataError::io("read", path))?;
            let is_text = !named.is_folder || !bytes.contains(&0) && str::from_utf8(&bytes).is_ok();
            return Ok(is_text.then(|| Stretch::held_bytes(bytes)));
        }
        // A file that is named itself need not be text.
        if named.is_folder && self.examine(path, Expected::StrictText)?.is_err() {
            return Ok(None);
        }
        Stretch::of_file(path, 0, Width::One, open).map(Some)
    }

    /// The tokens of all texts in a row.
    fn encoded(&mut self, named: &Named<'_>, items: &[Item]) -> Result<Stretch> {
        let (mut texts, mut digests) = (vec![], vec![]);
        for item in items {
            match self.examine(&item.path, item.expected(named.is_folder))? {
                Ok(digest) => {
                    texts.push(item);
                    digests.push(digest);
                }
                Err(_) if named.is_folder => self.opened.skipped.push(item.path.clone()),
                Err(offset) => return Err(not_text(&item.path, offset)),
            }
        }
        let (total, vocabulary_size) =
            (texts.iter().map(|text| text.bytes).sum(), self.tokenizer.vocabulary_size());
        let make =
            |accept: &mut dyn FnMut(&[u32]) -> Result<()>| self.encode(&texts, total, accept);
        // How much text a compressed file has turns out when it is read.
        let is_compressed = |text: &&Item| text.kind == Kind::Documents(Form::Parquet);
        if total <= PART_BYTES as u64 && !texts.iter().any(is_compressed) {
            let mut tokens = vec![];
            make(&mut |more| {
                tokens.extend(more);
                Ok(())
            })?;
            return Ok(Stretch::held(&tokens, vocabulary_size));
        }
        let folder = folder_for(named.path, named.is_folder, self.reading.cache.as_deref());
        // What else than the texts decides on the tokens.
        let rules = texts.iter().map(|text| match text.kind {
            Kind::Documents(_) => {
                let end = self.tokenizer.end_of_text();
                format!("documents {:?} {end:?}\n", self.reading.text_field)
            }
            _ => "text\n".to_owned(),
        });
        let rules: String = rules.collect();
        let key = Key::new(&self.tokenizer.digest(), &rules, digests.into_iter());
        Cache::new(folder, key, vocabulary_size).tokens(self.reading.heard, make)
    }

    /// Encodes texts in a row.
    fn encode(
        &self,
        texts: &[&Item],
        total: u64,
        accept: &mut dyn FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
        let (mut texts, mut open, mut done) = (texts.iter(), None, 0_u64);
        let next = || {
            loop {
                if let Some(text) = &mut open
                    && let Some(piece) = self.next_piece(text)?
                {
                    // The marks of JSON count for nothing, so that this may end before all is done; compressed
                    // text is longer than its file.
                    done = (done + piece.bytes()).min(total);
                    (self.reading.heard)(Progress { stage: Stage::Encoding, done, total });
                    return Ok(Some(piece));
                }
                let Some(text) = texts.next() else { return Ok(None) };
                open = Some(match text.kind {
                    Kind::Documents(form) => Open::Documents(Documents::open(
                        form,
                        &text.path,
                        &self.reading.text_field,
                    )?),
                    _ => Open::Text(Parts::open(&text.path, self.tokenizer.cuts(), PART_BYTES)?),
                });
            }
        };
        encode_in_order(self.tokenizer, threads, next, accept)
    }

    fn next_piece(&self, text: &mut Open<'_>) -> Result<Option<Piece>> {
        match text {
            Open::Text(parts) => {
                Ok(parts.next()?.map(|part| Piece { texts: vec![part], end: None }))
            }
            Open::Documents(documents) => {
                let mut piece = Piece { texts: vec![], end: self.tokenizer.end_of_text() };
                while piece.bytes() < PART_BYTES as u64
                    && piece.texts.len() < DOCUMENTS
                    && let Some(document) = documents.next()?
                {
                    piece.texts.push(document);
                }
                Ok((!piece.texts.is_empty()).then_some(piece))
            }
        }
    }

    /// Looks at a file, and says how far that is.
    fn examine(
        &mut self,
        path: &Path,
        expected: Expected,
    ) -> Result<std::result::Result<blake3::Hash, u64>> {
        examine(path, expected, &mut |bytes| {
            self.done += bytes;
            let (done, total) = (self.done.min(self.total), self.total);
            (self.reading.heard)(Progress { stage: Stage::Checking, done, total });
        })
    }
}

/// A text that is being read.
enum Open<'a> {
    Text(Parts<'a>),
    Documents(Documents<'a>),
}
