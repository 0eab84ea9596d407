//! `shardloom export`: a plan as another project's configuration, or trained weights as one file or as a folder
//! that Hugging Face's library loads.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use serde::Serialize;
use shardloom::checkpoint::Stored;
use shardloom::exchange::Project;
use shardloom::program::quantity::digits;
use shardloom::sim::{Fit, MemoryFit};
use shardloom::{
    Error, Exported, FolderForm, ModelType, export_huggingface, export_plan, export_weights,
    memory_of_plan,
};

use super::{model_type, page_facts, project};
use crate::failure::Failure;
use crate::number::decimal;
use crate::output_file::OutputFile;
use crate::output_folder::write_folder;
use crate::terminal::Terminal;

/// Write a plan as another project takes it, or the weights of a checkpoint for other tools
///
/// With --to, a plan becomes a configuration to train under, complete but for data, learning rate and
/// steps: a script for Megatron-LM, JSON for DeepSpeed, Python with a table of actions for torchtitan, YAML
/// for nanotron and Accelerate. What the project cannot say is listed; what would make it another plan is
/// refused.
///
/// With --weights, every parameter is whole, whatever the plan it was trained under, in 32 bits and under
/// this program's names; `shardloom train --weights` starts from it.
///
/// With --huggingface, a folder has what Hugging Face's library loads as a model: its configuration, its
/// weights under its names, in several files with an index where they are large, and the tokenizer that it was
/// trained with. `shardloom train DIR` goes on from it, too.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("form").required(true).args(["to", "weights", "huggingface"]),
    after_help = "Examples:
  shardloom export plan.toml --to megatron -o megatron
  shardloom export plan.toml --to torchtitan -o titan --force
  shardloom export run --weights weights.safetensors
  shardloom export run/step-00000500 --weights weights.safetensors --force
  shardloom export run --huggingface model --dtype bf16
  shardloom export run --huggingface model --model-type phi3"
)]
pub struct Export {
    /// A plan file; or a checkpoint, or a folder of checkpoints, of which the newest sound one is taken
    #[arg(value_name = "PLAN|CHECKPOINT")]
    what: PathBuf,

    /// Whose configuration to write: megatron, deepspeed, torchtitan, nanotron or accelerate
    #[arg(long, value_name = "PROJECT", value_parser = project, requires = "output")]
    to: Option<Project>,

    /// The folder for the configuration; it is made if it does not exist
    #[arg(short, long, value_name = "DIR", conflicts_with_all = ["weights", "huggingface"])]
    output: Option<PathBuf>,

    /// The file for the weights
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,

    /// The folder for a model as Hugging Face's library loads it; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    huggingface: Option<PathBuf>,

    /// The kind of models as which it is written, such as mistral or phi3 for a Llama that computes the same
    #[arg(long, value_name = "TYPE", value_parser = model_type, conflicts_with_all = ["to", "weights"])]
    model_type: Option<ModelType>,

    /// How its weights are stored
    #[arg(long, value_enum, default_value_t = Dtype::F32, conflicts_with_all = ["to", "weights"])]
    dtype: Dtype,

    /// The largest file of its weights, in GB (10^9 bytes)
    #[arg(long, value_name = "GB", default_value_t = 5.0, value_parser = gigabytes, conflicts_with_all = ["to", "weights"])]
    shard_gigabytes: f64,

    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

/// How numbers are stored.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Dtype {
    /// 32 bits, as they are trained
    F32,
    /// bfloat16, rounded to nearest
    Bf16,
    /// 16-bit floating point, rounded to nearest
    F16,
}

impl From<Dtype> for Stored {
    fn from(dtype: Dtype) -> Stored {
        match dtype {
            Dtype::F32 => Stored::F32,
            Dtype::Bf16 => Stored::Bf16,
            Dtype::F16 => Stored::F16,
        }
    }
}

/// A size of files that makes sense.
fn gigabytes(text: &str) -> Result<f64, String> {
    let number = decimal(text)?;
    let sound = number.is_finite() && number > 0.0 && number <= 1e9;
    if sound { Ok(number) } else { Err("a number above 0 and up to 1e9 is needed".into()) }
}

/// What was taken out of a checkpoint.
#[derive(Serialize)]
struct Taken {
    checkpoint: String,
    step: u64,
    model: String,
    tensors: usize,
    parameters: u64,
}

impl Taken {
    /// Says which checkpoints were passed over.
    fn of(exported: Exported, terminal: Terminal) -> Taken {
        for refused in &exported.refused {
            terminal.note(refused);
        }
        Taken {
            checkpoint: exported.checkpoint.display().to_string(),
            step: exported.step,
            model: exported.model,
            tensors: exported.tensors,
            parameters: exported.parameters,
        }
    }

    fn say(&self, place: &Path, terminal: Terminal) -> Result<(), Failure> {
        terminal.line(format_args!(
            "{} parameters in {} tensors, of {} after {} steps, written to {}",
            digits(self.parameters as f64),
            self.tensors,
            self.checkpoint,
            self.step,
            place.display()
        ))
    }
}

