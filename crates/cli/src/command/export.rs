//! `shardloom export`: a plan as another project's configuration, or trained weights as one file.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use serde::Serialize;
use shardloom::exchange::Project;
use shardloom::program::quantity::digits;
use shardloom::{export_plan, export_weights};

use super::project;
use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Write a plan as another project takes it, or the weights of a checkpoint to one safetensors file
///
/// With --to, a plan becomes a configuration to train under, complete but for data, learning rate and
/// steps: a script for Megatron-LM, JSON for DeepSpeed, Python with a table of actions for torchtitan, YAML
/// for nanotron and Accelerate. What the project cannot say is listed; what would make it another plan is
/// refused.
///
/// With --weights, every parameter is whole, whatever the plan it was trained under, in 32 bits and under
/// this program's names; `shardloom train --weights` starts from it.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("form").required(true).args(["to", "weights"]),
    after_help = "Examples:
  shardloom export plan.toml --to megatron -o megatron
  shardloom export plan.toml --to torchtitan -o titan --force
  shardloom export run --weights weights.safetensors
  shardloom export run/step-00000500 --weights weights.safetensors --force"
)]
pub struct Export {
    /// A plan file; or a checkpoint, or a folder of checkpoints, of which the newest sound one is taken
    #[arg(value_name = "PLAN|CHECKPOINT")]
    what: PathBuf,

    /// Whose configuration to write: megatron, deepspeed, torchtitan, nanotron or accelerate
    #[arg(long, value_name = "PROJECT", value_parser = project, requires = "output")]
    to: Option<Project>,

    /// The folder for the configuration; it is made if it does not exist
    #[arg(short, long, value_name = "DIR", conflicts_with = "weights")]
    output: Option<PathBuf>,

    /// The file for the weights
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,

    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct WeightsAnswer {
    weights: String,
    checkpoint: String,
    step: u64,
    model: String,
    tensors: usize,
    parameters: u64,
}

#[derive(Serialize)]
struct PlanAnswer {
    project: &'static str,
    version: &'static str,
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
        match (self.to, &self.output, &self.weights) {
            (Some(project), Some(folder), _) => self.plan(project, folder, terminal),
            (_, _, Some(weights)) => self.weights(weights, terminal),
            _ => Err(Failure::usage("--to", "give --to with -o, or --weights")),
        }
    }

    fn plan(&self, project: Project, folder: &Path, terminal: Terminal) -> Result<(), Failure> {
        let exported = export_plan(&self.what, project)?;
        if let Err(error) = fs::create_dir_all(folder) {
            let message = format!("cannot make the folder {}: {error}", folder.display());
            return Err(Failure::file(folder, message));
        }
        let file = |name: &str| OutputFile::new(&folder.join(name), self.force);
        let files = exported.files.iter().map(|it| Ok((file(it.name)?, &it.text)));
        let files = files.collect::<Result<Vec<_>, Failure>>()?;
        for (file, text) in &files {
            file.write(text)?;
        }
        let answer = PlanAnswer {
            project: project.name(),
            version: project.version(),
            files: files.iter().map(|(file, _)| file.path().display().to_string()).collect(),
            unsaid: exported
                .unsaid
                .into_iter()
                .map(|it| UnsaidAnswer { key: it.key, value: it.value, reason: it.reason })
                .collect(),
        };
        if terminal.json() {
            return terminal.object(&answer);
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

    fn weights(&self, weights: &Path, terminal: Terminal) -> Result<(), Failure> {
        let file = OutputFile::new(weights, self.force)?;
        let spinner = terminal.spinner("writing");
        let exported = export_weights(&self.what, file.path());
        spinner.finish_and_clear();
        let exported = exported?;
        for refused in &exported.refused {
            terminal.note(refused);
        }
        let answer = WeightsAnswer {
            weights: file.path().display().to_string(),
            checkpoint: exported.checkpoint.display().to_string(),
            step: exported.step,
            model: exported.model,
            tensors: exported.tensors,
            parameters: exported.parameters,
        };
        if terminal.json() {
            return terminal.object(&answer);
        }
        terminal.line(format_args!(
            "{} parameters in {} tensors, of {} after {} steps, written to {}",
            digits(answer.parameters as f64),
            answer.tensors,
            answer.checkpoint,
            answer.step,
            answer.weights
        ))
    }
}
