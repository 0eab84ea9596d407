//! `shardloom completions`: what a shell completes.

use clap::{Args, Command};
use clap_complete::Shell;
use serde::Serialize;

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
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut program, "shardloom", &mut script);
        let script = String::from_utf8_lossy(&script);
        match terminal.json() {
            true => terminal.object(&Answer { script: &script }),
            false => terminal.line(script.trim_end()),
        }
    }
}
