//! `shardloom validate --log`: a run of one's own beside the prediction for its plan.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use shardloom::cluster::{Cluster, Stack};
use shardloom::exchange::Project;
use shardloom::plan::{Axis, Plan};
use shardloom::program::quantity::{bytes, counted, percent, seconds, signed_percent};
use shardloom::search::{Circumstance, Needed, StepPart};
use shardloom::{Model, circumstances, read_plan_and_model, simulate, stack_of, step_parts};
use shardloom_validate::{
    Argument, Batch, LogFormat, LoggedArgument, LoggedStep, Pace, StepSize, TrainingLog, read_log,
};

use super::super::interval::Interval;
use super::super::plan_line::plan_line;
use super::super::{DeviceAnswer, ProfileFile, StackAnswer, load_cluster};
use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

/// The most slow steps and circumstances that are told to people.
const MOST: usize = 8;

/// Without an interval, how far from the prediction a measured time may be before anything is to explain.
const CLOSE: f64 = 0.05;

/// A log, and what it is to be compared with.
#[derive(Debug, Args)]
pub struct LogOptions {
    /// Compare a run of one's own with the prediction for its plan: a log of Megatron-LM, torchtitan,
    /// DeepSpeed or nanotron, or a table with a time for each step
    #[arg(long, value_name = "FILE", requires = "plan",
          conflicts_with_all = ["only", "rows", "residuals", "html", "force"])]
    pub log: Option<PathBuf>,

    /// The plan that the run followed, as `shardloom plan -o` and `shardloom import` write it
    #[arg(long, value_name = "PLAN", requires = "log")]
    plan: Option<PathBuf>,

    /// The devices that it ran on [default: the plan's]
    #[arg(long, value_name = "CLUSTER", requires = "log")]
    cluster: Option<String>,

    /// How many of the log's first steps to leave out [default: those that take over 10% longer than the
    /// median of the last half]
    #[arg(long, value_name = "N", requires = "log")]
    warm_up: Option<usize>,

    #[command(flatten)]
    profile: ProfileFile,
}

#[derive(Serialize)]
struct Answer<'a> {
    log: String,
    format: &'static str,
    steps: usize,
    warm_up_steps: usize,
    /// Steps that are left out as they have another batch than the plan.
    other_batch_steps: usize,
    measured: Measured,
    slow_steps: Vec<SlowStep>,
    stack: StackAnswer,
    devices: Vec<DeviceAnswer>,
    predicted_seconds: f64,
    predicted_seconds_interval: Option<[f64; 2]>,
    verdict: Verdict,
    /// Measured over predicted, less 1.
    difference: f64,
    memory: Option<Memory>,
    /// What would have to be slower; empty where there is nothing to explain.
    parts: Vec<Part>,
    /// What would make it so, the closest first; empty where there is nothing to explain.
    circumstances: Vec<Alternative<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Measured {
    median_seconds: f64,
    low_seconds: f64,
    high_seconds: f64,
}

#[derive(Serialize)]
struct SlowStep {
    step: u64,
    seconds: f64,
}

#[derive(Clone, Copy, Serialize)]
struct Memory {
    measured_bytes: f64,
    /// Whether that is what was reserved, with gaps between tensors.
    reserved: bool,
    predicted_bytes: u64,
}

#[derive(Serialize)]
struct Part {
    name: &'static str,
    seconds: f64,
    /// How many times as slow it would have to be; null if that cannot be, or follows from the rest.
    times: Option<f64>,
}

#[derive(Serialize)]
struct Alternative<'a> {
    what: &'a str,
    step_seconds: f64,
    /// Over measured time, less 1.
    error: f64,
    peak_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Inside,
    Faster,
    Slower,
    NoInterval,
}

impl Verdict {
    fn of(measured: f64, interval: Option<[f64; 2]>) -> Verdict {
        match interval {
            None => Verdict::NoInterval,
            Some([low, _]) if measured < low => Verdict::Faster,
            Some([_, high]) if measured > high => Verdict::Slower,
            Some(_) => Verdict::Inside,
        }
    }
}

/// A run beside its prediction.
struct Comparison {
    log: TrainingLog,
    other_batch: usize,
    pace: Pace,
    plan: Plan,
    model: Model,
    cluster: Cluster,
    /// Why it is under this stack, if nobody asked for one.
    stack_from: Option<String>,
    predicted_seconds: f64,
    memory: Option<Memory>,
    interval: Option<Interval>,
    notes: Vec<String>,
}

