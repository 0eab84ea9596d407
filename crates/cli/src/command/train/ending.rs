//! What a run says at its end.

use std::borrow::Cow;

use serde::Serialize;
use shardloom::Session;
use shardloom::program::MemoryUse;
use shardloom::program::quantity::{bytes, digits, percent, seconds, signed_percent, whole};
use shardloom::program::timeline::Timeline;
use shardloom::train::Straggler;
use shardloom_report::{PerfettoTrace, Report, Table, perfetto_trace, swimlane};

use super::opening;
use super::run::{History, Job, averages_ended, bound_changed, straggling, taken_over};
use crate::command::targets::per_second;
use crate::command::{considered, page_facts, written};
use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

#[derive(Serialize)]
struct Line {
    summary: Summary,
}

#[derive(Default, Serialize)]
struct Summary {
    steps: usize,
    final_loss: Option<f64>,
    median_step_seconds: Option<f64>,
    predicted_step_seconds: Option<f64>,
    bubble_fraction: Option<f64>,
    dependency_idle_fraction: Option<f64>,
    exposed_communication_fraction: Option<f64>,
    peak_bytes_per_rank: Vec<u64>,
    sent_bytes_per_rank: Vec<u64>,
    weights_digest: String,
    tokens_per_second: Option<f64>,
    /// What people are told that it is.
    #[serde(skip)]
    rate: &'static str,
    final_validation_loss: Option<f64>,
    final_validation_accuracy: Option<f64>,
    interrupted: bool,
    checkpoint: Option<String>,
    /// Ranks that were slow at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stragglers: Vec<Slow>,
}

#[derive(Serialize)]
struct Slow {
    rank: u32,
    since_step: u64,
    times: f64,
}

/// Writes the report and the trace, and says what the run came to. One does not keep the other from being done.
pub fn conclude(
    job: &Job,
    session: &mut Session,
    history: &History,
    terminal: Terminal,
) -> Result<(), Failure> {
    let summary = summary(job, session, history)?;
    let memory = memory(job, session);
    let written = write_files(job, history, (&summary, &memory), terminal);
    let said = say(job, history, (summary, &memory.rows, written.is_ok()), terminal);
    if history.interrupted.is_some() {
        let outlook = match (&history.checkpoint, &job.checkpoints) {
            (Some(path), Some(checkpoints)) if checkpoints.resumable => {
                format!("the same command with --resume goes on from {}", path.display())
            }
            (Some(path), _) => format!("{} holds what was learnt", path.display()),
            (None, _) => "nothing is kept, as there is no --checkpoint".to_owned(),
        };
        let done = session.next_step();
        terminal.note(format_args!("interrupted after {done} of {} steps; {outlook}", job.steps));
    }
    written.and(said)
}

/// Says what the run came to.
fn say(
    job: &Job,
    history: &History,
    (summary, memory, is_written): (Summary, &[Vec<String>], bool),
    terminal: Terminal,
) -> Result<(), Failure> {
    let predicted = job.prediction.as_ref().ok().map(|prediction| &prediction.timeline);
    if terminal.json() {
        terminal.object(&Line { summary })?;
    } else {
        for (name, timeline) in [("Predicted", predicted), ("Measured", history.measured.as_ref())]
        {
            if let Some(timeline) = timeline {
                terminal.line(format_args!("\n{name} step"))?;
                terminal.text(swimlane(timeline, terminal.width(), terminal.colour()))?;
            }
        }
        terminal.line("")?;
        terminal.text(table(&COLUMNS, memory))?;
        terminal.line("")?;
        for (name, value) in figures(&summary).into_iter().chain(remains(&summary)) {
            terminal.line(format_args!("{name}: {value}"))?;
        }
        if is_written {
            written::say(job.html.as_ref(), job.trace.as_ref(), terminal)?;
        }
    }
    Ok(())
}

