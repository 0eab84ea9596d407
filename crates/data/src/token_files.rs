//! Files of tokens that other projects write: Megatron-LM's `.bin` with its `.idx`, and the `.ds` of datatrove, which nanotron
//! trains on.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::documents::Form;
use crate::stretch::{Stretch, Width};
use crate::{DataError, Result};
use shardloom_document::read_text;

/// What Megatron-LM's index begins with (`megatron/core/datasets/indexed_dataset.py`).
const MEGATRON: &[u8; 9] = b"MMIDIDX\0\0";

/// Its version.
const VERSION: u64 = 1;

/// Bytes of its index before lengths: magic, version, kind of number, sequences, documents.
const HEADER_BYTES: u64 = 34;

/// What may stand beside a `.ds`, behind its name.
const COMPANIONS: [&str; 3] = ["index", "metadata", "loss"];

/// What a file is, by its name and what stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text, or no text.
    Text,
    /// Documents, one in each line or row.
    Documents(Form),
    /// A `.bin` that has an `.idx`, which may be damaged.
    Megatron,
    /// A `.ds`.
    Datatrove,
    /// What belongs to one of those.
    Companion,
}

impl Kind {
    /// What the file at a path is.
    pub fn of(path: &Path) -> Kind {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending {
            "jsonl" | "ndjson" => Kind::Documents(Form::JsonLines),
            "parquet" => Kind::Documents(Form::Parquet),
            "ds" => Kind::Datatrove,
            "bin" if path.with_extension("idx").is_file() => Kind::Megatron,
            "idx" if path.with_extension("bin").is_file() => Kind::Companion,
            _ if COMPANIONS.contains(&ending) => {
                let of = path.with_extension("");
                let is_ds = of.extension().is_some_and(|ending| ending == "ds") && of.is_file();
                if is_ds { Kind::Companion } else { Kind::Text }
            }
            _ => Kind::Text,
        }
    }
}

/// The `.bin` that is meant by a path: itself, its index, or their name without an ending, as Megatron-LM has it.
pub(crate) fn megatron_data(path: &Path) -> Option<PathBuf> {
    let data = match path.extension() {
        Some(ending) if ending == "idx" => path.with_extension("bin"),
        _ if !path.exists() => {
            let mut name = path.as_os_str().to_owned();
            name.push(".bin");
            PathBuf::from(name)
        }
        _ => return None,
    };
    (data.is_file() && data.with_extension("idx").is_file()).then_some(data)
}

/// The tokens of a `.bin` of Megatron-LM. Its sequences must lie one after the other, as Megatron-LM writes them.
///
/// # Errors
/// If one of its files cannot be read, they do not belong together, or it has numbers that are no tokens.
pub(crate) fn megatron(data: &Path, open: bool) -> Result<Stretch> {
    let index = data.with_extension("idx");
    let unread = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => unfit(&index, "it ends too early"),
        _ => DataError::io("read", &index)(error),
    };
    let file = || File::open(&index).map(BufReader::new).map_err(unread);
    let mut header = file()?;
    let mut magic = [0; MEGATRON.len()];
    header.read_exact(&mut magic).map_err(unread)?;
    let version = number(&mut header).map(u64::from_le_bytes).map_err(unread)?;
    if magic != *MEGATRON || version != VERSION {
        return Err(unfit(&index, format!("it is no index of Megatron-LM of version {VERSION}")));
    }
    let [kind] = number(&mut header).map_err(unread)?;
    let width = match kind {
        1 => Width::One,
        8 => Width::Two,
        4 => Width::Four,
        _ => {
            let reason = format!(
                "its numbers are of kind {kind}; tokens are 1 (uint8), 4 (int32) or 8 (uint16)"
            );
            return Err(unfit(&index, reason));
        }
    };
    let sequences = number(&mut header).map(u64::from_le_bytes).map_err(unread)?;
    let (mut lengths, mut starts) = (file()?, file()?);
    lengths.seek(SeekFrom::Start(HEADER_BYTES)).map_err(unread)?;
    let behind_lengths = sequences.checked_mul(4).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
    // No file is longer.
    let behind_lengths = behind_lengths.filter(|&it| i64::try_from(it).is_ok());
    let behind_lengths = behind_lengths.ok_or_else(|| unfit(&index, "it ends too early"))?;
    starts.seek(SeekFrom::Start(behind_lengths)).map_err(unread)?;
    let mut end = 0_i64;
    for sequence in 0..sequences {
        let length = number(&mut lengths).map(i32::from_le_bytes).map_err(unread)?;
        let start = number(&mut starts).map(i64::from_le_bytes).map_err(unread)?;
        let bytes = i64::from(length) * width.bytes() as i64;
        if start != end || length < 0 {
            let reason = format!("sequence {sequence} does not begin where the one before ends");
            return Err(unfit(&index, reason));
        }
        end = end.saturating_add(bytes);
    }
    let tokens = Stretch::of_file(data, 0, width, open)?;
    let expected = end as u64 / width.bytes() as u64;
    match tokens.tokens() == expected {
        true => Ok(tokens),
        false => {
            let found = tokens.tokens();
            Err(unfit(data, format!("it has {found} tokens, but its index {expected}")))
        }
    }
}

