//! `shardloom validate --fit`: constants of a software stack, fitted to measurements.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::cluster::Stack;
use shardloom::program::quantity::{counted, digits, percent};
use shardloom_validate::{
    FitError, Fitted, FittedConstant, HeldOutGroups, Measurements, Row, constant_named, fit,
};

use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::table::table;
use crate::terminal::Terminal;

/// Which constants to fit, and where to write them.
#[derive(Debug, Args)]
pub struct FitOptions {
    /// Fit these constants of the software stack (of --stack, or of all rows), by their names in its TOML such
    /// as memory_time or host.kernel_seconds, to the rows that ran under it, or under no stack of its name to all
    #[arg(long, value_name = "CONSTANT", value_delimiter = ',',
          conflicts_with_all = ["rows", "residuals", "html", "log"])]
    pub fit: Vec<String>,

    /// Write the stack with its new constants, which --stack reads
    #[arg(short, long, value_name = "FILE", requires = "fit")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Answer<'a> {
    stack: &'a str,
    #[serde(flatten)]
    fitted: &'a Fitted,
}

impl FitOptions {
    /// Fits to the rows of these files.
    pub fn run(
        &self,
        files: &[Measurements],
        stack: Option<&Stack>,
        force: bool,
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let output = OutputFile::optional(self.output.as_ref(), force)?;
        let rows: Vec<&Row> = files.iter().flat_map(|file| &file.rows).collect();
        let (stack, rows) = chosen(stack, rows)?;
        let refuse = |error: FitError| Failure::usage("--fit", format!("--fit: {error}"));
        let mut constants: Vec<(String, f64)> = vec![];
        for name in &self.fit {
            let constant = constant_named(&stack, name.trim()).map_err(refuse)?;
            if constants.iter().any(|(known, _)| *known == constant.0) {
                return Err(Failure::usage(
                    "--fit",
                    format!("--fit: {} is there twice", constant.0),
                ));
            }
            constants.push(constant);
        }
        let spinner = terminal.spinner("simulating");
        let fitted = fit(&rows, &stack, &constants, &|simulations| {
            spinner.set_message(format!(
                "{} of {} rows",
                counted(simulations, "simulation"),
                rows.len()
            ));
        });
        spinner.finish_and_clear();
        let fitted = fitted.map_err(refuse)?;
        if let Some(file) = &output {
            let text = described(&fitted).to_toml();
            let text = text.map_err(|error| Failure::file(file.path(), error.to_string()))?;
            file.write(text)?;
        }
        match terminal.json() {
            true => terminal.object(&Answer { stack: &stack.name, fitted: &fitted }),
            false => print(&stack, &fitted, terminal),
        }
    }
}

/// The stack, which is that of all rows if none was asked for, and the rows that ran under it; all rows, if
/// none did.
fn chosen<'r>(stack: Option<&Stack>, rows: Vec<&'r Row>) -> Result<(Stack, Vec<&'r Row>), Failure> {
    let of = |row: &Row| row.case.as_ref().ok().map(|case| case.stack);
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| of(row)).collect();
    let stack = match (stack, &names.iter().copied().collect::<Vec<&str>>()[..]) {
        (Some(stack), _) => stack.clone(),
        (None, [name]) => {
            Stack::parse(name).map_err(|error| Failure::usage("--stack", error.to_string()))?
        }
        (None, []) => return Err(Failure::usage("FILE", "--fit: no row is to be predicted")),
        (None, _) => {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            let message =
                format!("--fit: the rows ran under {names}: say with --stack which of them to fit");
            return Err(Failure::usage("--stack", message));
        }
    };
    let own: Vec<&Row> =
        rows.iter().copied().filter(|row| of(row) == Some(stack.name.as_str())).collect();
    Ok((stack, if own.is_empty() { rows } else { own }))
}

/// The new stack, which says what it is fitted to. What its file said of residuals was of the old one.
fn described(fitted: &Fitted) -> Stack {
    let moved = fitted.constants.iter().filter(|it| it.after != it.before);
    let values: Vec<String> = moved.map(|it| format!("{} {}", it.name, value(it.after))).collect();
    let rows = counted(fitted.rows, "step time");
    let error = percent(fitted.error_after);
    let mut stack = fitted.stack.clone();
    stack.residuals.clear();
    if !values.is_empty() {
        let text = format!(
            "Fitted by shardloom validate --fit to {rows}, with a mean error of {error}: {}.\n",
            values.join(", ")
        );
        stack.source = format!("{}\n\n{text}", stack.source.trim_end());
        stack.calibrated_on = Some(format!("{rows}, by shardloom validate --fit"));
    }
    stack
}

fn print(stack: &Stack, fitted: &Fitted, terminal: Terminal) -> Result<(), Failure> {
    let (rows, range) = (fitted.rows, fitted.range);
    terminal.line(format_args!(
        "{}: fitted to {} rows, each constant from its value over {range:.0} to {range:.0} times it; {}",
        stack.name,
        rows,
        counted(fitted.simulations, "simulation"),
    ))?;
    let row = |it: &FittedConstant| {
        let note = match (it.rows, it.at_end_of_range) {
            (0, _) => "undetermined, left alone",
            (_, true) => "at the end of the range",
            (_, false) => "",
        };
        vec![it.name.clone(), value(it.before), value(it.after), it.rows.to_string(), note.into()]
    };
    let constants: Vec<Vec<String>> = fitted.constants.iter().map(row).collect();
    terminal.text(table(&["constant", "before", "after", "rows that it moves", ""], &constants))?;
    let [before, after] = [fitted.error_before, fitted.error_after].map(percent);
    terminal.line(format_args!("\nmean error: {before} before, {after} after"))?;
    if fitted.held_out.is_empty() {
        let why = match fitted.constants.iter().all(|it| it.rows == 0) {
            true => "nothing was fitted",
            false => "all rows are of one source and one model",
        };
        terminal.line(format_args!("no rows were held out, as {why}"))?;
    }
    for it in &fitted.held_out {
        terminal.text(held_out(it))?;
    }
    Ok(())
}

fn held_out(it: &HeldOutGroups) -> String {
    let row = |name: &str, rows: usize, before: f64, after: f64| {
        vec![name.to_owned(), rows.to_string(), percent(before), percent(after)]
    };
    let groups = it.groups.iter();
    let mut rows: Vec<Vec<String>> =
        groups.map(|it| row(&it.name, it.rows, it.error_before, it.error_after)).collect();
    let all = it.groups.iter().map(|it| it.rows).sum();
    rows.push(row("all", all, it.error_before, it.error_after));
    let heading = format!("left out: a {}", it.by);
    let columns = [heading.as_str(), "rows", "error before", "fitted without it"];
    format!("\n{}", table(&columns, &rows))
}

/// A constant with four significant digits; small ones with a power of ten.
fn value(number: f64) -> String {
    match number.abs() {
        small if small > 0.0 && small < 1e-2 => format!("{number:.3e}"),
        large if large >= 1e4 => digits(number),
        _ => format!("{number:.4}"),
    }
}
