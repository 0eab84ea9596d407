//! Contenders that are really trained.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use shardloom::cluster::Cluster;
use shardloom::data::TEXT_FIELD;
use shardloom::plan::Plan;
use shardloom::program::timeline::Timeline;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{Data, Model, Sampling, Session, TextTokenizer};

use super::row::Numbers;
use crate::command::train::run::History;
use crate::command::train::{DRAIN_EVERY, TIMEOUT};
use crate::command::{DataOptions, open_data};
use crate::failure::Failure;
use crate::number::{decimal, whole};
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

    /// Steps of each
    #[arg(
        long, value_name = "N", default_value = "10", value_parser = whole::<NonZeroU64>,
        requires = "run"
    )]
    steps: NonZeroU64,

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

    /// Steps of each contender: one of the simulator.
    pub fn steps(&self) -> u64 {
        if self.run { self.steps.get() } else { 1 }
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
        let options = DataOptions { cache, text_field, terminal };
        open_data(self.model, &self.training.data, self.tokenizer, sampling, options)
    }

    /// Trains `plan`, in real time or in the virtual time of a cluster, and records the last step.
    pub fn trained(
        &self,
        plan: &Plan,
        virtual_time: Option<&Cluster>,
        bar: &ProgressBar,
    ) -> Result<Numbers, Failure> {
        let settings = Settings {
            seed: self.training.seed,
            learning_rate: self.learning_rate,
            on_non_finite: OnNonFinite::Stop,
            timeout: TIMEOUT,
            clock: virtual_time.map_or(RunClock::Wall, |it| RunClock::Virtual(it.clone())),
        };
        let mut session = Session::start(self.model, plan, self.data(None)?, settings)?;
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
        Ok(Numbers {
            step_seconds: history.median_step_seconds(),
            utilisation: measured.map(|timeline| 1.0 - timeline.bubble_fraction()),
            wait_fraction: measured.map(Timeline::dependency_idle_fraction),
            peak_bytes: session.trainer().peak_bytes_per_rank().iter().copied().max(),
            final_loss,
            fit: None,
        })
    }
}
