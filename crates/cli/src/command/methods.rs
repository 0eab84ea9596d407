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
        let word = |can: bool| if can { "yes" } else { "no" }.to_owned();
        let row = |it: Entry| {
            let can = [it.plan, it.simulate, it.train].map(word);
            [vec![it.name.to_owned(), it.family.to_owned()], can.into()].concat()
        };
        let rows: Vec<Vec<String>> = all().iter().map(entry).map(row).collect();
        terminal.text(table(&["method", "family", "plan", "simulate", "train"], &rows))?;
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
        plan: method.supports.plan,
        simulate: method.supports.simulate,
        train: method.supports.train,
    }
}