/// Writes the report and the trace.
fn write_files(
    job: &Job,
    history: &History,
    (summary, memory): (&Summary, &RunPeaks),
    terminal: Terminal,
) -> Result<(), Failure> {
    let predicted = job.prediction.as_ref().ok().map(|prediction| &prediction.timeline);
    let trace = job.trace.as_ref().map_or(Ok(()), |file| {
        let timelines: Vec<&Timeline> = predicted.into_iter().chain(&history.measured).collect();
        let PerfettoTrace { bytes, left_out } = perfetto_trace(&timelines);
        file.write(bytes)?;
        left_out.into_iter().for_each(|what| terminal.note(what));
        Ok(())
    });
    if let Some(file) = &job.html {
        let prediction = job.prediction.as_ref().ok();
        let report = Report {
            title: format!("Training of {}", job.model.spec().name()),
            model: job.model.text(),
            cluster: job.plan.cluster.clone(),
            plan_toml: job.plan.to_toml(),
            warnings: prediction.map(page_facts::warnings).unwrap_or_default(),
            summary: page_figures(job, summary, memory),
            losses: history.losses.clone(),
            predicted: predicted.map(Cow::Borrowed),
            measured: history.measured.as_ref().map(Cow::Borrowed),
            device_memory: prediction
                .map(|it| page_facts::device_memory(&it.memory))
                .unwrap_or_default(),
            notes: notes(job, history, memory),
            tables: tables(job, summary, memory),
        };
        file.write(report.html())?;
    }
    trace
}

/// Why the plan is what it is, and what happened to the run.
fn notes(job: &Job, history: &History, memory: &RunPeaks) -> Vec<String> {
    let mut said = match &job.prediction {
        Ok(prediction) => page_facts::why(&job.plan, prediction),
        Err(reason) => page_facts::why_untimed(&job.plan, &memory.uses, reason),
    };
    said.extend(job.search.iter().flat_map(considered::sentences));
    said.extend(history.averages_ended.map(averages_ended));
    said.extend(history.lost.iter().map(taken_over));
    said.extend(history.bound_changes.iter().map(bound_changed));
    said.extend(history.stragglers.iter().map(straggling));
    said
}

fn tables(job: &Job, summary: &Summary, memory: &RunPeaks) -> Vec<Table> {
    let mut tables = vec![Table {
        title: "Memory and messages of the run".into(),
        columns: COLUMNS.map(str::to_owned).into(),
        rows: memory.rows.clone(),
    }];
    tables.extend(job.search.as_ref().map(considered::table));
    tables.push(Table {
        title: "What it left".into(),
        columns: ["what", "which"].map(str::to_owned).into(),
        rows: remains(summary).map(|(name, value)| vec![name, value]).collect(),
    });
    tables
}

impl From<&Straggler> for Slow {
    fn from(&Straggler { rank, since_step, times }: &Straggler) -> Slow {
        Slow { rank, since_step, times }
    }
}

fn summary(job: &Job, session: &mut Session, history: &History) -> Result<Summary, Failure> {
    let median_step_seconds = history.median_step_seconds();
    let measured = history.measured.as_ref();
    let trainer = session.trainer();
    Ok(Summary {
        steps: history.losses.len(),
        final_loss: history.losses.last().map(|point| point.train),
        median_step_seconds,
        predicted_step_seconds: job.prediction.as_ref().ok().map(|it| it.summary.step_seconds),
        bubble_fraction: measured.map(Timeline::bubble_fraction),
        dependency_idle_fraction: measured.map(Timeline::dependency_idle_fraction),
        exposed_communication_fraction: measured.map(Timeline::exposed_communication_fraction),
        peak_bytes_per_rank: trainer.peak_bytes_per_rank().to_vec(),
        sent_bytes_per_rank: trainer.sent_bytes_per_rank().to_vec(),
        weights_digest: trainer.weights_digest().map_err(shardloom::Error::from)?,
        tokens_per_second: median_step_seconds.map(|median| history.tokens as f64 / median),
        rate: per_second(&job.model),
        final_validation_loss: history.losses.iter().rev().find_map(|point| point.validation),
        final_validation_accuracy: history.losses.iter().rev().find_map(|point| point.accuracy),
        interrupted: history.interrupted.is_some(),
        checkpoint: history.checkpoint.as_ref().map(|path| path.display().to_string()),
        stragglers: history.stragglers.iter().map(Slow::from).collect(),
    })
}

