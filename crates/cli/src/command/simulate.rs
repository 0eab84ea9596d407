//! `shardloom simulate`: a step of a plan, predicted.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::cluster::Cluster;
use shardloom::program::quantity::{bytes, digits, percent, seconds};
use shardloom::sim::{Fit, MemoryFit, RowCounts, SimError, Summary};
use shardloom::{Buffers, Error, Model, Plan, Prediction, RankBuffers, simulate_rows};
use shardloom_report::{PerfettoTrace, Report, perfetto_trace, swimlane};

use super::cost::Cost;
use super::in_options;
use super::interval::Interval;
use super::memory::{self, Memory};
use super::page_facts;
use super::plan_or_model::{PlanOrModel, Planned, Shape};
use super::targets::per_second;
use super::{DeviceAnswer, ProfileFile, StackAnswer, devices_described_of, written};
use crate::failure::Failure;
use crate::number::not_negative;
use crate::output_file::OutputFile;
use crate::table::table;
use crate::terminal::Terminal;

/// Predict a step of a plan: when every rank does what, and what it holds and sends
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom simulate plan.toml
  shardloom simulate plan.toml --html report.html --trace step.perfetto-trace
  shardloom simulate plan.toml --buffers --json
  shardloom simulate gpt-2 --cluster a100-80g:4 --pp 4 --schedule interleaved --global-batch 32")]
pub struct Simulate {
    #[command(flatten)]
    what: PlanOrModel,

    /// Simulate every rank by itself instead of ranks that do the same at once; where these are on unlike devices
    /// and not very many, or have different numbers of rows, each is in any case
    #[arg(long)]
    unfolded: bool,

    /// Which shares of all rows the experts get that rows choose from, one number for each, instead of equal
    /// ones
    #[arg(long, value_name = "SHARES", value_delimiter = ',', value_parser = not_negative)]
    rows: Vec<f64>,

    /// Assign every rank's buffers, too, as training would, and show how close they come to what is in
    /// use at once
    #[arg(long)]
    buffers: bool,

    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write a trace in Perfetto's binary format, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Overwrite files that exist
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    profile: ProfileFile,

    #[command(flatten)]
    shape: Shape,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    /// The times between which four of five published steps like it were measured; null where the stack has none.
    step_seconds_interval: Option<[f64; 2]>,
    stack: StackAnswer,
    devices: Vec<DeviceAnswer>,
    /// In US dollars, where the price of every device of the plan is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
    /// Of a plan whose averages of replicas end: the rest is of the steps before.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_averages: Option<After>,
    /// Elements of parameters that stay as they are.
    #[serde(skip_serializing_if = "is_zero")]
    frozen_parameters: u64,
    fit: Fit,
    /// By rank, as `ranks` are.
    memory: Vec<Memory>,
    /// Whether ranks that do the same were simulated once.
    folded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    buffers: Option<&'a Buffers>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Steps after the last average.
#[derive(Clone, Copy, Serialize)]
pub(super) struct After {
    /// The first of them.
    step: u64,
    step_seconds: f64,
}

impl Simulate {
    /// Simulates.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let html = OutputFile::optional(self.html.as_ref(), self.force)?;
        let trace = OutputFile::optional(self.trace.as_ref(), self.force)?;
        OutputFile::require_distinct([&html, &trace])?;
        let local = self.profile.local();
        let Planned { model, plan, cluster, file } =
            self.what.planned(&self.shape, &local, terminal)?;
        let cluster = match cluster {
            Some(cluster) => cluster,
            None => {
                let loaded = self.what.stack.load_cluster(&plan.cluster, &local, terminal);
                loaded.map_err(|error| error.in_plan(file.as_deref(), Some("cluster")))?
            }
        };
        let spinner = terminal.spinner("simulating");
        let rows = match self.rows.is_empty() {
            true => RowCounts::Even,
            false => RowCounts::Shares(self.rows.clone()),
        };
        let folded = !self.unfolded;
        let prediction = simulate_rows(&model, &plan, &cluster, folded, &rows);
        let end = plan.averaging_ends();
        let after = match end.map(|step| plan.in_step(step)) {
            Some(after) => simulate_rows(&model, &after, &cluster, folded, &rows).map(Some),
            None => Ok(None),
        };
        spinner.finish_and_clear();
        let in_plan = |error| match error {
            Error::Sim(source @ (SimError::NoRows | SimError::Rows { .. }))
                if !self.rows.is_empty() =>
            {
                Failure::usage("--rows", format!("--rows: {source}"))
            }
            other => in_options::of_plan(other, file.as_deref()),
        };
        let (prediction, after) = (prediction.map_err(in_plan)?, after.map_err(in_plan)?);
        let fits = [Some(&prediction), after.as_ref()].into_iter().flatten();
        let fits = fits.flat_map(|it| &it.memory);
        let fit = fits.map(|memory| memory.fit()).max().unwrap_or(Fit::Fits);
        let after = end.zip(after);
        let after = after.map(|(step, it)| After { step, step_seconds: it.summary.step_seconds });
        let step_seconds = prediction.summary.step_seconds;
        let interval = Interval::of(&plan, &cluster, step_seconds);
        let targets = model.graph().targets_per_sample();
        let cost = Cost::of(&plan, &cluster, step_seconds, targets);
        let mut figures = figures(&prediction, &cluster, interval.as_ref(), (after, cost));
        let frozen = plan.frozen_count(model.graph()).map_err(shardloom::Error::from)?;
        if frozen > 0 {
            let of = digits(model.graph().parameter_count() as f64);
            let share = format!("{} of {of} parameters", digits(frozen as f64));
            figures.push(("Frozen".into(), share));
        }
        if let Some(file) = &trace {
            let PerfettoTrace { bytes, left_out } = perfetto_trace(&[&prediction.timeline]);
            file.write(bytes)?;
            left_out.into_iter().for_each(|what| terminal.note(what));
        }
        if let Some(file) = &html {
            let page = page_facts::of_prediction(("Simulation of", &model), &plan, &prediction);
            let summary = page_figures(&figures, &model, &plan, &prediction, interval.as_ref());
            let mut report = Report { summary, ..page };
            report.notes.push(ALONE.to_owned());
            file.write(report.html())?;
        }
        let buffers = self.buffers.then(|| Buffers::of(&prediction.program));
        if terminal.json() {
            let (summary, folded) = (&prediction.summary, prediction.folded);
            let buffers = buffers.as_ref();
            return terminal.object(&Answer {
                summary,
                step_seconds_interval: interval.map(|it| it.ends),
                stack: StackAnswer::of(&cluster),
                devices: DeviceAnswer::all(&cluster),
                cost,
                after_averages: after,
                frozen_parameters: frozen,
                fit,
                memory: Memory::all(&prediction.memory),
                folded,
                buffers,
            });
        }
        terminal.text(swimlane(&prediction.timeline, terminal.width(), terminal.colour()))?;
        for (name, value) in figures {
            terminal.line(format_args!("{name}: {value}"))?;
        }
        terminal.text(table(&MEMORY, &memory_rows(&prediction)))?;
        if let Some(buffers) = &buffers {
            terminal.text(table(&BUFFERS, &buffer_rows(buffers)))?;
            let messages = bytes(buffers.message_bytes);
            terminal.line(format_args!("Messages between stages: {messages} over all ranks"))?;
        }
        if !self.unfolded && !prediction.folded {
            let why = match self.rows.is_empty() {
                true => "Ranks that do the same are on unlike devices",
                false => "Ranks have different numbers of rows, or are on unlike devices",
            };
            terminal.line(format_args!("{why}, so each was simulated by itself."))?;
        }
        if let Some(it) = MemoryFit::fullest(&prediction.memory) {
            terminal.line(format_args!("Memory: {}", memory::described(it)))?;
        }
        written::say(html.as_ref(), trace.as_ref(), terminal)
    }
}

