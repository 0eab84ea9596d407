//! Trained weights, taken out of checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use shardloom_checkpoint::{Checkpoint, Refused, Store};
use shardloom_graph::{Extents, Value};
use shardloom_profile::SystemMemory;

use crate::{Error, Model, Result};

/// The checkpoint in this folder, or the newest sound one of a folder of checkpoints, with newer ones that
/// were not used.
///
/// # Errors
/// If there is no sound checkpoint.
pub(crate) fn open_checkpoint(path: &Path) -> Result<(Checkpoint, Vec<Refused>)> {
    if path.join("manifest.json").exists() {
        return Ok((Checkpoint::open(path)?, vec![]));
    }
    if path.is_file() {
        return Err(Error::NotFolder { path: path.to_path_buf() });
    }
    Ok(Store::open(path)?.load_latest()?)
}

/// The model of a checkpoint, which has all of its parameters in their shapes.
///
/// # Errors
/// If it lacks one, or has another shape of it.
pub(crate) fn model_of(checkpoint: &Checkpoint) -> Result<Model> {
    let model = Model::load(&checkpoint.meta().model)?;
    let extents = Extents::global(model.graph(), 1);
    for (_, parameter) in model.graph().parameters() {
        let name = || parameter.name.clone();
        let expected = extents.shape(&parameter.axes);
        match checkpoint.global_shape(&parameter.name) {
            Some(shape) if shape == expected => {}
            Some(shape) => {
                let found = shape.to_vec();
                return Err(shardloom_train::Error::Shape { name: name(), found, expected }.into());
            }
            None => return Err(shardloom_train::Error::MissingWeight { name: name() }.into()),
        }
    }
    Ok(model)
}

/// Bytes that this process may still take, if the system says.
pub(crate) fn available_bytes() -> Option<u64> {
    SystemMemory::of_this_process().map(|memory| memory.available_bytes)
}

/// The parameters of the model in a checkpoint, whole, by name.
///
/// # Errors
/// If there is too little memory for them, or the checkpoint lacks a part of one.
pub(crate) fn weights_of(
    checkpoint: &Checkpoint,
    model: &Model,
) -> Result<BTreeMap<String, Vec<f32>>> {
    let parameters = model.graph().parameter_count();
    let needed_bytes = parameters.saturating_mul(size_of::<f32>() as u64);
    if let Some(available_bytes) = available_bytes().filter(|&available| needed_bytes > available) {
        return Err(shardloom_train::Error::Memory { needed_bytes, available_bytes }.into());
    }
    let names = model.graph().parameters().map(|(_, value)| &value.name);
    names.map(|name| Ok((name.clone(), checkpoint.read_whole(name)?))).collect()
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
/// safetensors file: every parameter whole but for rows of padding, whatever the plan it was trained under, as 32-bit
/// floats under this program's names. [`Session::load_weights`](crate::Session::load_weights) reads it. A file of that
/// path is replaced.
///
/// # Errors
/// If there is no sound checkpoint, it lacks a parameter of its model, or the file cannot be written.
pub fn export_weights(checkpoint: &Path, to: &Path) -> Result<Exported> {
    let (checkpoint, refused) = open_checkpoint(checkpoint)?;
    let model = model_of(&checkpoint)?;
    let names: BTreeSet<&str> =
        model.graph().parameters().map(|(_, value)| value.name.as_str()).collect();
    // Rows of padding are no weights.
    let plain = model.spec().with_padding(None).and_then(|spec| spec.graph()).ok();
    let rows: BTreeMap<&str, usize> = match &plain {
        Some(plain) => {
            let rows = |value: &Value| value.axes.first().map(|&dim| plain.dim(dim).size);
            let parameters = plain.parameters();
            parameters.filter_map(|(_, it)| Some((it.name.as_str(), rows(it)?))).collect()
        }
        None => BTreeMap::new(),
    };
    checkpoint.export_first_rows(
        to,
        |name| names.contains(name),
        |name| rows.get(name).copied(),
    )?;
    let exported = Exported::of(&checkpoint, &model, names.len(), refused);
    let parameters = plain.map_or(exported.parameters, |plain| plain.parameter_count());
    Ok(Exported { parameters, ..exported })
}