impl LogOptions {
    /// Compares.
    pub fn run(&self, stack: Option<&str>, terminal: Terminal) -> Result<(), Failure> {
        let (Some(log), Some(plan)) = (&self.log, &self.plan) else {
            return Err(Failure::usage(
                "--plan",
                "--log needs the plan that the run followed: --plan",
            ));
        };
        let comparison = self.compare(log, plan, stack, terminal)?;
        comparison.tell(terminal)
    }

    fn compare(
        &self,
        path: &Path,
        plan: &Path,
        stack: Option<&str>,
        terminal: Terminal,
    ) -> Result<Comparison, Failure> {
        let log = read_log(path).map_err(|error| Failure::file(path, error.to_string()))?;
        let (plan, model) = read_plan_and_model(plan)?;
        let size = StepSize {
            samples: plan.global_batch,
            tokens_per_sample: model.graph().targets_per_sample(),
            devices: plan.device_count(),
        };
        let mut notes = contradictions(&log, &plan, size)?;
        let of_plan = |batch: Batch| batch.is_of(size);
        let (same, other): (Vec<&LoggedStep>, Vec<&LoggedStep>) =
            log.steps.iter().partition(|it| it.batch.is_none_or(of_plan));
        let told = log.steps.iter().find_map(|it| Some((it.batch?, it.line)));
        if let (true, Some((batch, line))) = (same.is_empty(), told) {
            let message =
                format!("its steps have {batch}, and the plan's {} samples", plan.global_batch);
            return Err(of_line(path, line, &message));
        }
        if let Some(batch) = other.first().and_then(|it| it.batch) {
            let steps = counted(other.len(), "step");
            notes.push(format!(
                "{steps} of another batch than the plan's left out (the first: {batch} in step {})",
                other[0].step
            ));
        }
        let times: Vec<(u64, f64)> =
            same.iter().map(|it| (it.step, it.rate.step_seconds(size))).collect();
        let pace = Pace::of(&times, self.warm_up).ok_or_else(|| {
            let (steps, warm_up) = (times.len(), self.warm_up.unwrap_or(0));
            let message = format!(
                "--warm-up {warm_up}: {} has {} of this batch, of which one at least must be left",
                log.path.display(),
                counted(steps, "step")
            );
            Failure::usage("--warm-up", message)
        })?;
        let text = self.cluster.as_deref().unwrap_or(&plan.cluster);
        let cluster = load_cluster(text, &self.profile.local(), terminal)?;
        let (cluster, stack_from) = under_chosen_stack(cluster, stack, log.format)?;
        let spinner = terminal.spinner("simulating");
        let prediction = simulate(&model, &plan, &cluster, true);
        spinner.finish_and_clear();
        let prediction = prediction?;
        let predicted_seconds = prediction.summary.step_seconds;
        let predicted_bytes = prediction.memory.iter().map(|it| it.peak_bytes).max().unwrap_or(0);
        let memory = log.peak.map(|peak| Memory {
            measured_bytes: peak.bytes,
            reserved: peak.reserved,
            predicted_bytes,
        });
        let interval = Interval::of(&plan, &cluster, predicted_seconds);
        Ok(Comparison {
            other_batch: other.len(),
            log,
            pace,
            plan,
            model,
            cluster,
            stack_from,
            predicted_seconds,
            memory,
            interval,
            notes,
        })
    }
}

/// The machines under the stack that was asked for, or else the one that a framework's runs are predicted under, and
/// why.
fn under_chosen_stack(
    cluster: Cluster,
    given: Option<&str>,
    format: LogFormat,
) -> Result<(Cluster, Option<String>), Failure> {
    let (name, why) = match (given, format) {
        (Some(name), _) => (Some(name), None),
        (None, LogFormat::Megatron) => (Some("megatron"), Some("as the log is Megatron-LM's")),
        (None, LogFormat::Nanotron) => {
            (stack_of(Project::Nanotron), Some("as the log is nanotron's"))
        }
        (None, LogFormat::Torchtitan) => {
            let why = "the closest to torchtitan's, without its compiler";
            (stack_of(Project::Torchtitan), Some(why))
        }
        (None, LogFormat::DeepSpeed | LogFormat::Csv) => {
            (None, Some("as the machines usually do and the log says no other; --stack chooses"))
        }
    };
    let cluster = match name.map(Stack::parse).transpose() {
        Ok(Some(stack)) => cluster.under(stack),
        Ok(None) => cluster,
        Err(error) => return Err(Failure::usage("--stack", error.to_string())),
    };
    Ok((cluster, why.map(str::to_owned)))
}

