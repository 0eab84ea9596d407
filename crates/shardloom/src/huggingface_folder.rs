//! Folders as Hugging Face's library saves models: a configuration, weights in one file or several, and a
//! tokenizer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardloom_checkpoint::{Stored, read_safetensors, write_safetensors};
use shardloom_document::{at_line, read_text};
use shardloom_interop::ModelType;
use shardloom_interop::huggingface::write_config;
use shardloom_interop::weights::{HuggingFaceTensors, Tensor, files_of_index, line_in_index};

use crate::checkpoint_folder::refuse_checkpoints;
use crate::local_profile::write_whole;
use crate::model::read;
use crate::saved::{model_of, open_checkpoint};
use crate::trained_tokenizer::text_of_tokenizer;
use crate::{Error, Exported, Result};

/// The configuration of a model.
pub(crate) const CONFIG: &str = "config.json";
/// The tokenizer of a model.
const TOKENIZER_FILE: &str = "tokenizer.json";
/// What says in which class the tokenizer is opened.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Weights in one file.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// Which file has which tensor, where there are several.
const INDEX: &str = "model.safetensors.index.json";
/// Weights in PyTorch's own format, which is not read.
const UNREAD: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// What Hugging Face's library saves beside a model's weights and tokenizer, and loads with them.
const BESIDE: [&str; 7] = [
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Whether a folder has the weights of a model, in whatever form Hugging Face's library saves them; not all are
/// read.
pub fn folder_has_weights(folder: &Path) -> bool {
    [WEIGHTS, INDEX].iter().chain(&UNREAD).any(|name| folder.join(name).is_file())
}

/// The tokenizer of a folder with a model, if it has one.
pub fn tokenizer_of(folder: &Path) -> Option<PathBuf> {
    Some(folder.join(TOKENIZER_FILE)).filter(|path| path.is_file())
}

/// All tensors of a file of weights, or of a folder with `model.safetensors` or with several files and their
/// index.
pub(crate) fn read_weights(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let is_index = path.file_name().is_some_and(|name| name == INDEX);
    let ours = |(name, tensor): (String, shardloom_checkpoint::Tensor)| {
        (name, Tensor { shape: tensor.shape, values: tensor.values })
    };
    let one = |path: &Path| Ok(read_safetensors(path)?.into_iter().map(ours).collect());
    if !path.is_dir() && !is_index {
        return one(path);
    }
    let folder = if is_index { path.parent().unwrap_or(Path::new("")) } else { path };
    let (index, whole) = (folder.join(INDEX), folder.join(WEIGHTS));
    // As Hugging Face's library does, where a folder has both.
    if whole.is_file() && !is_index {
        return one(&whole);
    }
    if !index.is_file() {
        refuse_checkpoints(folder, "--weights FILE` makes a file of their weights")?;
        let unread = UNREAD.iter().find(|name| folder.join(name).is_file());
        return Err(Error::NoWeights { folder: folder.to_path_buf(), found: unread.copied() });
    }
    read_indexed(folder, &index)?.into_iter().map(|named| Ok(ours(named))).collect()
}

/// The index of several files beside a file of weights, if that is one of these.
pub(crate) fn index_with(path: &Path) -> Option<PathBuf> {
    let index = path.with_file_name(INDEX);
    let name = path.file_name()?.to_str()?;
    let files = files_of_index(&read_text(&index).ok()?).ok()?;
    files.contains_key(name).then_some(index)
}

/// The tensors of the files that an index names.
fn read_indexed(
    folder: &Path,
    index: &Path,
) -> Result<BTreeMap<String, shardloom_checkpoint::Tensor>> {
    let text = read(index)?;
    let wrong = |line: Option<usize>, rule: String| Error::WeightIndex {
        place: at_line(&index.display().to_string(), line),
        rule,
    };
    let files = files_of_index(&text).map_err(|fault| wrong(fault.line, fault.message))?;
    let mut all = BTreeMap::new();
    for (name, expected) in files {
        let file = folder.join(&name);
        if let Some(tensor) = expected.first().filter(|_| !file.is_file()) {
            let message = format!("{tensor} is in {name}, which is not in the folder");
            return Err(wrong(line_in_index(&text, tensor), message));
        }
        let tensors = read_safetensors(&file)?;
        if let Some(missing) = expected.iter().find(|tensor| !tensors.contains_key(*tensor)) {
            let message = format!("{} has no tensor {missing}", file.display());
            return Err(wrong(line_in_index(&text, missing), message));
        }
        all.extend(tensors);
    }
    Ok(all)
}

/// How a folder for Hugging Face's library is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolderForm {
    /// The kind of models as which it is written, of those that compute the same; the usual one if absent.
    pub model_type: Option<ModelType>,
    /// How weights are stored.
    pub stored: Stored,
    /// Up to how many bytes of tensors a file has, but for single tensors that are larger.
    pub file_bytes: u64,
    /// Whether files that exist are overwritten.
    pub force: bool,
}