#[derive(Serialize)]
struct FolderAnswer {
    files: Vec<String>,
    /// What --force has deleted of a former model and not written again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deleted: Vec<String>,
    #[serde(flatten)]
    taken: Taken,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_tokenizer: Option<String>,
}

#[derive(Serialize)]
struct WeightsAnswer {
    weights: String,
    #[serde(flatten)]
    taken: Taken,
}

#[derive(Serialize)]
struct PlanAnswer {
    project: &'static str,
    version: &'static str,
    /// Whether the plan fits in memory; absent where the machines' memory is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    fit: Option<Fit>,
    files: Vec<String>,
    unsaid: Vec<UnsaidAnswer>,
}

#[derive(Serialize)]
struct UnsaidAnswer {
    key: String,
    value: String,
    reason: String,
}

impl Export {
    /// Exports.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        match (self.to, &self.output, &self.weights, &self.huggingface) {
            (Some(project), Some(folder), _, _) => self.plan(project, folder, terminal),
            (_, _, Some(weights), _) => self.weights(weights, terminal),
            (_, _, _, Some(folder)) => self.folder(folder, terminal),
            _ => Err(Failure::usage("--to", "give --to with -o, --weights or --huggingface")),
        }
    }

    fn plan(&self, project: Project, folder: &Path, terminal: Terminal) -> Result<(), Failure> {
        let exported = export_plan(&self.what, project)?;
        let spinner = terminal.spinner("simulating");
        let memory = memory_of_plan(&self.what);
        spinner.finish_and_clear();
        let memory = memory.unwrap_or_else(|error| {
            terminal.note(format_args!("whether the plan fits in memory is not known: {error}"));
            vec![]
        });
        let files = exported.files.into_iter().map(|it| (it.name.to_owned(), it.text.into()));
        let files = write_folder(folder, files, self.force)?;
        let answer = PlanAnswer {
            project: project.name(),
            version: project.version(),
            fit: memory.iter().map(MemoryFit::fit).max(),
            files: files.iter().map(|path| path.display().to_string()).collect(),
            unsaid: exported
                .unsaid
                .into_iter()
                .map(|it| UnsaidAnswer { key: it.key, value: it.value, reason: it.reason })
                .collect(),
        };
        if terminal.json() {
            return terminal.object(&answer);
        }
        if let Some(excess) = page_facts::excess(&memory) {
            terminal.line(excess)?;
        }
        terminal.line(format_args!("for {}: {}", answer.version, answer.files.join(", ")))?;
        if !answer.unsaid.is_empty() {
            terminal.line("what the plan says and this does not:")?;
        }
        for it in &answer.unsaid {
            terminal.line(format_args!("  {} = {}: {}", it.key, it.value, it.reason))?;
        }
        Ok(())
    }

    fn folder(&self, folder: &Path, terminal: Terminal) -> Result<(), Failure> {
        let form = FolderForm {
            model_type: self.model_type,
            stored: self.dtype.into(),
            file_bytes: (self.shard_gigabytes * 1e9) as u64,
            force: self.force,
        };
        let spinner = terminal.spinner("writing");
        let exported = export_huggingface(&self.what, folder, form);
        spinner.finish_and_clear();
        let exported = exported.map_err(|error| match error {
            Error::Exists { path } => {
                let at = path.display();
                let message =
                    format!("{at} exists; name another folder, or overwrite with --force");
                Failure::file(&path, message)
            }
            other => other.into(),
        })?;
        let answer = FolderAnswer {
            files: exported.files.iter().map(|path| path.display().to_string()).collect(),
            deleted: exported.deleted.iter().map(|path| path.display().to_string()).collect(),
            taken: Taken::of(exported.exported, terminal),
            no_tokenizer: exported.no_tokenizer,
        };
        if terminal.json() {
            return terminal.object(&answer);
        }
        answer.taken.say(folder, terminal)?;
        if !answer.deleted.is_empty() {
            let deleted = answer.deleted.join(", ");
            terminal.line(format_args!("deleted, of a former model: {deleted}"))?;
        }
        match &answer.no_tokenizer {
            Some(reason) => terminal.line(format_args!("no tokenizer: {reason}")),
            None => Ok(()),
        }
    }

    fn weights(&self, weights: &Path, terminal: Terminal) -> Result<(), Failure> {
        let file = OutputFile::new(weights, self.force)?;
        let spinner = terminal.spinner("writing");
        let exported = export_weights(&self.what, file.path());
        spinner.finish_and_clear();
        let answer = WeightsAnswer {
            weights: file.path().display().to_string(),
            taken: Taken::of(exported?, terminal),
        };
        match terminal.json() {
            true => terminal.object(&answer),
            false => answer.taken.say(file.path(), terminal),
        }
    }
}
