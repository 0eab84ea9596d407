//! The names of the classes that the model of a checkpoint tells apart.

use shardloom_checkpoint::{Checkpoint, Meta};

use crate::{Error, Result};

/// The key of a checkpoint's further entries: a list in JSON.
const NAMES: &str = "class-names";

/// Has a checkpoint say what classes are called, if they have names.
pub(crate) fn record(meta: &mut Meta, names: &[String]) {
    if !names.is_empty() {
        meta.extra.insert(NAMES.into(), serde_json::json!(names).to_string());
    }
}

/// What they are called, in order; empty where classes are numbers.
///
/// # Errors
/// If the checkpoint has something else than names there.
pub(crate) fn class_names(checkpoint: &Checkpoint) -> Result<Vec<String>> {
    let Some(text) = checkpoint.meta().extra.get(NAMES) else { return Ok(vec![]) };
    let names: Vec<String> = serde_json::from_str(text).unwrap_or_default();
    match !names.is_empty() && names.is_sorted() {
        true => Ok(names),
        false => Err(Error::ClassNames { path: checkpoint.path().to_path_buf() }),
    }
}