/// What the log says of the run that the plan says otherwise. What makes it another step is refused.
fn contradictions(log: &TrainingLog, plan: &Plan, size: StepSize) -> Result<Vec<String>, Failure> {
    let mut notes = vec![];
    let meshes: BTreeSet<(u32, usize)> =
        plan.stages().map(|(_, stage)| (stage.mesh.dp(), stage.mesh.width(Axis::TP))).collect();
    let uniform = meshes.first().filter(|_| meshes.len() == 1 && plan.pipeline.len() == 1);
    let on_devices: BTreeSet<&[u32]> =
        plan.stages().map(|(_, stage)| &stage.devices.0[..]).collect();
    for &LoggedArgument { argument, value: logged, line } in &log.arguments {
        let planned = match argument {
            Argument::GlobalBatch => Some(size.samples),
            Argument::SequenceLength => Some(size.tokens_per_sample),
            Argument::Devices => Some(size.devices),
            Argument::MicroBatch => {
                uniform.map(|(dp, _)| plan.global_batch / (plan.microbatches * *dp as usize).max(1))
            }
            Argument::TensorParallel => uniform.map(|(_, tp)| *tp),
            Argument::PipelineParallel => uniform.map(|_| on_devices.len()),
        };
        let Some(planned) = planned.filter(|it| *it as u64 != logged) else { continue };
        let text = format!("{argument} is {logged} in the log and {planned} in the plan");
        let is_other_step = matches!(
            argument,
            Argument::GlobalBatch | Argument::SequenceLength | Argument::Devices
        );
        // Step by step a log is more exact than in its arguments.
        let by_step =
            argument == Argument::GlobalBatch && log.steps.iter().any(|it| it.batch.is_some());
        if is_other_step && !by_step {
            return Err(of_line(&log.path, line, &text));
        }
        notes.push(format!("line {line}: {text}"));
    }
    Ok(notes)
}

/// What a line of the log says that cannot be.
fn of_line(log: &Path, line: usize, message: &str) -> Failure {
    Failure::file(log, format!("{}:{line}: {message}", log.display()))
}

impl Comparison {
    fn verdict(&self) -> Verdict {
        Verdict::of(self.pace.median, self.interval.as_ref().map(|it| it.ends))
    }

    fn difference(&self) -> f64 {
        self.pace.median / self.predicted_seconds - 1.0
    }

    fn is_to_explain(&self) -> bool {
        match self.verdict() {
            Verdict::Inside => false,
            Verdict::NoInterval => self.difference().abs() > CLOSE,
            Verdict::Faster | Verdict::Slower => true,
        }
    }

    fn tell(&self, terminal: Terminal) -> Result<(), Failure> {
        let (mut parts, mut others) = (vec![], vec![]);
        if self.is_to_explain() {
            let spinner = terminal.spinner("simulating what would explain the difference");
            let found = step_parts(&self.model, &self.cluster, &self.plan, self.pace.median);
            let changes = circumstances(&self.model, &self.cluster, &self.plan);
            spinner.finish_and_clear();
            (parts, others) = (found?, changes?);
            let distance = |it: &Circumstance| (it.step_seconds / self.pace.median).ln().abs();
            others.sort_by(|one, other| distance(one).total_cmp(&distance(other)));
        }
        match terminal.json() {
            true => terminal.object(&self.answer(&parts, &others)),
            false => self.print(&parts, &others, terminal),
        }
    }