/// What a page says of other plans.
const ALONE: &str = "No other plan was simulated: `shardloom explain` says what other values of this plan's keys would \
                     do, and `shardloom plan` finds the fastest and says what others take.";

const MEMORY: [&str; 7] =
    ["rank", "ranks alike", "peak", "of", "computing", "communicating", "sent"];

const BUFFERS: [&str; 4] = ["rank", "ranks alike", "arena", "in use at once"];

fn buffer_rows(buffers: &Buffers) -> Vec<Vec<String>> {
    let row = |it: &RankBuffers| {
        let (arena, used) = (bytes(it.arena_bytes), bytes(it.used_bytes));
        vec![it.rank.to_string(), it.multiplicity.to_string(), arena, used]
    };
    buffers.ranks.iter().map(row).collect()
}

/// What a step is once steps follow each other; the timeline beside it shows one that begins with all
/// ranks idle, which takes a little longer.
pub(super) fn figures(
    prediction: &Prediction,
    cluster: &Cluster,
    interval: Option<&Interval>,
    (after, cost): (Option<After>, Option<Cost>),
) -> Vec<(String, String)> {
    let summary = &prediction.summary;
    let within = interval.map(|it| it.described()).unwrap_or_default();
    let mut figures = vec![
        ("Steady step".into(), format!("{}{within}", seconds(summary.step_seconds))),
        ("Waiting for others".into(), percent(summary.dependency_idle_fraction)),
        ("Exposed communication".into(), percent(summary.exposed_communication_fraction)),
        ("Software".into(), cluster.stack().described()),
        ("Devices".into(), devices_described_of(cluster, prediction.program.ranks())),
    ];
    figures.extend(after.map(|After { step, step_seconds }| {
        (format!("Steady step from {step} on"), format!("{}, not averaged", seconds(step_seconds)))
    }));
    figures.extend(cost.map(|cost| ("Cost".into(), cost.described())));
    figures
}

/// The figures of the page: the step without its interval, which is long, and how much of the devices is used.
pub(super) fn page_figures(
    figures: &[(String, String)],
    model: &Model,
    plan: &Plan,
    prediction: &Prediction,
    interval: Option<&Interval>,
) -> Vec<(String, String)> {
    let step_seconds = prediction.summary.step_seconds;
    let mut of_page = vec![("Steady step".to_owned(), seconds(step_seconds))];
    let targets = plan.global_batch as f64 * model.graph().targets_per_sample() as f64;
    let rate = (per_second(model).to_owned(), digits(targets / step_seconds));
    of_page.push(rate);
    of_page.extend(page_facts::utilisation(prediction, step_seconds));
    of_page.extend(page_facts::fullest(&prediction.memory));
    of_page.extend(figures.iter().skip(1).cloned());
    let described = |it: &Interval| it.described().trim_matches([' ', '(', ')']).to_owned();
    of_page.extend(interval.map(|it| ("Steady step, likely".to_owned(), described(it))));
    of_page
}

fn memory_rows(prediction: &Prediction) -> Vec<Vec<String>> {
    let ranks = prediction.summary.ranks.iter().zip(&prediction.memory);
    ranks
        .map(|(rank, memory)| {
            vec![
                rank.rank.to_string(),
                rank.multiplicity.to_string(),
                bytes(memory.peak_bytes),
                bytes(memory.memory_bytes),
                seconds(rank.busy_seconds),
                seconds(rank.communication_seconds),
                bytes(rank.sent_bytes),
            ]
        })
        .collect()
}
