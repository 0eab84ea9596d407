//! `shardloom completions`: what a shell completes.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Args, Command};
use clap_complete::Shell;
use serde::Serialize;
use shardloom::Model;
use shardloom::cluster::{Profile, Stack};
use shardloom::exchange::Project;
use shardloom::methods;
use shardloom::plan::ScheduleKind;

use super::schedule_kind;
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
        program = program.mut_subcommands(|command| command.mut_args(with_names));
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut program, "shardloom", &mut script);
        let script = String::from_utf8_lossy(&script);
        match terminal.json() {
            true => terminal.object(&Answer { script: &script }),
            false => terminal.line(script.trim_end()),
        }
    }
}

/// An argument with the names that it may have, where there is a list of them; files and what is put together from
/// names are typed.
fn with_names(argument: Arg) -> Arg {
    let is_known = !argument.get_possible_values().is_empty();
    let what = argument.get_value_names().and_then(<[_]>::first).map(|name| name.to_string());
    let names: Vec<&str> = match what.as_deref() {
        _ if is_known => return argument,
        Some("KIND") => schedule_kind::names().map(|named| named.name).collect(),
        Some("SCHEDULE") => ScheduleKind::SEARCHED.iter().map(|kind| kind.name()).collect(),
        Some("METHOD") => methods::all().iter().map(|method| method.name).collect(),
        Some("PROJECT") => Project::ALL.iter().map(|project| project.name()).collect(),
        Some("STACK") => Stack::preset_names().collect(),
        Some("CLUSTER") => ["local"].into_iter().chain(Profile::preset_names()).collect(),
        Some("MODEL" | "PLAN|MODEL") => Model::preset_names().collect(),
        _ => return argument,
    };
    argument.value_parser(PossibleValuesParser::new(names)).hide_possible_values(true)
}
