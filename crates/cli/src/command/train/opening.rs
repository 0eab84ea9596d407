//! What a run says before its first step: what it will do.

use std::path::Path;
use std::time::Duration;

use indicatif::HumanDuration;
use jiff::{Unit, Zoned};
use shardloom::program::quantity::{bytes, counted as number_of, digits, seconds, whole};
use shardloom::{Data, RunMemory, Session};

use super::run::Job;
use crate::command::plan_line::plan_line;
use crate::command::targets::counted;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// How many samples there are.
#[derive(Clone, Copy)]
pub struct Samples {
    /// In an epoch.
    training: u64,
    validation: u64,
}

impl Samples {
    /// Those of `data`.
    pub fn of(data: &Data) -> Samples {
        Samples { training: data.training_samples(), validation: data.validation_samples() }
    }
}

/// Says it to people: programs know what they have asked for. Where the run is not timed, its end is not known.
///
/// # Errors
/// If standard output is closed.
pub fn say(
    job: &Job,
    session: &Session,
    (origin, samples, is_timed): (&str, Samples, bool),
    terminal: Terminal,
) -> Result<(), Failure> {
    if terminal.json() {
        return Ok(());
    }
    let first = session.next_step();
    let spec = job.model.spec();
    let parameters = whole(job.model.graph().parameter_count());
    terminal.line(format_args!("Model: {}, {parameters} parameters", spec.name()))?;
    terminal.line(format_args!("Weights: {origin}"))?;
    terminal.line(format_args!("Data: {}", data(job, session, samples)))?;
    terminal.line(format_args!("Steps: {}", steps(job, samples, first)))?;
    terminal.line(format_args!("Plan: {}", plan_line(&job.plan)))?;
    terminal.line(format_args!("Memory: {}", memory(session.memory())))?;
    terminal.line(format_args!("Predicted step: {}\n", prediction(job, first, is_timed)))
}

fn data(job: &Job, session: &Session, samples: Samples) -> String {
    let paths = &job.data;
    let name = paths.first().map_or(Path::new(""), |path| path).display();
    let others = match paths.len() {
        0 | 1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    let each = match job.model.graph().targets_per_sample() {
        1 => String::new(),
        targets => format!(" of {}", number_of(targets, "token")),
    };
    let Samples { training, validation } = samples;
    let taken = job.validation.map_or(validation, |it| session.evaluated_samples(it.microbatches));
    let kept = match validation {
        0 => String::new(),
        all if taken == all => format!(", {} to validate on", whole(all)),
        all => {
            let (taken, all) = (whole(taken), whole(all));
            format!(", {taken} of {all} others to validate on, which are whole micro-batches")
        }
    };
    let tokens = match job.tokenizer.as_deref() {
        None => String::new(),
        Some("bytes") => ", by bytes".into(),
        Some(file) => format!(", by {file}"),
    };
    format!("{name}{others}, {} samples{each} to train on{kept}{tokens}", whole(training))
}

fn steps(job: &Job, samples: Samples, first: u64) -> String {
    let batch = job.plan.global_batch as u64;
    let all = (job.steps - first).saturating_mul(batch);
    let targets = match job.model.graph().targets_per_sample() as u64 {
        1 => String::new(),
        each => format!(", {} {}", whole(all.saturating_mul(each)), counted(&job.model)),
    };
    let after = match first {
        0 => String::new(),
        _ => format!(" after {first}"),
    };
    let epochs = all as f64 / samples.training.max(1) as f64;
    format!(
        "{}{after} of {}{targets}, {} epochs",
        whole(job.steps - first),
        number_of(job.plan.global_batch, "sample"),
        digits(epochs)
    )
}

/// What the ranks of this process need together, and what there is.
pub fn memory(memory: RunMemory) -> String {
    let RunMemory { needed_bytes, ranks, data_bytes, available_bytes } = memory;
    let data = match data_bytes {
        0 => String::new(),
        _ => format!(" besides {} of data", bytes(data_bytes)),
    };
    let available = available_bytes.map(|it| format!(", {} available", bytes(it)));
    let available = available.unwrap_or_default();
    format!("{} on {}{data}{available}", bytes(needed_bytes), number_of(ranks, "rank"))
}

/// What a step takes and when the last ends, or why that is not known.
fn prediction(job: &Job, first: u64, is_timed: bool) -> String {
    let prediction = match &job.prediction {
        Ok(prediction) => prediction,
        Err(reason) => return format!("not known, as {reason}"),
    };
    let step = prediction.summary.step_seconds;
    if !is_timed {
        return format!(
            "{}, simulated; in virtual time computing takes what it takes here",
            seconds(step)
        );
    }
    let until = job.plan.averaging_ends().map_or(job.steps, |end| end.clamp(first, job.steps));
    let after = job
        .prediction_after
        .as_ref()
        .and_then(|it| it.as_ref().ok())
        .map_or(step, |it| it.summary.step_seconds);
    let all = step * (until - first) as f64 + after * (job.steps - until) as f64;
    let end = Duration::try_from_secs_f64(all).ok().and_then(|all| {
        let end = Zoned::now().checked_add(all).and_then(|end| end.round(Unit::Second)).ok()?;
        let takes = match all.as_secs() {
            0..60 => seconds(all.as_secs_f64()),
            _ => HumanDuration(all).to_string(),
        };
        Some(format!(", all in {takes}, by {}", end.strftime("%F %T")))
    });
    format!("{}{}", seconds(step), end.unwrap_or_default())
}