/// What was written for Hugging Face's library.
#[derive(Clone, Debug)]
pub struct ExportedFolder {
    /// What was taken out of the checkpoint; tensors are Hugging Face's.
    pub exported: Exported,
    /// The files, the configuration first.
    pub files: Vec<PathBuf>,
    /// Files of a former model that were deleted and not written again.
    pub deleted: Vec<PathBuf>,
    /// Why there is no tokenizer, if there is none.
    pub no_tokenizer: Option<String>,
}

/// Writes the model in a checkpoint, or in the newest sound one of a folder of checkpoints, as a folder that
/// Hugging Face's library loads: configuration, weights under its names, in several files with an index where
/// they are large, and the tokenizer that the model was trained with. One tensor is in memory at a time.
///
/// # Errors
/// If there is no sound checkpoint, the library has no such model or none of the type that is asked for, a file exists and is not to be overwritten,
/// or cannot be written.
pub fn export_huggingface(
    checkpoint: &Path,
    folder: &Path,
    form: FolderForm,
) -> Result<ExportedFolder> {
    let (checkpoint, refused) = open_checkpoint(checkpoint)?;
    let model = model_of(&checkpoint)?;
    let model_type = ModelType::of(model.spec(), form.model_type)?;
    let config = write_config(model.spec(), model_type, dtype(form.stored))?;
    let there = HuggingFaceTensors::of(model.spec(), model_type)?;
    let weights = weight_files(&there, form);
    let tokenizer = text_of_tokenizer(&checkpoint);
    let at = |name: &str| folder.join(name);

    let several = weights.len() > 1;
    let mut files = vec![at(CONFIG)];
    files.extend(weights.iter().map(|(name, _)| at(name)));
    files.extend(several.then(|| at(INDEX)));
    if tokenizer.is_ok() {
        files.extend([TOKENIZER_FILE, TOKENIZER_CONFIG].map(at));
    }
    // What is left of a former model would be read with this one. Without a configuration the folder is no model, so
    // that one that is written in part is none either.
    let former = former(folder)?;
    if let Some(path) = former.iter().find(|path| !form.force || !path.is_file()) {
        return Err(Error::Exists { path: path.clone() });
    }
    let is_missing = |it: &&Path| !it.as_os_str().is_empty() && !it.exists();
    let made: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(folder).map_err(Error::io("make the folder", folder))?;
    for path in &former {
        fs::remove_file(path).map_err(Error::io("delete", path))?;
    }
    let write_all = || -> Result<(usize, Option<String>)> {
        let write = |name: &str, text: &str| write_whole(&at(name), text);
        let mut total = 0;
        let mut map = BTreeMap::new();
        for (file, tensors) in &weights {
            for (name, shape) in tensors {
                total += bytes(form.stored, shape);
                map.insert(name.as_str(), file.as_str());
            }
            let metadata = [("format".to_owned(), "pt".to_owned())].into();
            let values = |name: &str| {
                let read = |own: &str| checkpoint.read_whole(own).map_err(Error::from);
                Ok::<_, Error>(there.tensor(name, read)?.values)
            };
            write_safetensors(&at(file), form.stored, tensors.clone(), Some(metadata), values)?;
        }
        if several {
            let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
            write(INDEX, &format!("{index:#}\n"))?;
        }
        let no_tokenizer = match tokenizer {
            Ok(text) => {
                write(TOKENIZER_FILE, &text)?;
                // Whatever class the configuration would suggest (for qwen2 transformers passes this over): the file says all.
                let class = serde_json::json!({"tokenizer_class": "PreTrainedTokenizerFast"});
                write(TOKENIZER_CONFIG, &format!("{class:#}\n"))?;
                None
            }
            Err(reason) => Some(reason),
        };
        write(CONFIG, &config)?;
        Ok((map.len(), no_tokenizer))
    };
    let written = write_all();
    if written.is_err() {
        // What there was before is deleted by then, and a part of a model is of no use.
        files.iter().for_each(|path| drop(fs::remove_file(path)));
        made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    }
    let (tensors, no_tokenizer) = written?;
    let exported = Exported::of(&checkpoint, &model, tensors, refused);
    let deleted = former.into_iter().filter(|path| !files.contains(path)).collect();
    Ok(ExportedFolder { exported, files, deleted, no_tokenizer })
}

