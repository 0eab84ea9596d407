//! `shardloom compare`: schedules side by side.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use shardloom::cluster::Cluster;
use shardloom::plan::{Plan, ScheduleKind};
use shardloom::program::quantity::{bytes, percent, seconds, signed_percent};
use shardloom::program::timeline::{Activity, Picos, Timeline};
use shardloom::sim::Fit;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{Data, Defaults, Model, Sampling, Session, TextTokenizer, simulate, usual_request};

use super::ProfileFile;
use super::dimensions::{Dimensions, Place};
use super::order::{Order, order};
use super::plan_line::counted;
use super::train::run::History;
use super::train::{DRAIN_EVERY, TIMEOUT};
use crate::failure::Failure;
use crate::number::{decimal, whole};
use crate::table::table;
use crate::terminal::Terminal;

/// Compare schedules on the same devices, with the same batch and micro-batches
///
/// Each is simulated on a cluster, or with --run really trained on this machine: in real time, or in the
/// virtual time of a cluster that is given. Schedules that do not exist for these numbers are listed with
/// the reason.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom compare gpt-2-xl --cluster a100-80g:8 --pp 8 --global-batch 64
  shardloom compare gpt-2-xl --cluster a100-80g:8 --pp 4 --dp 2 --global-batch 64 --microbatches 8 \\
      --schedules 1f1b,interleaved:2,interleaved:4,hanayo,chimera
  shardloom compare gpt:layers=6,hidden=128,heads=4 --seq 128 --pp 2 --schedules gpipe,1f1b \\
      --run --data src

A schedule is a name (`shardloom schedule --help` lists all), with a colon and the stages on each device \
where they are to be more than the fewest.

utilisation: share of the ranks' time in which they compute. waiting: share in which they neither \
compute nor communicate; in a run receiving counts as waiting, since it is mostly waiting for the sender.")]
pub struct Compare {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,

    /// The machines
    #[arg(long, value_name = "CLUSTER", required_unless_present = "run")]
    cluster: Option<String>,

    /// Schedules, separated by commas [default: all]
    #[arg(long, value_name = "KIND[:CHUNKS]", value_delimiter = ',', value_parser = order)]
    schedules: Vec<Order>,

    /// Sequence length [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>)]
    seq: Option<usize>,

    #[command(flatten)]
    profile: ProfileFile,

    #[command(flatten)]
    dimensions: Dimensions,

    #[command(flatten)]
    training: Training,
}

/// How each is really trained.
#[derive(Debug, Args)]
#[command(next_help_heading = "Really train")]
struct Training {
    /// Train each instead of simulating it
    #[arg(long, requires = "data")]
    run: bool,

    /// Text or a table to train on, as for `shardloom train`. May be given several times
    #[arg(long, value_name = "PATH", requires = "run")]
    data: Vec<PathBuf>,

    /// Steps of each
    #[arg(
        long, value_name = "N", default_value = "10", value_parser = whole::<NonZeroU64>,
        requires = "run"
    )]
    steps: NonZeroU64,

    /// `bytes` or a tokenizer.json
    #[arg(long, value_name = "TOKENIZER", default_value = "bytes", requires = "run")]
    tokenizer: String,

    /// The learning rate
    #[arg(
        long, value_name = "RATE", default_value_t = 1e-3, value_parser = decimal,
        requires = "run"
    )]
    learning_rate: f64,

    /// Seed of weights, dropout and the order of samples
    #[arg(
        long, value_name = "SEED", default_value_t = 0, value_parser = whole::<u64>,
        requires = "run"
    )]
    seed: u64,
}

#[derive(Serialize)]
struct Answer {
    microbatches: usize,
    rows: Vec<Row>,
}

/// What came of one schedule.
#[derive(Serialize)]
struct Row {
    method: String,
    step_seconds: Option<f64>,
    utilisation: Option<f64>,
    wait_fraction: Option<f64>,
    peak_bytes: Option<u64>,
    final_loss: Option<f64>,
    /// Whether it fits in memory; null where it was not simulated.
    fit: Option<Fit>,
    /// Why there are no numbers.
    reason: Option<String>,
}

impl Row {
    fn without(method: String, reason: String) -> Row {
        Row {
            method,
            step_seconds: None,
            utilisation: None,
            wait_fraction: None,
            peak_bytes: None,
            final_loss: None,
            fit: None,
            reason: Some(reason),
        }
    }

    fn usable(&self) -> bool {
        self.step_seconds.is_some() && self.fit != Some(Fit::Exceeds)
    }
}

