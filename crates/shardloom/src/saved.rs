//! Trained weights, taken out of checkpoints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use shardloom_checkpoint::{Checkpoint, Refused, Store};

use crate::{Model, Result};

/// The checkpoint in this folder, or the newest sound one of a folder of checkpoints, with newer ones that
/// were not used.
///
/// # Errors
/// If there is no sound checkpoint.
pub(crate) fn open_checkpoint(path: &Path) -> Result<(Checkpoint, Vec<Refused>)> {
    if path.join("manifest.json").exists() {
        return Ok((Checkpoint::open(path)?, vec![]));
    }
    Ok(Store::open(path)?.load_latest()?)
}

/// The model of a checkpoint, which has all of its parameters.
///
/// # Errors
/// If it lacks one.
pub(crate) fn model_of(checkpoint: &Checkpoint) -> Result<Model> {
    let model = Model::load(&checkpoint.meta().model)?;
    let mut names = model.graph().parameters().map(|(_, value)| value.name.clone());
    match names.find(|name| checkpoint.global_shape(name).is_none()) {
        Some(name) => Err(shardloom_train::Error::MissingWeight { name }.into()),
        None => {
            drop(names);
            Ok(model)
        }
    }
}

/// What was taken out of a checkpoint.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    /// Steps that the weights were trained for.
    pub step: u64,
    /// The model, as [`Model::load`] reads it.
    pub model: String,
    /// How many tensors were written.
    pub tensors: usize,
    /// How many elements they have together.
    pub parameters: u64,
    /// Newer checkpoints that were not used.
    pub refused: Vec<Refused>,
}

impl Exported {
    /// So many tensors of the model in a checkpoint.
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        model: &Model,
        tensors: usize,
        refused: Vec<Refused>,
    ) -> Exported {
        Exported {
            checkpoint: checkpoint.path().to_path_buf(),
            step: checkpoint.step(),
            model: model.text(),
            tensors,
            parameters: model.graph().parameter_count(),
            refused,
        }
    }
}

/// Writes the weights in a checkpoint, or in the newest sound one of a folder of checkpoints, to one
/// safetensors file: every parameter whole, whatever the plan it was trained under, as 32-bit floats under
/// this program's names. [`Session::load_weights`](crate::Session::load_weights) reads it. A file of that
/// path is replaced.
///
/// # Errors
/// If there is no sound checkpoint, it lacks a parameter of its model, or the file cannot be written.
pub fn export_weights(checkpoint: &Path, to: &Path) -> Result<Exported> {
    let (checkpoint, refused) = open_checkpoint(checkpoint)?;
    let model = model_of(&checkpoint)?;
    let names: BTreeSet<&str> =
        model.graph().parameters().map(|(_, value)| value.name.as_str()).collect();
    checkpoint.export_safetensors(to, |name| names.contains(name))?;
    Ok(Exported::of(&checkpoint, &model, names.len(), refused))
}