    fn answer<'a>(&'a self, parts: &[StepPart], others: &'a [Circumstance]) -> Answer<'a> {
        let part = |it: &StepPart| Part {
            name: it.name,
            seconds: it.seconds,
            times: match it.needed {
                Needed::Times(times) => Some(times),
                Needed::Impossible | Needed::Follows => None,
            },
        };
        let alternative = |it: &'a Circumstance| Alternative {
            what: &it.what,
            step_seconds: it.step_seconds,
            error: it.step_seconds / self.pace.median - 1.0,
            peak_bytes: it.peak_bytes,
        };
        let slow = |&(step, seconds): &(u64, f64)| SlowStep { step, seconds };
        Answer {
            log: self.log.path.display().to_string(),
            format: self.log.format.name(),
            steps: self.pace.read,
            warm_up_steps: self.pace.warm_up,
            other_batch_steps: self.other_batch,
            measured: Measured {
                median_seconds: self.pace.median,
                low_seconds: self.pace.low,
                high_seconds: self.pace.high,
            },
            slow_steps: self.pace.slow.iter().map(slow).collect(),
            stack: StackAnswer::of(&self.cluster),
            devices: DeviceAnswer::all(&self.cluster),
            predicted_seconds: self.predicted_seconds,
            predicted_seconds_interval: self.interval.as_ref().map(|it| it.ends),
            verdict: self.verdict(),
            difference: self.difference(),
            memory: self.memory,
            parts: parts.iter().map(part).collect(),
            circumstances: others.iter().map(alternative).collect(),
            notes: &self.notes,
        }
    }

    fn print(
        &self,
        parts: &[StepPart],
        others: &[Circumstance],
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let Pace { read, warm_up, median, low, high, slow } = &self.pace;
        let format = self.log.format;
        terminal.line(plan_line(&self.plan))?;
        terminal.line(format_args!(
            "{format} log: {} read, the first {warm_up} left out as warm-up.",
            counted(*read, "step")
        ))?;
        for note in &self.notes {
            terminal.line(format_args!("Note: {note}."))?;
        }
        terminal.line(format_args!(
            "Measured: {} in the median, {} to {} from the 10th to the 90th percentile.",
            seconds(*median),
            seconds(*low),
            seconds(*high),
        ))?;
        if !slow.is_empty() {
            let named = slow.iter().take(MOST);
            let named: Vec<String> =
                named.map(|(step, time)| format!("{step} ({})", seconds(*time))).collect();
            let more = match slow.len().saturating_sub(MOST) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            terminal.line(format_args!("Slow steps: {}{more}.", named.join(", ")))?;
        }
        let within = self.interval.as_ref().map(Interval::described).unwrap_or_default();
        terminal.line(format_args!("Predicted: {}{within}.", seconds(self.predicted_seconds)))?;
        let stack = self.cluster.stack().described();
        let why = self.stack_from.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        terminal.line(format_args!("Software: {stack}{why}."))?;
        terminal.line(format_args!("{}", self.judged()))?;
        if let Some(it) = &self.memory {
            let what = if it.reserved { "reserved, gaps included" } else { "allocated" };
            terminal.line(format_args!(
                "Peak memory of a device: {} {what}, {} predicted ({}).",
                bytes(it.measured_bytes as u64),
                bytes(it.predicted_bytes),
                signed_percent(it.predicted_bytes as f64 / it.measured_bytes - 1.0),
            ))?;
        }
        if parts.is_empty() {
            return Ok(());
        }
        terminal.line("\nIf one part of the predicted step were slower or faster, how much it would have to be:")?;
        let row = |it: &StepPart| {
            let needed = match it.needed {
                Needed::Times(times) => format!("{times:.2} times as long"),
                Needed::Impossible => "no speed of it explains the time".into(),
                Needed::Follows => "follows from the others".into(),
            };
            let share = it.seconds / self.predicted_seconds;
            // What other parts hide may come to light when it takes longer.
            let time = if share < 5e-4 { "hidden".to_owned() } else { seconds(it.seconds) };
            vec![it.name.to_owned(), time, percent(share), needed]
        };
        let rows: Vec<Vec<String>> = parts.iter().map(row).collect();
        terminal.text(table(&["part", "predicted", "share", "for the measured time"], &rows))?;
        terminal
            .line("\nSingle changes, each simulated, the closest to the measured time first:")?;
        let row = |it: &Circumstance| {
            vec![
                it.what.clone(),
                seconds(it.step_seconds),
                signed_percent(it.step_seconds / median - 1.0),
                bytes(it.peak_bytes),
            ]
        };
        let rows: Vec<Vec<String>> = others.iter().take(MOST).map(row).collect();
        terminal.text(table(&["with", "step", "against measured", "peak memory"], &rows))
    }

    /// Whether the measured time is usual.
    fn judged(&self) -> String {
        let difference = self.difference();
        let than = match difference >= 0.0 {
            true => format!("{} longer than predicted", percent(difference)),
            false => format!("{} less than predicted", percent(-difference)),
        };
        match self.verdict() {
            Verdict::Inside => format!("That is {than}, inside the interval: usual."),
            Verdict::Slower => format!("That is {than}, above the interval: slower than usual."),
            Verdict::Faster => format!("That is {than}, below the interval: faster than usual."),
            Verdict::NoInterval => format!(
                "That is {than}; there is no interval, as no published steps of this software are on such devices."
            ),
        }
    }
}