impl Compare {
    /// Compares.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let tokenizer = TextTokenizer::open(&self.training.tokenizer)?;
        let vocabulary = self.training.run.then(|| tokenizer.tokenizer().vocabulary_size());
        let defaults = Defaults { sequence_length: self.seq, vocabulary };
        let model = Model::load_with(&self.model, defaults)?;
        let cluster = match &self.cluster {
            Some(text) => Some(super::load_cluster(text, &self.profile.local()?, terminal)?),
            None => None,
        };
        let place = match (&self.cluster, &cluster) {
            (Some(text), Some(cluster)) if !self.training.run => {
                let batch = self.dimensions.global_batch();
                Place::on(text, &usual_request(&model, cluster, text, batch))
            }
            _ => Place::here(&self.dimensions),
        };
        // An order that is written down is a plan's.
        let known = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
        let every: Vec<Order> =
            known.map(|kind| Order { kind, chunks: None, versions: None }).collect();
        let orders = if self.schedules.is_empty() { &every[..] } else { &self.schedules };
        let microbatches = self.dimensions.microbatches(&model, orders);
        let settings = match self.training.run {
            true => {
                // What is wrong with the data is said before anything is trained.
                self.data(&model, &tokenizer)?;
                Some(self.settings(cluster.as_ref())?)
            }
            false => None,
        };
        let steps = if self.training.run { self.training.steps.get() } else { 1 };
        let bar = terminal.progress(orders.len() as u64 * steps);
        let mut rows = vec![];
        let mut refusals = vec![];
        for order in orders {
            bar.set_message(order.to_string());
            bar.set_position(rows.len() as u64 * steps);
            let plan = self.dimensions.plan(&model, *order, microbatches, &place);
            let row = plan.and_then(|plan| match (&settings, &cluster) {
                (Some(settings), _) => {
                    let data = self.data(&model, &tokenizer)?;
                    self.trained(&model, &plan, (data, settings.clone()), &bar)
                }
                (None, Some(cluster)) => simulated(&model, &plan, cluster),
                (None, None) => unreachable!("the parser wants a cluster or --run"),
            });
            let method = order.to_string();
            rows.push(match row {
                Ok(row) => Row { method, ..row },
                Err(failure) => match failure.refusal().map(str::to_owned) {
                    Some(reason) => {
                        refusals.push(failure);
                        Row::without(method, reason)
                    }
                    None => return Err(failure),
                },
            });
        }
        bar.finish_and_clear();
        // What is wrong with all of them is an error, and not a result.
        if refusals.len() == rows.len()
            && let Some(first) = refusals.into_iter().next()
        {
            return Err(first);
        }
        let seconds = |row: &Row| row.step_seconds.unwrap_or(f64::INFINITY);
        rows.sort_by(|one, other| {
            let unusable = |row: &Row| !row.usable();
            unusable(one).cmp(&unusable(other)).then(seconds(one).total_cmp(&seconds(other)))
        });
        let answer = Answer { microbatches, rows };
        match terminal.json() {
            true => terminal.object(&answer),
            false => self.show(&model, &answer, &place, terminal),
        }
    }

    fn data(&self, model: &Model, tokenizer: &TextTokenizer) -> Result<Data, Failure> {
        let sampling = Sampling { seed: self.training.seed, validation_fraction: 0.0 };
        Ok(Data::open(model, &self.training.data, tokenizer, sampling)?)
    }

    fn settings(&self, cluster: Option<&Cluster>) -> Result<Settings, Failure> {
        let curve = Curve::Constant { peak: self.training.learning_rate };
        Ok(Settings {
            seed: self.training.seed,
            learning_rate: LearningRate::new(curve).map_err(shardloom::Error::from)?,
            on_non_finite: OnNonFinite::Stop,
            timeout: TIMEOUT,
            clock: cluster.map_or(RunClock::Wall, |it| RunClock::Virtual(it.clone())),
        })
    }

    /// Trains `plan`, and records the last step.
    fn trained(
        &self,
        model: &Model,
        plan: &Plan,
        (data, settings): (Data, Settings),
        bar: &ProgressBar,
    ) -> Result<Row, Failure> {
        let mut session = Session::start(model, plan, data, settings)?;
        let steps = self.training.steps.get();
        let mut history = History::default();
        let mut final_loss = None;
        let mut done = 0;
        while done < steps {
            // Without a flush steps follow each other, and times are of all of them.
            let row = if session.runs_ahead() { (steps - done).min(DRAIN_EVERY.get()) } else { 1 };
            done += row;
            let row = u32::try_from(row).expect("rows are short");
            let trained = if done == steps {
                let (trained, timeline) = session.train_steps_recorded(row)?;
                history.measured = Some(timeline);
                trained
            } else {
                session.train_steps(row)?
            };
            history.step_seconds.extend(trained.iter().map(|step| step.seconds));
            final_loss = trained.last().map(|step| step.loss);
            bar.inc(u64::from(row));
        }
        let measured = history.measured.as_ref();
        Ok(Row {
            method: String::new(),
            step_seconds: history.median_step_seconds(),
            utilisation: measured.map(|timeline| 1.0 - timeline.bubble_fraction()),
            wait_fraction: measured.map(waiting),
            peak_bytes: session.trainer().peak_bytes_per_rank().iter().copied().max(),
            final_loss,
            fit: None,
            reason: None,
        })
    }

    fn show(
        &self,
        model: &Model,
        answer: &Answer,
        place: &Place,
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let how = match (self.training.run, &self.cluster) {
            (false, _) => format!("simulated on {}", place.cluster),
            (true, None) => "trained here".to_owned(),
            (true, Some(cluster)) => format!("trained here in the virtual time of {cluster}"),
        };
        terminal.line(format_args!(
            "{}, {how}: {}, {} in {}",
            model.spec().name(),
            counted(self.dimensions.ranks().unwrap_or(0), "device"),
            counted(self.dimensions.global_batch(), "sample"),
            counted(answer.microbatches, "micro-batch"),
        ))?;
        let fastest = answer.rows.iter().find(|row| row.usable());
        let fastest = fastest.and_then(|row| row.step_seconds);
        let measured = answer.rows.iter().filter(|row| row.step_seconds.is_some());
        let mut heading = vec!["schedule", "step", "", "utilisation", "waiting", "peak memory"];
        heading.extend(self.training.run.then_some("loss"));
        let text =
            |value: Option<f64>, show: fn(f64) -> String| value.map(show).unwrap_or_default();
        let row = |(position, row): (usize, &Row)| {
            let step = row.step_seconds.unwrap_or(f64::NAN);
            let beside = match (row.fit, fastest) {
                (Some(Fit::Exceeds), _) => "does not fit".to_owned(),
                _ if position == 0 => "fastest".to_owned(),
                (_, Some(fastest)) => signed_percent(step / fastest - 1.0),
                (_, None) => String::new(),
            };
            let mut cells = vec![
                row.method.clone(),
                seconds(step),
                beside,
                text(row.utilisation, percent),
                text(row.wait_fraction, percent),
                row.peak_bytes.map(bytes).unwrap_or_default(),
            ];
            cells.extend(row.final_loss.map(|loss| format!("{loss:.4}")));
            cells
        };
        let rows: Vec<Vec<String>> = measured.enumerate().map(row).collect();
        terminal.text(table(&heading, &rows))?;
        let refused =
            answer.rows.iter().filter_map(|row| Some((&row.method, row.reason.as_ref()?)));
        for (position, (method, reason)) in refused.enumerate() {
            if position == 0 {
                terminal.line("\nNot with these numbers:")?;
            }
            terminal.line(format_args!("- {method}: {reason}"))?;
        }
        Ok(())
    }
}

