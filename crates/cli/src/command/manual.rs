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
            files.push((name, with_examples(&String::from_utf8_lossy(&text)).into_bytes()));
        }
        let pages = write_folder(folder, files, self.force)?;
        if terminal.json() {
            let pages = pages.iter().map(|path| path.display().to_string()).collect();
            return terminal.object(&Answer { pages });
        }
        terminal.line(format_args!("{} pages written to {}", pages.len(), folder.display()))
    }
}

/// A page whose further text, which clap_mangen calls extra, is examples that stand as they are, neither filled up nor
/// with words divided, so that they can be copied, and notes.
fn with_examples(page: &str) -> String {
    let Some((before, extra)) = page.split_once(".SH EXTRA\nExamples:\n") else {
        return page.to_owned();
    };
    let (examples, notes) = extra.split_once("\n\n").unwrap_or((extra, ""));
    let notes = match notes {
        "" => String::new(),
        notes => format!(".SH NOTES\n{notes}"),
    };
    format!("{before}.SH EXAMPLES\n.nf\n.nh\n{}\n.hy\n.fi\n{notes}", examples.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stand_as_they_are_and_what_follows_them_is_notes() {
        let page =
            ".SH NAME\nplan\n.SH EXTRA\nExamples:\n  plan a \\\\\n      b\n\nMODEL is\na model.";
        let found = with_examples(page);
        let examples = ".SH EXAMPLES\n.nf\n.nh\n  plan a \\\\\n      b\n.hy\n.fi\n";
        assert_eq!(found, format!(".SH NAME\nplan\n{examples}.SH NOTES\nMODEL is\na model."));
        let without = ".SH NAME\nplan\n.SH EXTRA\nFurther text.";
        assert_eq!(with_examples(without), without);
        let alone = ".SH EXTRA\nExamples:\n  demo\n";
        assert_eq!(with_examples(alone), ".SH EXAMPLES\n.nf\n.nh\n  demo\n.hy\n.fi\n");
    }
}
