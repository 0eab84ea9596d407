//! `shardloom completions`: what a shell completes.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Args, Command, ValueHint};
use clap_complete::Shell;
use serde::Serialize;
use shardloom::cluster::{Profile, Stack};
use shardloom::collectives::Algorithm;
use shardloom::exchange::Project;
use shardloom::methods;
use shardloom::plan::{
    AttentionKind, Number, Push, Ranges, Recompute, ScheduleKind, SendOrder, Weights,
};
use shardloom::{Model, optimizer_names};

use super::order::version_rules;
use super::{schedule_kind, searched_recomputes};
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Print a script with which a shell completes this program's commands and options
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom completions bash > ~/.local/share/bash-completion/completions/shardloom
  shardloom completions zsh > ~/.zfunc/_shardloom
  shardloom completions fish > ~/.config/fish/completions/shardloom.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Serialize)]
struct Answer<'a> {
    script: &'a str,
}

impl Completions {
    /// Prints the script for `program`.
    pub fn run(&self, mut program: Command, terminal: Terminal) -> Result<(), Failure> {
        program = program.mut_subcommands(|command| {
            let name = command.get_name().to_owned();
            command.mut_args(|argument| with_names(&name, argument))
        });
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut program, "shardloom", &mut script);
        let script = String::from_utf8_lossy(&script);
        match terminal.json() {
            true => terminal.object(&Answer { script: &script }),
            false => terminal.line(script.trim_end()),
        }
    }
}

/// Values of arguments that are files, folders, or may be.
const FILES: [&str; 11] = [
    "FILE",
    "DIR",
    "FILE|DIR",
    "PATH",
    "FOLDER",
    "CHECKPOINT",
    "PLAN",
    "PLAN|CHECKPOINT",
    "TOKENIZER",
    "COMMAND",
    "ARGUMENTS",
];

/// An argument of `command` with the names that it may have, where there is a list of them. Where there is none,
/// only what may be a file is completed as one: numbers and what is put together from names are typed.
fn with_names(command: &str, argument: Arg) -> Arg {
    let is_known = !argument.get_possible_values().is_empty();
    let what = argument.get_value_names().and_then(<[_]>::first).map(|name| name.to_string());
    let of_option = names_of_option(command, argument.get_id().as_str());
    let names: Vec<&str> = match what.as_deref() {
        None => return argument,
        _ if is_known => return argument,
        _ if !of_option.is_empty() => of_option,
        Some("KIND") => schedule_kind::names().map(|named| named.name).collect(),
        Some("SCHEDULE") => ScheduleKind::SEARCHED.iter().map(|kind| kind.name()).collect(),
        Some("METHOD") => methods::all().iter().map(|method| method.name).collect(),
        Some("PROJECT") => Project::ALL.iter().map(|project| project.name()).collect(),
        Some("STACK") => Stack::preset_names().collect(),
        Some("CLUSTER") => ["local"].into_iter().chain(Profile::preset_names()).collect(),
        Some("MODEL" | "PLAN|MODEL") => Model::preset_names().collect(),
        Some(what) if FILES.contains(&what) => return argument,
        Some(_) => return argument.value_hint(ValueHint::Other),
    };
    argument.value_parser(PossibleValuesParser::new(names)).hide_possible_values(true)
}

/// What an option may be, by its name; of what has a number within, only the names without one.
fn names_of_option(command: &str, option: &str) -> Vec<&'static str> {
    match option {
        "recompute" if command == "plan" => searched_recomputes().map(Recompute::name).collect(),
        "recompute" => Recompute::ALL.map(Recompute::name).to_vec(),
        "attention" => AttentionKind::ALL.map(AttentionKind::name).to_vec(),
        "precision" => Number::ALL.map(Number::name).to_vec(),
        "optimizer" => optimizer_names().collect(),
        "zero" => vec!["0", "1", "2", "3"],
        "versions" => version_rules().map(Weights::name).to_vec(),
        "algorithm" => Algorithm::FLAT.map(Algorithm::name).to_vec(),
        "push" => Push::ALL.map(Push::name).to_vec(),
        "summation_order" => SendOrder::ALL.map(SendOrder::name).to_vec(),
        "summation_ranges" => Ranges::ALL.map(Ranges::name).to_vec(),
        _ => vec![],
    }
}
