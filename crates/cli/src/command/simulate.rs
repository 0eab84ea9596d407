//! `shardloom simulate`: a step of a plan, predicted.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shardloom::cluster::Cluster;
use shardloom::plan::Plan;
use shardloom::program::quantity::{bytes, percent, seconds};
use shardloom::sim::{Fit, Summary};
use shardloom::{
    Buffers, Defaults, Model, Prediction, RankBuffers, read_plan_and_model, simulate, usual_request,
};
use shardloom_report::{Report, Table, perfetto_trace, swimlane};

use super::dimensions::{Dimensions, Place};
use super::order::OrderOptions;
use super::{ProfileFile, is_plan, require_no_option};
use crate::failure::Failure;
use crate::number::whole;
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
    /// A plan file, as `shardloom plan -o` writes it, or a model, with --cluster and what else makes a
    /// plan
    #[arg(value_name = "PLAN|MODEL")]
    what: String,

    /// The machines of a MODEL
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,

    /// Sequence length of a MODEL [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>)]
    seq: Option<usize>,

    /// Simulate every rank by itself instead of ranks that do the same at once
    #[arg(long)]
    unfolded: bool,

    /// Assign every rank's buffers, too, as training would, and show how close they come to what is in
    /// use at once
    #[arg(long)]
    buffers: bool,

    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write a trace that ui.perfetto.dev opens
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

/// How a model that comes without a plan is split.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan (of a MODEL; a plan file says all this itself)")]
struct Shape {
    #[command(flatten)]
    order: OrderOptions,

    #[command(flatten)]
    dimensions: Dimensions,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    fit: Fit,
    #[serde(skip_serializing_if = "Option::is_none")]
    buffers: Option<&'a Buffers>,
}

impl Simulate {
    /// Simulates.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let html = OutputFile::optional(self.html.as_ref(), self.force)?;
        let trace = OutputFile::optional(self.trace.as_ref(), self.force)?;
        OutputFile::require_distinct([&html, &trace])?;
        let (model, plan, cluster) = self.planned(terminal)?;
        let spinner = terminal.spinner("simulating");
        let prediction = simulate(&model, &plan, &cluster, !self.unfolded);
        spinner.finish_and_clear();
        let prediction = prediction?;
        if let Some(file) = &trace {
            file.write(perfetto_trace(&[&prediction.timeline]))?;
        }
        if let Some(file) = &html {
            let report = Report {
                title: format!("Simulation of {}", model.spec().name()),
                model: plan.model.clone(),
                cluster: plan.cluster.clone(),
                plan_toml: plan.to_toml(),
                summary: figures(&prediction),
                predicted: Some(prediction.timeline.clone()),
                tables: vec![Table {
                    title: "Memory".into(),
                    columns: MEMORY.map(str::to_owned).into(),
                    rows: memory_rows(&prediction),
                }],
                ..Report::default()
            };
            file.write(report.html())?;
        }
        let fit = prediction.memory.iter().map(|memory| memory.fit()).max().unwrap_or(Fit::Fits);
        let buffers = self.buffers.then(|| Buffers::of(&prediction.program));
        if terminal.json() {
            let (summary, buffers) = (&prediction.summary, buffers.as_ref());
            return terminal.object(&Answer { summary, fit, buffers });
        }
        terminal.text(swimlane(&prediction.timeline, terminal.width(), terminal.colour()))?;
        for (name, value) in figures(&prediction) {
            terminal.line(format_args!("{name}: {value}"))?;
        }
        terminal.text(table(&MEMORY, &memory_rows(&prediction)))?;
        if let Some(buffers) = &buffers {
            terminal.text(table(&BUFFERS, &buffer_rows(buffers)))?;
            let messages = bytes(buffers.message_bytes);
            terminal.line(format_args!("Messages between stages: {messages} over all ranks"))?;
        }
        match fit {
            Fit::Fits => Ok(()),
            Fit::Close => terminal.line("It fits, but with less than 5% of the memory to spare."),
            Fit::Exceeds => terminal.line("It does not fit in memory."),
        }
    }
}

impl Simulate {
    /// What is simulated.
    fn planned(&self, terminal: Terminal) -> Result<(Model, Plan, Cluster), Failure> {
        let local = self.profile.local()?;
        let path = Path::new(&self.what);
        let Shape { order, dimensions } = &self.shape;
        match &self.cluster {
            Some(text) if !is_plan(path)? => {
                let defaults = Defaults { sequence_length: self.seq, vocabulary: None };
                let model = Model::load_with(&self.what, defaults)?;
                let cluster = super::load_cluster(text, &local, terminal)?;
                let usual = usual_request(&model, &cluster, text, dimensions.global_batch());
                let order = order.order();
                let microbatches = dimensions.microbatches(&model, &[order]);
                let plan =
                    dimensions.plan(&model, order, microbatches, &Place::on(text, &usual))?;
                Ok((model, plan, cluster))
            }
            cluster => {
                if !path.exists() && Model::load(&self.what).is_ok() {
                    let message = format!("--cluster is needed to simulate {}", self.what);
                    return Err(Failure::usage("--cluster", message));
                }
                let cluster = cluster.as_ref().map(|_| "--cluster");
                let seq = self.seq.map(|_| "--seq");
                let given = cluster.or(seq).or(order.given()).or(dimensions.given());
                require_no_option(given, path)?;
                let (plan, model) = read_plan_and_model(path)?;
                let cluster = super::load_cluster(&plan.cluster, &local, terminal)?;
                Ok((model, plan, cluster))
            }
        }
    }
}

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
fn figures(prediction: &Prediction) -> Vec<(String, String)> {
    let summary = &prediction.summary;
    vec![
        ("Steady step".into(), seconds(summary.step_seconds)),
        ("Steady bubble".into(), percent(summary.bubble_fraction)),
    ]
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
