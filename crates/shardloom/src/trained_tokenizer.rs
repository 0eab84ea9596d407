//! The tokenizer that the model of a checkpoint was trained with.

use std::path::Path;
use std::path::PathBuf;

use shardloom_checkpoint::{Checkpoint, Meta};
use shardloom_document::read_text;

use crate::training_data::TokenizerMark;
use crate::{Error, Result, TextTokenizer};

/// Keys of a checkpoint's further entries: `bytes` or the path of its file, and the digest of that file.
const NAME: &str = "tokenizer";
const DIGEST: &str = "tokenizer-digest";

/// Has a checkpoint say by what tokenizer its model is trained.
pub(crate) fn record(meta: &mut Meta, tokenizer: &TokenizerMark) {
    meta.extra.insert(NAME.into(), tokenizer.name.clone());
    meta.extra.insert(DIGEST.into(), tokenizer.digest.clone());
}

/// The tokenizer; bytes where a checkpoint names none.
///
/// # Errors
/// If its file cannot be read, or has changed since.
pub(crate) fn trained_tokenizer(checkpoint: &Checkpoint) -> Result<TextTokenizer> {
    let extra = &checkpoint.meta().extra;
    let tokenizer = TextTokenizer::open(extra.get(NAME).map_or("bytes", String::as_str))?;
    let mark = tokenizer.mark();
    // Checkpoints of earlier versions have no digest.
    match extra.get(DIGEST).is_none_or(|digest| *digest == mark.digest) {
        true => Ok(tokenizer),
        false => Err(Error::TokenizerChanged { path: PathBuf::from(mark.name) }),
    }
}

/// What the checkpoint was trained with, if that is another tokenizer than this one.
pub(crate) fn other_tokenizer(checkpoint: &Checkpoint, given: &TextTokenizer) -> Option<String> {
    let extra = &checkpoint.meta().extra;
    let mark = given.mark();
    let is_same = match extra.get(DIGEST) {
        Some(digest) => *digest == mark.digest,
        // Checkpoints of earlier versions have no digest.
        None => extra.get(NAME).is_none_or(|name| *name == mark.name),
    };
    (!is_same).then(|| extra.get(NAME).map_or("bytes", String::as_str).to_owned())
}

/// The text of its file, or why there is none.
pub(crate) fn text_of_tokenizer(checkpoint: &Checkpoint) -> Result<String, String> {
    let bytes = "it was trained on bytes, for which there is no tokenizer.json: token n is byte n";
    let extra = &checkpoint.meta().extra;
    let path = match extra.get(NAME).map(String::as_str) {
        None | Some("bytes") => return Err(bytes.into()),
        Some(path) => path,
    };
    let text = read_text(Path::new(path))
        .map_err(|error| format!("the tokenizer {path} cannot be read: {error}"))?;
    let digest = blake3::hash(text.as_bytes()).to_hex();
    match extra.get(DIGEST).is_none_or(|recorded| *recorded == *digest) {
        true => Ok(text),
        false => Err(Error::TokenizerChanged { path: path.into() }.to_string()),
    }
}
