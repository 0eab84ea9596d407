//! `shardloom validate`: predictions beside published measurements.

mod figures;
mod fit;
mod log;
mod page;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::cluster::Stack;
use shardloom_validate::{
    Coverage, FileReport, GroupResiduals, Measurements, Outcome, ValidateError, predict, read,
    residuals,
};

use super::written;
use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::terminal::{NOTED_EVERY, Reminder, Terminal};
use figures::{coverage, group_toml, print};
use fit::FitOptions;
use log::LogOptions;

/// Predict published measurements of training, or a run of one's own, and say how far off the predictions are
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom validate crates/validate/data/a100_multinode.csv
  shardloom validate measurements.csv --only llama --rows
  shardloom validate crates/validate/data/*.csv --json
  shardloom validate crates/validate/data/*.csv --html errors.html
  shardloom validate crates/validate/data/*.csv --stack mine.toml --residuals
  shardloom validate measurements.csv --fit memory_time,host.kernel_seconds -o mine.toml
  shardloom validate --log train.log --plan plan.toml --cluster h100-80g:8x8

An error is predicted over measured, less 1. A regret is what the plan predicted fastest takes over the \
least that was measured, less 1, among rows of equal hardware, devices, model, sequence length and global \
batch. An 80% interval is between the quantiles of residuals in the stack's file. docs/accuracy.md says what files hold, and what they came to.")]
pub struct Validate {
    /// Files of measurements, whose columns say what they are
    #[arg(required_unless_present = "log", conflicts_with = "log", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Predict only rows whose source, hardware or model, or operator or format, has this text in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Predict under this software stack, one of the known or a TOML file [default: the one that each row
    /// ran under, or that runs of the log's framework do]
    #[arg(long, value_name = "STACK")]
    stack: Option<String>,

    /// Say for every row what was measured and what is predicted
    #[arg(long)]
    rows: bool,

    /// Compute the quantiles of measured over predicted times, as TOML for the files of stacks
    #[arg(long)]
    residuals: bool,

    /// Write a page with predicted against measured times and memory, errors by what rows have, and what
    /// each predicted step spends its time on
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Overwrite a file that exists
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    log: LogOptions,
}

#[derive(Serialize)]
struct Answer<'a> {
    files: &'a [FileReport],
    /// Over all files.
    interval: Option<Coverage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    residuals: Option<&'a [GroupResiduals]>,
}

impl Validate {
    /// Predicts.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        if self.log.log.is_some() {
            return self.log.run(self.stack.as_deref(), terminal);
        }
        let html = OutputFile::optional(self.html.as_ref(), self.force)?;
        let stack = self.stack.as_deref().map(Stack::parse).transpose();
        let stack = stack.map_err(|error| Failure::usage("--stack", error.to_string()))?;
        let mut files = vec![];
        for path in &self.files {
            let mut measurements = read(path)
                .map_err(|error: ValidateError| Failure::file(path, error.to_string()))?;
            measurements.rows.retain(|row| {
                self.wants([&row.source, &row.hardware, &row.model].map(String::as_str))
            });
            measurements.operators.retain(|row| {
                self.wants(
                    [&row.hardware, &row.kind.operator, &row.kind.format].map(String::as_str),
                )
            });
            files.push(measurements);
        }
        if files.iter().all(|file| file.rows.is_empty() && file.operators.is_empty()) {
            return Err(self.nothing(&files));
        }
        if !self.fit.fit.is_empty() {
            return self.fit.run(&files, stack.as_ref(), self.force, terminal);
        }
        let rows: usize = files.iter().map(|file| file.rows.len()).sum();
        let bar = terminal.progress(rows as u64);
        let reminder = Reminder::new(NOTED_EVERY);
        let done = || {
            bar.inc(1);
            if bar.is_hidden() && reminder.is_due() {
                terminal.note(format_args!("{} of {rows} rows predicted", bar.position()));
            }
        };
        let with_outcomes = |file: Measurements| {
            bar.set_message(file.path.display().to_string());
            let outcomes = predict(&file.rows, stack.as_ref(), &done);
            (file, outcomes)
        };
        let files: Vec<(Measurements, Vec<Outcome>)> =
            files.into_iter().map(with_outcomes).collect();
        bar.finish_and_clear();
        let report = |(file, outcomes): &(Measurements, Vec<Outcome>)| {
            FileReport::of(file, outcomes, self.rows).with_operators(file, stack.as_ref())
        };
        let reports: Vec<FileReport> = files.iter().map(report).collect();
        let interval = Coverage::of_files(&files);
        if let Some(file) = &html {
            file.write(page::page(&files, &reports, interval).html())?;
        }
        let residuals = self.residuals.then(|| residuals(&files, stack.as_ref()));
        if terminal.json() {
            let residuals = residuals.as_deref();
            return terminal.object(&Answer { files: &reports, interval, residuals });
        }
        print(terminal, &reports)?;
        if let Some(interval) = interval.filter(|_| reports.len() > 1) {
            terminal.line(format_args!("\nall files\n  {}", coverage(interval)))?;
        }
        written::say(html.as_ref(), None, terminal)?;
        for group in residuals.iter().flatten() {
            terminal.text(group_toml(group))?;
        }
        Ok(())
    }

    fn wants(&self, texts: [&str; 3]) -> bool {
        let Some(only) = &self.only else { return true };
        let only = only.to_lowercase();
        texts.iter().any(|it| it.to_lowercase().contains(&only))
    }

    /// Why there is nothing to predict.
    fn nothing(&self, files: &[Measurements]) -> Failure {
        let refused = files.iter().find_map(|file| Some((&file.path, file.refused?)));
        match (&self.only, refused, files.first()) {
            (Some(only), _, _) => {
                let text =
                    format!("--only {only}: no row has that in its source, hardware or model");
                Failure::usage("--only", text)
            }
            (None, Some((path, why)), _) => {
                Failure::file(path, format!("{}: nothing to compare: {why}", path.display()))
            }
            (None, None, Some(file)) => {
                let path = &file.path;
                Failure::file(path, format!("{}: it has no rows", path.display()))
            }
            (None, None, None) => Failure::usage("FILE", "a file is needed"),
        }
    }
}