/// The tokens of a `.ds` of datatrove. How wide they are follows from how many there are, which its `.index` (the ends of
/// documents) or its `.metadata` says, and else from the vocabulary, as there.
///
/// # Errors
/// If the file cannot be read, or what stands beside it is of another.
pub(crate) fn datatrove(data: &Path, vocabulary_size: usize, open: bool) -> Result<Stretch> {
    let bytes = fs::metadata(data).map_err(DataError::io("read", data))?.len();
    let beside = |ending: &str| {
        let mut name = data.as_os_str().to_owned();
        name.push(".");
        name.push(ending);
        PathBuf::from(name)
    };
    let tokens = match last_end(&beside("index"))? {
        Some(tokens) => Some(tokens),
        None => stated_tokens(&beside("metadata"))?,
    };
    let width = match tokens {
        Some(tokens) if tokens.checked_mul(2) == Some(bytes) => Width::Two,
        Some(tokens) if tokens.checked_mul(4) == Some(bytes) => Width::Four,
        Some(tokens) => {
            let reason = format!(
                "it has {bytes} bytes, but {tokens} tokens by what is beside it, which are of 2 or 4 bytes each"
            );
            return Err(unfit(data, reason));
        }
        None if vocabulary_size <= 1 << 16 => Width::Two,
        None => Width::Four,
    };
    Stretch::of_file(data, 0, width, open)
}

/// The end of the last document, in tokens; none if there is no such file, or nothing in it.
fn last_end(index: &Path) -> Result<Option<u64>> {
    let mut file = match File::open(index) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(DataError::io("open", index))?,
    };
    let bytes = file.metadata().map_err(DataError::io("look at", index))?.len();
    if !bytes.is_multiple_of(8) {
        return Err(unfit(index, format!("{bytes} bytes are no numbers of 8 bytes each")));
    }
    if bytes == 0 {
        return Ok(None);
    }
    let end = file.seek(SeekFrom::Start(bytes - 8)).and_then(|_| number(&mut file));
    end.map(|end| Some(u64::from_le_bytes(end))).map_err(DataError::io("read", index))
}

/// The number of tokens, which the second line says; none if there is no such file.
fn stated_tokens(metadata: &Path) -> Result<Option<u64>> {
    let text = match read_text(metadata) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(DataError::io("read", metadata))?,
    };
    let tokens = text.lines().nth(1).and_then(|line| line.trim().parse().ok());
    let tokens = tokens.ok_or_else(|| unfit(metadata, "its second line is no number of tokens"));
    tokens.map(Some)
}

fn number<const BYTES: usize>(from: &mut impl Read) -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    from.read_exact(&mut bytes).map(|()| bytes)
}

fn unfit(path: &Path, reason: impl Into<String>) -> DataError {
    DataError::TokenFile { path: path.to_path_buf(), reason: reason.into() }
}