/// How the run went, in a few numbers.
fn figures(summary: &Summary) -> Vec<(String, String)> {
    let median = summary.median_step_seconds;
    let predicted = summary.predicted_step_seconds;
    let error = predicted.zip(median).map(|(predicted, measured)| predicted / measured - 1.0);
    // A rank by itself has nobody to wait for.
    let several = summary.peak_bytes_per_rank.len() > 1;
    let among = |share: Option<f64>| share.filter(|_| several).map(percent);
    let figures = [
        ("Loss", summary.final_loss.map(|loss| format!("{loss:.4}"))),
        ("Validation loss", summary.final_validation_loss.map(|loss| format!("{loss:.4}"))),
        ("Validation accuracy", summary.final_validation_accuracy.map(percent)),
        ("Median step", median.map(seconds)),
        ("Predicted step", predicted.map(seconds)),
        ("Prediction error", error.map(signed_percent)),
        (summary.rate, summary.tokens_per_second.map(digits)),
        ("Waiting for others", among(summary.dependency_idle_fraction)),
        ("Exposed communication", among(summary.exposed_communication_fraction)),
    ];
    figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The figures of the page, with how much of the devices is used and what they cost.
fn page_figures(job: &Job, summary: &Summary, memory: &RunPeaks) -> Vec<(String, String)> {
    let mut of_page = figures(summary);
    let parameters = whole(job.model.graph().parameter_count());
    of_page.push(("Parameters".to_owned(), parameters));
    if let Some((prediction, median)) =
        job.prediction.as_ref().ok().zip(summary.median_step_seconds)
    {
        of_page.extend(page_facts::utilisation(prediction, median));
    }
    let peak = summary.peak_bytes_per_rank.iter().max();
    of_page.extend(peak.map(|&peak| ("Peak memory of a rank".to_owned(), bytes(peak))));
    let peak = memory.predicted.iter().max();
    of_page.extend(peak.map(|&peak| ("Predicted peak".to_owned(), bytes(peak))));
    of_page.push(("Memory of the run".to_owned(), memory.needed.clone()));
    of_page.extend(job.cost.map(|cost| ("Cost".to_owned(), cost.described())));
    of_page
}

/// What there is after the run.
fn remains(summary: &Summary) -> impl Iterator<Item = (String, String)> {
    let digest = Some(("Weights (BLAKE3)".to_owned(), summary.weights_digest.clone()));
    let checkpoint = summary.checkpoint.clone().map(|path| ("Checkpoint".to_owned(), path));
    digest.into_iter().chain(checkpoint)
}

const COLUMNS: [&str; 4] = ["rank", "peak memory", "predicted peak", "sent in the run"];

/// What ranks of a run hold at their peaks.
struct RunPeaks {
    /// What each was predicted to hold, by rank; nothing once a server was lost.
    predicted: Vec<u64>,
    /// Where no times are predicted, what that is made of.
    uses: Vec<MemoryUse>,
    /// By rank: what was held, what was predicted, and what was sent.
    rows: Vec<Vec<String>>,
    /// What all of them needed together, and what there was.
    needed: String,
}

fn memory(job: &Job, session: &mut Session) -> RunPeaks {
    let needed = opening::memory(session.memory());
    let trainer = session.trainer();
    let uses = match &job.prediction {
        Ok(_) => vec![],
        Err(_) => page_facts::memory_uses(trainer.program()),
    };
    let predicted = match &job.prediction {
        // What was predicted is of ranks among which there was every server.
        _ if !trainer.lost_servers().is_empty() => vec![],
        Ok(prediction) => prediction.peak_bytes_per_rank(),
        Err(_) => uses.iter().map(|it| it.peak_bytes).collect(),
    };
    let ranks = trainer.peak_bytes_per_rank().iter().zip(trainer.sent_bytes_per_rank());
    let row = |(rank, (&peak, &sent)): (usize, (&u64, &u64))| {
        let predicted = predicted.get(rank).map_or("-".to_owned(), |&peak| bytes(peak));
        vec![rank.to_string(), bytes(peak), predicted, bytes(sent)]
    };
    let rows = ranks.enumerate().map(row).collect();
    RunPeaks { predicted, uses, rows, needed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prediction_error_is_measured_against_the_measured_step() {
        let summary = Summary {
            median_step_seconds: Some(0.08),
            predicted_step_seconds: Some(0.06),
            ..Summary::default()
        };
        let error = |summary: &Summary| {
            let all = figures(summary);
            all.into_iter().find(|(name, _)| name == "Prediction error").map(|(_, error)| error)
        };
        assert_eq!(error(&summary).as_deref(), Some("-25.0%"));
        assert_eq!(error(&Summary { predicted_step_seconds: None, ..summary }), None);
    }
}
