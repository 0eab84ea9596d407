//! `shardloom manual`: manual pages.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;
use serde::Serialize;

use crate::failure::Failure;
use crate::output_folder::write_folder;
use crate::terminal::Terminal;

/// Write manual pages for `man`: one for the program and one for each command
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom manual -o ~/.local/share/man/man1
  man shardloom-plan")]
pub struct Manual {
    /// The folder for them; it is made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Answer {
    pages: Vec<String>,
}

impl Manual {
    /// Writes the pages of `program`.
    pub fn run(&self, mut program: Command, terminal: Terminal) -> Result<(), Failure> {
        program = program.disable_help_subcommand(true);
        program.build();
        let folder = &self.output;
        let name = program.get_name().to_owned();
        let mut pages = vec![(format!("{name}.1"), program.clone())];
        for command in program.get_subcommands() {
            let whole = format!("{name}-{}", command.get_name());
            pages.push((format!("{whole}.1"), command.clone().name(whole)));
        }
        let mut files = vec![];
        for (name, command) in pages {
            let mut text = vec![];
            // The names of values are in it, which clap_mangen leaves out.
            let usage = command.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage:").trim_start().to_owned();
            Man::new(command.override_usage(usage)).render(&mut text)?;
            files.push((name, text));
        }
        let pages = write_folder(folder, files, self.force)?;
        if terminal.json() {
            let pages = pages.iter().map(|path| path.display().to_string()).collect();
            return terminal.object(&Answer { pages });
        }
        terminal.line(format_args!("{} pages written to {}", pages.len(), folder.display()))
    }
}