/// What a folder has of a model, its configuration first.
fn former(folder: &Path) -> Result<Vec<PathBuf>> {
    let known = [CONFIG, INDEX, WEIGHTS, TOKENIZER_FILE, TOKENIZER_CONFIG];
    let known = known.iter().chain(&BESIDE).map(|it| folder.join(it));
    let mut all: Vec<PathBuf> = known.filter(|path| path.exists()).collect();
    if folder.is_dir() {
        let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
        for entry in entries {
            let path = entry.map_err(Error::io("read", folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if is_part(name) {
                all.push(path);
            }
        }
    }
    Ok(all)
}

/// Whether a file is called as one of several with a model's weights is: `model-00001-of-00002.safetensors`.
fn is_part(name: &str) -> bool {
    let part = name.strip_prefix("model-").and_then(|name| name.strip_suffix(".safetensors"));
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    part.and_then(|part| part.split_once("-of-"))
        .is_some_and(|(index, count)| is_number(index) && is_number(count))
}

/// PyTorch's name of a format.
fn dtype(stored: Stored) -> &'static str {
    match stored {
        Stored::F32 => "float32",
        Stored::Bf16 => "bfloat16",
        Stored::F16 => "float16",
    }
}

fn bytes(stored: Stored, shape: &[usize]) -> u64 {
    shape.iter().fold(stored.bytes() as u64, |bytes, &size| bytes.saturating_mul(size as u64))
}

/// Names of tensors, with their shapes.
type Shapes = Vec<(String, Vec<usize>)>;

/// The tensors of each file, in the order of names.
fn weight_files(there: &HuggingFaceTensors<'_>, form: FolderForm) -> Vec<(String, Shapes)> {
    let mut files: Vec<Shapes> = vec![vec![]];
    let mut filled = 0;
    for (name, shape) in there.tensors() {
        let bytes = bytes(form.stored, &shape);
        if filled > 0 && filled + bytes > form.file_bytes {
            files.push(vec![]);
            filled = 0;
        }
        filled += bytes;
        files.last_mut().expect("there is one").push((name.to_owned(), shape));
    }
    let count = files.len();
    let named = |(index, tensors)| match count {
        1 => (WEIGHTS.to_owned(), tensors),
        _ => (format!("model-{:05}-of-{count:05}.safetensors", index + 1), tensors),
    };
    files.into_iter().enumerate().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_named_with_the_files_that_it_lists_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        assert_eq!(index_with(&path("part.safetensors")), None);
        let text = r#"{"weight_map": {"wte.weight": "part.safetensors"}}"#;
        fs::write(path(INDEX), text).expect("written");
        assert_eq!(index_with(&path("part.safetensors")), Some(path(INDEX)));
        assert_eq!(index_with(&path("other.safetensors")), None);
    }
}
