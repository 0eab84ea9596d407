//! `shardloom export`: trained weights as one file.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::export_weights;
use shardloom::program::quantity::digits;

use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Write the weights of a checkpoint to one safetensors file
///
/// Every parameter is whole, whatever the plan it was trained under, in 32 bits and under this program's
/// names; `shardloom train --weights` starts from it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom export run --weights weights.safetensors
  shardloom export run/step-00000500 --weights weights.safetensors --force")]
pub struct Export {
    /// A checkpoint, or a folder of checkpoints, of which the newest sound one is taken
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,

    /// The file to write
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,

    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Answer {
    weights: String,
    checkpoint: String,
    step: u64,
    model: String,
    tensors: usize,
    parameters: u64,
}

impl Export {
    /// Exports.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let file = OutputFile::new(&self.weights, self.force)?;
        let spinner = terminal.spinner("writing");
        let exported = export_weights(&self.checkpoint, file.path());
        spinner.finish_and_clear();
        let exported = exported?;
        for refused in &exported.refused {
            terminal.note(refused);
        }
        let answer = Answer {
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
