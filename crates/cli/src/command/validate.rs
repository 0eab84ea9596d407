//! `shardloom validate`: predictions beside published measurements.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::cluster::{Residuals, Stack};
use shardloom::program::quantity::{bytes, percent, seconds, signed_percent};
use shardloom_validate::{
    Coverage, Errors, Exceeding, Figures, FileReport, GroupResiduals, LineReport, Measurements,
    Outcome, Part, Row, ValidateError, predict, read, residuals,
};

use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

/// Predict published measurements of training, and say how far off the predictions are
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom validate crates/validate/data/a100_multinode.csv
  shardloom validate measurements.csv --only llama --rows
  shardloom validate crates/validate/data/*.csv --json
  shardloom validate crates/validate/data/*.csv --stack mine.toml --residuals

An error is predicted over measured, less 1. A regret is what the plan predicted fastest takes over the \
least that was measured, less 1, among rows of equal hardware, devices, model, sequence length and global \
batch. An 80% interval is between the quantiles of residuals in the stack's file. docs/accuracy.md says what files hold, and what they came to.")]
pub struct Validate {
    /// Files of measurements, whose columns say what they are
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Predict only rows whose source, hardware or model has this text in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Predict all rows under this software stack, one of the known or a TOML file [default: the one that
    /// each ran under]
    #[arg(long, value_name = "STACK")]
    stack: Option<String>,

    /// Say for every row what was measured and what is predicted
    #[arg(long)]
    rows: bool,

    /// Compute the quantiles of measured over predicted times, as TOML for the files of stacks
    #[arg(long)]
    residuals: bool,
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
        let stack = self.stack.as_deref().map(Stack::parse).transpose();
        let stack = stack.map_err(|error| Failure::usage("--stack", error.to_string()))?;
        let mut files = vec![];
        for path in &self.files {
            let mut measurements = read(path)
                .map_err(|error: ValidateError| Failure::file(path, error.to_string()))?;
            measurements.rows.retain(|row| self.wants(row));
            files.push(measurements);
        }
        if files.iter().all(|file| file.rows.is_empty()) {
            return Err(self.nothing(&files));
        }
        let rows: usize = files.iter().map(|file| file.rows.len()).sum();
        let bar = terminal.progress(rows as u64);
        let with_outcomes = |file: Measurements| {
            bar.set_message(file.path.display().to_string());
            let outcomes = predict(&file.rows, stack.as_ref(), &|| bar.inc(1));
            (file, outcomes)
        };
        let files: Vec<(Measurements, Vec<Outcome>)> =
            files.into_iter().map(with_outcomes).collect();
        bar.finish_and_clear();
        let report = |(file, outcomes): &(Measurements, Vec<Outcome>)| {
            FileReport::of(file, outcomes, self.rows)
        };
        let reports: Vec<FileReport> = files.iter().map(report).collect();
        let interval = Coverage::of_files(&files);
        let residuals = self.residuals.then(|| residuals(&files, stack.as_ref()));
        if terminal.json() {
            let residuals = residuals.as_deref();
            return terminal.object(&Answer { files: &reports, interval, residuals });
        }
        print(terminal, &reports)?;
        if let Some(interval) = interval.filter(|_| reports.len() > 1) {
            terminal.line(format_args!("\nall files\n  {}", coverage(interval)))?;
        }
        for group in residuals.iter().flatten() {
            terminal.text(group_toml(group))?;
        }
        Ok(())
    }

    fn wants(&self, row: &Row) -> bool {
        let Some(only) = &self.only else { return true };
        let only = only.to_lowercase();
        [&row.source, &row.hardware, &row.model].iter().any(|it| it.to_lowercase().contains(&only))
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

fn print(terminal: Terminal, reports: &[FileReport]) -> Result<(), Failure> {
    for report in reports {
        if let Some(lines) = &report.lines {
            terminal.line(format_args!("{}", report.file))?;
            terminal.text(table(&LINES, &lines.iter().map(line_row).collect::<Vec<_>>()))?;
            terminal.line("")?;
        }
    }
    let named = named(reports);
    let rows = |row: fn(&str, &Figures) -> Vec<String>| -> Vec<Vec<String>> {
        named.iter().map(|(name, figures)| row(name, figures)).collect()
    };
    terminal.text(table(&TIMES, &rows(time_row)))?;
    let remembers = |it: &Figures| it.memory.is_some() || it.crashed.rows > 0;
    let remembering: Vec<Vec<String>> = named
        .iter()
        .filter(|(_, figures)| remembers(figures))
        .map(|(name, figures)| memory_row(name, figures))
        .collect();
    if !remembering.is_empty() {
        terminal.line("")?;
        terminal.text(table(&MEMORY, &remembering))?;
    }
    for report in reports {
        terminal.line(format_args!("\n{}", report.file))?;
        if let Some(why) = report.refused {
            terminal.line(format_args!("  nothing to compare: {why}"))?;
            continue;
        }
        if let Some(interval) = report.all.interval {
            terminal.line(format_args!("  {}", coverage(interval)))?;
        }
        for it in &report.all.worst {
            let error = signed_percent(it.error);
            terminal.line(format_args!("  {error} in line {}: {}", it.line, it.what))?;
        }
        for it in &report.refusals {
            let (rows, reason, first) = (it.rows, it.reason, &it.first);
            terminal.line(format_args!("  {rows} not predicted: {reason} (the first: {first})"))?;
        }
        let took = seconds(report.prediction_seconds);
        terminal.line(format_args!("  predicted in {took} of one core"))?;
    }
    Ok(())
}

const TIMES: [&str; 10] = [
    "time of a step",
    "rows",
    "compared",
    "error",
    "bias",
    "median",
    "rank",
    "groups",
    "regret",
    "worst regret",
];

const MEMORY: [&str; 6] =
    ["peak memory", "rows", "error", "bias", "crashed: too large", "ran: too large"];

const LINES: [&str; 6] = ["line", "measured", "predicted", "error", "peak", "what"];

/// Every file, and what is predicted of its parts where it has several.
fn named(reports: &[FileReport]) -> Vec<(String, &Figures)> {
    let mut named = vec![];
    for report in reports.iter().filter(|report| report.refused.is_none()) {
        let file = report.file.rsplit('/').next().unwrap_or(&report.file);
        named.push((file.to_owned(), &report.all));
        if report.parts.len() > 1 {
            let predicted = |part: &&Part| part.figures.refused < part.figures.rows;
            for part in report.parts.iter().filter(predicted) {
                named.push((format!("  {}, {}", part.source, part.hardware), &part.figures));
            }
        }
    }
    named
}

fn time_row(name: &str, figures: &Figures) -> Vec<String> {
    let step = |of: fn(&Errors) -> String| figures.step.as_ref().map_or("-".into(), of);
    let regret = figures.regret.as_ref();
    vec![
        name.to_owned(),
        figures.rows.to_string(),
        step(|it| it.rows.to_string()),
        step(|it| percent(it.mean_absolute)),
        step(|it| signed_percent(it.bias)),
        step(|it| percent(it.median_absolute)),
        step(|it| it.rank_correlation.map_or("-".into(), |rank| format!("{rank:.3}"))),
        regret.map_or("-".into(), |it| it.groups.to_string()),
        regret.map_or("-".into(), |it| percent(it.mean)),
        regret.map_or("-".into(), |it| percent(it.max)),
    ]
}

fn coverage(it: Coverage) -> String {
    let share = percent(it.inside as f64 / it.rows as f64);
    format!(
        "in the 80% interval: {share} of {} rows, half-width {}",
        it.rows,
        percent(it.half_width)
    )
}

/// What a stack's file says of a group, with where it is from as comments.
fn group_toml(it: &GroupResiduals) -> String {
    let GroupResiduals { stack, of, devices, rows, .. } = it;
    let Some([low, high]) = it.quantiles else {
        let least = Residuals::LEAST_ROWS;
        return format!("\n# {stack}, {of}: too few rows, {rows} of at least {least}\n");
    };
    let held_out = it.held_out.map_or("no model can be left out".to_owned(), |it| {
        let share = percent(it.inside as f64 / it.rows as f64);
        format!("with quantiles of other models {share} of {} rows are inside", it.rows)
    });
    let devices: Vec<&String> = devices.iter().collect();
    format!(
        "\n# {stack}: {held_out}\n[[residuals]]\nof = \"{of}\"\ndevices = {devices:?}\nrows = {rows}\nlow = {low:.3}\n\
         high = {high:.3}\n"
    )
}

fn memory_row(name: &str, figures: &Figures) -> Vec<String> {
    let memory = |of: fn(&Errors) -> String| figures.memory.as_ref().map_or("-".into(), of);
    let share = |it: Exceeding| match it.rows {
        0 => "-".to_owned(),
        rows => format!("{} of {rows}", it.exceeding),
    };
    vec![
        name.to_owned(),
        memory(|it| it.rows.to_string()),
        memory(|it| percent(it.mean_absolute)),
        memory(|it| signed_percent(it.bias)),
        share(figures.crashed),
        share(figures.ran),
    ]
}

fn line_row(it: &LineReport) -> Vec<String> {
    let time = |value: Option<f64>| value.map_or("-".into(), seconds);
    let size = |value: Option<f64>| value.map_or("-".into(), |value| bytes(value as u64));
    let peaks = match (it.measured_peak_bytes, it.predicted_peak_bytes) {
        (None, None) => "-".to_owned(),
        (measured, predicted) => {
            format!("{} / {}", size(measured), size(predicted.map(|it| it as f64)))
        }
    };
    let mut what = it.what.clone();
    if it.crashed {
        what += "; crashed";
    }
    if it.exceeds == Some(true) {
        what += "; predicted not to fit";
    }
    if let Some(why) = &it.refused {
        what += &format!("; not predicted: {why}");
    }
    vec![
        it.line.to_string(),
        time(it.measured_seconds),
        time(it.predicted_seconds),
        it.error.map_or("-".into(), signed_percent),
        peaks,
        what,
    ]
}
