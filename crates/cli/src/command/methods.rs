//! `shardloom methods`: published systems.

use clap::Args;
use serde::Serialize;
use shardloom::methods::{Method, all};

use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

/// List the published systems whose plans can be asked for by name
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom methods
  shardloom methods --json
  shardloom plan llama-3-8b --cluster h100-80g:2x8 --global-batch 256 --method zb-v")]
pub struct Methods {}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    family: &'static str,
    paper: &'static str,
    about: &'static str,
    plan: bool,
    simulate: bool,
    train: bool,
}

impl Methods {
    /// Lists them.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        if terminal.json() {
            return terminal.object(&all().iter().map(entry).collect::<Vec<_>>());
        }
        let row = |it: &Method| vec![it.name.to_owned(), it.family.name().to_owned()];
        let rows: Vec<Vec<String>> = all().iter().map(row).collect();
        terminal.text(table(&["method", "family"], &rows))?;
        for method in all() {
            terminal
                .line(format_args!("\n{}: {}\n  {}", method.name, method.about, method.paper))?;
        }
        Ok(())
    }
}

fn entry(method: &Method) -> Entry {
    Entry {
        name: method.name,
        family: method.family.name(),
        paper: method.paper,
        about: method.about,
        // A method is one by choosing plans, and every plan can be simulated and trained with.
        plan: true,
        simulate: true,
        train: true,
    }
}