fn simulated(model: &Model, plan: &Plan, cluster: &Cluster) -> Result<Row, Failure> {
    let prediction = simulate(model, plan, cluster, true)?;
    let summary = &prediction.summary;
    let ranks: f64 = summary.ranks.iter().map(|rank| rank.multiplicity as f64).sum();
    let idle: f64 =
        summary.ranks.iter().map(|rank| rank.multiplicity as f64 * rank.idle_seconds).sum();
    Ok(Row {
        method: String::new(),
        step_seconds: Some(summary.step_seconds),
        utilisation: Some(1.0 - summary.bubble_fraction),
        wait_fraction: Some(idle / (ranks * summary.step_seconds)),
        peak_bytes: summary.ranks.iter().map(|rank| rank.peak_bytes).max(),
        final_loss: None,
        fit: prediction.memory.iter().map(|memory| memory.fit()).max(),
        reason: None,
    })
}

/// Share of the ranks' time in which they neither compute nor send nor take part in a collective.
fn waiting(timeline: &Timeline) -> f64 {
    let makespan = timeline.makespan().seconds();
    let ranks = timeline.tracks.len() as f64;
    if makespan == 0.0 || ranks == 0.0 {
        return 0.0;
    }
    let at_work =
        timeline.tracks.iter().map(|track| track.covered(|it| it.activity != Activity::Receive));
    1.0 - at_work.map(Picos::seconds).sum::<f64>() / (ranks * makespan)
}
