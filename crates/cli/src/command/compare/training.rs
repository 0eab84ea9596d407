//! How contenders are really trained.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use shardloom::cluster::Cluster;
use shardloom::data::TEXT_FIELD;
use shardloom::plan::{Plan, Uniform};
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{Data, Model, Sampling, Session, TextTokenizer, uniform_plan_in_chunks};

use super::entry::{Entry, Refusals};
use super::row::{Numbers, mean};
use super::trained::{ToLoss, Trained, waits};
use crate::command::train::run::History;
use crate::command::train::{DRAIN_EVERY, TIMEOUT};
use crate::command::{DataOptions, open_data};
use crate::failure::Failure;
use crate::number::{finite, not_negative, whole};
use crate::terminal::Terminal;

/// How each is really trained.
#[derive(Debug, Args)]
#[command(next_help_heading = "Really train")]
pub struct Training {
    /// Train each instead of simulating it
    #[arg(long, requires = "data")]
    pub run: bool,

    /// Text or a table to train on, as for `shardloom train`. May be given several times
    #[arg(long, value_name = "PATH", requires = "run")]
    data: Vec<PathBuf>,

    /// Steps of each [default: 10, or with --until-loss 1000, which are the most]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU64>, requires = "run")]
    steps: Option<NonZeroU64>,

    /// Train each so many times from the start, in turn (the first, the second and so on, then the first again),
    /// and give the mean and the standard deviation of the times of a step
    #[arg(
        long, value_name = "N", default_value = "1", value_parser = whole::<NonZeroU32>,
        requires = "run"
    )]
    repeats: NonZeroU32,

    /// Train each until the mean training loss of the last 10 steps (of all, before there are so many) is this or
    /// less, and say how many steps and how much time that took
    #[arg(long, value_name = "LOSS", value_parser = finite, requires = "run")]
    pub until_loss: Option<f64>,

    /// `bytes` or a tokenizer.json
    #[arg(long, value_name = "TOKENIZER", default_value = "bytes", requires = "run")]
    tokenizer: String,

    /// Folder in which encoded text is kept for further runs [default: .shardloom-cache beside the text]
    #[arg(long, value_name = "DIR", requires = "run")]
    cache: Option<PathBuf>,

    /// The field that is the text of a document, in files of JSON lines
    #[arg(long, value_name = "FIELD", default_value = TEXT_FIELD, requires = "run")]
    text_field: String,

    /// The learning rate
    #[arg(
        long, value_name = "RATE", default_value_t = 1e-3, value_parser = not_negative,
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

/// All that plans of the same model are trained with.
pub struct Trial<'a> {
    model: &'a Model,
    tokenizer: &'a TextTokenizer,
    training: &'a Training,
    learning_rate: LearningRate,
}

impl Training {
    /// The tokenizer of the data.
    pub fn tokenizer(&self) -> Result<TextTokenizer, Failure> {
        Ok(TextTokenizer::open(&self.tokenizer)?)
    }

    /// The most steps of each contender.
    fn steps(&self) -> u64 {
        let usual = if self.until_loss.is_some() { 1000 } else { 10 };
        self.steps.map_or(usual, NonZeroU64::get)
    }

    /// What is needed to train.
    ///
    /// # Errors
    /// If the data or the learning rate cannot be used, which is said before anything is trained.
    pub fn trial<'a>(
        &'a self,
        model: &'a Model,
        tokenizer: &'a TextTokenizer,
        terminal: Terminal,
    ) -> Result<Trial<'a>, Failure> {
        let curve = Curve::Constant { peak: self.learning_rate };
        let learning_rate = LearningRate::new(curve).map_err(shardloom::Error::from)?;
        let trial = Trial { model, tokenizer, training: self, learning_rate };
        trial.data(Some(terminal))?;
        Ok(trial)
    }
}

