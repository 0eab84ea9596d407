//! `shardloom import`: another project's configuration as a plan.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shardloom::exchange::{Given, Project, project_of};
use shardloom::{Defaults, Model, import_plan, read_text, stack_of};

use super::{ProfileFile, load_cluster, load_model, project};
use crate::failure::Failure;
use crate::number::{size, whole};
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Make a plan of what another project trains under
///
/// Read are Megatron-LM's arguments (a script, or given after --), DeepSpeed's JSON, torchtitan's Python, as
/// `export` writes it, its TOML, or the JSON that it writes with --debug.save_config_file, and the YAML of
/// nanotron and Accelerate. `simulate`, `explain` and `train` take the plan. What the file leaves to the
/// training script is said by options.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom import train.sh --cluster h100-80g:8x8 -o plan.toml
  shardloom import --cluster h100-80g:8 -o plan.toml -- --num-layers 24 --hidden-size 1024 ...
  shardloom import ds.json --model llama-3-8b --cluster a100-80g:2x8 -o plan.toml
  shardloom import titan.toml schedule.csv --cluster h100-80g:8 -o plan.toml
  shardloom import accelerate.yaml --model gpt-2 --global-batch 64 --cluster h100-80g:8 -o plan.toml")]
pub struct Import {
    /// A configuration, and after it the table of actions that it names, if it does
    #[arg(value_name = "FILE", num_args = 0..=2)]
    files: Vec<PathBuf>,

    /// Megatron-LM's arguments, instead of a file
    #[arg(last = true, value_name = "ARGUMENTS", conflicts_with = "files")]
    arguments: Vec<String>,

    /// Whose configuration it is, where the end of the file's name does not tell: megatron, deepspeed,
    /// torchtitan, nanotron or accelerate
    #[arg(long, value_name = "PROJECT", value_parser = project)]
    from: Option<Project>,

    /// The machines
    #[arg(long, value_name = "CLUSTER")]
    cluster: String,

    /// The model, where the configuration does not describe it
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,

    /// Sequence length of a MODEL [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = size, requires = "model")]
    seq: Option<usize>,

    /// Samples of a step, where the training script says that
    #[arg(long, value_name = "SAMPLES", value_parser = whole::<usize>)]
    global_batch: Option<usize>,

    /// Micro-batches of a step, where the training script says that
    #[arg(long, value_name = "NUMBER", value_parser = whole::<usize>)]
    microbatches: Option<usize>,

    /// The file for the plan [default: print it]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    profile: ProfileFile,
}

#[derive(Serialize)]
struct Answer {
    from: &'static str,
    model: String,
    cluster: String,
    notes: Vec<String>,
    plan: Option<String>,
    output: Option<String>,
}

impl Import {
    /// Imports.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let output = OutputFile::optional(self.output.as_ref(), self.force)?;
        let (place, text) = match &self.files[..] {
            [] if self.arguments.is_empty() => {
                let message = "name a file, or give Megatron-LM's arguments after --";
                return Err(Failure::usage("FILE", message));
            }
            // Quoted, as a script has them.
            [] => ("arguments".into(), quoted(&self.arguments)),
            [file, ..] => (file.display().to_string(), read(file)?),
        };
        let table = match self.files.get(1) {
            Some(file) => Some((file.display().to_string(), read(file)?)),
            None => None,
        };
        let project = match self.from {
            Some(project) => project,
            None => project_of(&place, &text).map_err(shardloom::Error::from)?,
        };
        let model = match &self.model {
            // What these projects configure does not say how long samples are.
            Some(text) if matches!(project, Project::DeepSpeed | Project::Accelerate) => {
                Some(load_model(text, self.seq, terminal)?)
            }
            Some(text) => {
                let defaults = Defaults { sequence_length: self.seq, vocabulary: None };
                Some(Model::load_with(text, defaults)?)
            }
            None => None,
        };
        let cluster = load_cluster(&self.cluster, &self.profile.local(), terminal)?;
        let given = Given {
            model: model.as_ref().map(Model::spec),
            cluster: &self.cluster,
            devices: cluster.device_count() as usize,
            global_batch: self.global_batch,
            microbatches: self.microbatches,
            table: table.as_ref().map(|(place, text)| (place.as_str(), text.as_str())),
        };
        let mut imported = import_plan(project, &text, &place, &given)?;
        if let Some(stack) = stack_of(project) {
            imported.notes.push(format!(
                "a plan does not say what software runs it: give simulate and explain --stack {stack} for steps as {project} \
                 takes them"
            ));
        }
        let toml = imported.plan.to_toml();
        if let Some(file) = &output {
            file.write(&toml)?;
        }
        let answer = Answer {
            from: project.name(),
            model: imported.plan.model,
            cluster: imported.plan.cluster,
            notes: imported.notes,
            plan: output.is_none().then(|| toml.clone()),
            output: output.as_ref().map(|file| file.path().display().to_string()),
        };
        if terminal.json() {
            return terminal.object(&answer);
        }
        for note in &answer.notes {
            terminal.note(note);
        }
        match &answer.output {
            Some(file) => {
                terminal.line(format_args!("{project}'s configuration {place} as a plan: {file}"))
            }
            None => terminal.text(&toml),
        }
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    read_text(file)
        .map_err(|error| Failure::file(file, format!("cannot read {}: {error}", file.display())))
}

/// Arguments as words of a script.
fn quoted(arguments: &[String]) -> String {
    let word = |argument: &String| format!("'{}'", argument.replace('\'', "'\\''"));
    arguments.iter().map(word).collect::<Vec<_>>().join(" ")
}