impl Trial<'_> {
    fn data(&self, terminal: Option<Terminal>) -> Result<Data, Failure> {
        let sampling = Sampling { seed: self.training.seed, validation_fraction: 0.0 };
        let (cache, text_field) =
            (self.training.cache.as_deref(), self.training.text_field.as_str());
        let options = DataOptions { cache, text_field, new_head: None, terminal };
        open_data(self.model, &self.training.data, self.tokenizer, sampling, options)
    }

    /// Trains all contenders that have a plan, in turn, and fills their rows. Of one rank, with which they are
    /// compared, each turn begins with a few steps.
    pub fn train_all(
        &self,
        entries: &mut [Entry],
        virtual_time: Option<&Cluster>,
        refusals: &mut Refusals,
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let repeats = self.training.repeats.get();
        let steps = self.training.steps();
        let few = steps.min(ALONE_STEPS);
        let turn = few + steps * entries.len() as u64;
        let bar = terminal.progress(turn * u64::from(repeats));
        let first = entries.iter().find_map(|entry| entry.plan.as_ref());
        let mut alone = first.and_then(|plan| one_rank(self.model, plan));
        let mut alone_seconds = vec![];
        let mut trained: Vec<Vec<Trained>> = entries.iter().map(|_| vec![]).collect();
        for repeat in 0..u64::from(repeats) {
            bar.set_message("one rank");
            bar.set_position(repeat * turn);
            if let Some(plan) = &alone {
                match self.trained(plan, virtual_time, few, None, &bar) {
                    Ok(found) => alone_seconds.push(found.step_seconds),
                    // As where it has too little memory.
                    Err(failure) if failure.refusal().is_some() => alone = None,
                    Err(failure) => return Err(failure),
                }
            }
            for (index, (entry, trained)) in entries.iter_mut().zip(&mut trained).enumerate() {
                bar.set_message(entry.row.method.clone());
                bar.set_position(repeat * turn + few + steps * index as u64);
                let Some(plan) = &entry.plan else { continue };
                match self.trained(plan, virtual_time, steps, self.training.until_loss, &bar) {
                    Ok(found) => trained.push(found),
                    Err(failure) => {
                        refusals.add(&mut entry.row, failure)?;
                        entry.plan = None;
                    }
                }
            }
        }
        bar.finish_and_clear();
        let alone_seconds = mean(alone_seconds.into_iter());
        for (entry, trained) in entries.iter_mut().zip(&trained) {
            if entry.plan.is_some() {
                entry.row.numbers = Numbers::trained(trained, alone_seconds);
            }
        }
        Ok(())
    }

    /// Trains `plan`, in real time or in the virtual time of a cluster, at most so many steps, and records the
    /// last ones; with a loss, those after it is reached.
    fn trained(
        &self,
        plan: &Plan,
        virtual_time: Option<&Cluster>,
        steps: u64,
        until_loss: Option<f64>,
        bar: &ProgressBar,
    ) -> Result<Trained, Failure> {
        let settings = Settings {
            seed: self.training.seed,
            learning_rate: self.learning_rate,
            on_non_finite: OnNonFinite::Stop,
            timeout: TIMEOUT,
            clock: virtual_time.map_or(RunClock::Wall, |it| RunClock::Virtual(it.clone())),
        };
        let mut session = Session::start(self.model, plan, self.data(None)?, settings)?;
        let mut history = History::default();
        let mut done: Vec<(f64, f64)> = vec![];
        let mut to_loss = None;
        let (timeline, recorded) = loop {
            let left = steps - done.len() as u64;
            // Without a flush steps follow each other, and times are of all of them.
            let row = if session.runs_ahead() { left.min(DRAIN_EVERY.get()) } else { 1 };
            let count = u32::try_from(row).expect("rows are short");
            let recording = to_loss.is_some() || row == left;
            let (trained, timeline) = match recording {
                true => {
                    let (trained, timeline) = session.train_steps_recorded(count)?;
                    (trained, Some(timeline))
                }
                false => (session.train_steps(count)?, None),
            };
            history.step_seconds.extend(trained.iter().map(|step| step.seconds));
            done.extend(trained.iter().map(|step| (step.loss, step.seconds)));
            bar.inc(row);
            to_loss = until_loss.and_then(|loss| ToLoss::of(&done, loss));
            if let Some(timeline) = timeline {
                break (timeline, row);
            }
        };
        let sent_bytes: u64 = session.trainer().sent_bytes_per_rank().iter().sum();
        Ok(Trained {
            step_seconds: history.median_step_seconds().expect("there is at least one step"),
            utilisation: 1.0 - timeline.bubble_fraction(),
            wait_fraction: timeline.dependency_idle_fraction(),
            waits: waits(&timeline) / recorded as f64,
            sent_bytes: sent_bytes / done.len() as u64,
            peak_bytes: session.trainer().peak_bytes_per_rank().iter().copied().max().unwrap_or(0),
            final_loss: done.last().map_or(f64::NAN, |(loss, _)| *loss),
            to_loss,
        })
    }
}

/// Steps of one rank that are trained for its time.
const ALONE_STEPS: u64 = 10;

/// The plan of one rank for what `plan` does, in as many micro-batches; none if there is none.
fn one_rank(model: &Model, plan: &Plan) -> Option<Plan> {
    let numbers = Uniform {
        global_batch: plan.global_batch,
        microbatches: plan.microbatches,
        precision: plan.precision,
        optimizer: plan.optimizer,
        clip_norm: plan.clip_norm,
        ..Uniform::default()
    };
    let frozen = plan.parameters.iter().filter(|it| it.frozen).cloned().collect();
    let chunks = numbers.least_chunks();
    let alone = uniform_plan_in_chunks(model, &numbers, &plan.cluster, chunks, frozen).ok()?;
    let Plan { attention, mask_documents, loss_scale, .. } = *plan;
    Some(Plan { attention, mask_documents, loss_scale, ..alone })
}
