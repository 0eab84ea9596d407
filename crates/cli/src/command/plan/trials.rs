//! Trials of a method that tries strategies one after another: how many, what is known of earlier ones, and whether
//! they are simulated or really made.

use std::error::Error;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Args;
use shardloom::cluster::Cluster;
use shardloom::data::TEXT_FIELD;
use shardloom::methods::Method;
use shardloom::plan::Plan;
use shardloom::program::quantity::seconds;
use shardloom::search::Request;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{
    Data, Model, Planned, Sampling, TextTokenizer, measured_step_seconds, names_only_this_machine,
    plan_by_measured_trials, tokenizer_of,
};

use crate::command::in_options::of_request;
use crate::command::train::TIMEOUT;
use crate::command::{DataOptions, open_data};
use crate::failure::Failure;
use crate::number::whole;
use crate::terminal::Terminal;

/// What trials there are, and how each is made.
#[derive(Args, Debug)]
#[command(next_help_heading = "Trials")]
pub struct Trials {
    /// Strategies that a method tries, if it is one that tries some, such as autosync [default: the method's]
    #[arg(long, value_name = "N", requires = "method", value_parser = whole::<usize>)]
    trials: Option<usize>,

    /// What the method's random choices follow from
    #[arg(long, value_name = "N", requires = "method", default_value_t = 0)]
    trials_seed: u64,

    /// A JSON file of earlier trials, of this model and cluster or of others, to which those that are made are
    /// added; it need not be there yet
    #[arg(long, value_name = "FILE", requires = "method")]
    trials_file: Option<PathBuf>,

    /// Let strategies that are tried round the gradients that are exchanged to 16 bits
    #[arg(long, requires = "method")]
    trials_compressed: bool,

    /// Measure strategies instead of simulating them: each trains on these data on this machine for --trials-steps
    /// steps. Data as `shardloom train` takes them, --cluster local or local:N. May be given several times
    #[arg(long, value_name = "PATH", requires = "method")]
    trials_data: Vec<PathBuf>,

    /// Steps of a trial that are measured, after one that is not
    #[arg(long, value_name = "N", requires = "trials_data", default_value = "5",
          value_parser = whole::<NonZeroU32>)]
    trials_steps: NonZeroU32,

    /// `bytes` or a tokenizer.json for the data of trials [default: that of a MODEL that is a folder with one, else
    /// bytes]
    #[arg(long, value_name = "TOKENIZER", requires = "trials_data")]
    trials_tokenizer: Option<String>,
}

/// The learning rate of trials, which last too few steps for it to matter.
const LEARNING_RATE: f64 = 1e-4;

impl Trials {
    /// What a request says of trials.
    pub fn of_request(&self) -> shardloom::search::Trials {
        shardloom::search::Trials {
            count: self.trials,
            seed: self.trials_seed,
            compressed: self.trials_compressed,
            file: self.trials_file.clone(),
        }
    }

    /// The trials that are really made, if some are: refuses what cannot be tried on the machines that `cluster` names
    /// and on the data; `text` is what names the model.
    pub fn made<'a>(
        &'a self,
        (model, text): (&'a Model, &str),
        cluster: &str,
        terminal: Terminal,
    ) -> Result<Option<MadeTrials<'a>>, Failure> {
        if self.trials_data.is_empty() {
            return Ok(None);
        }
        if !names_only_this_machine(cluster) {
            let message = format!(
                "--trials-data: trials are made on this machine, and not on {cluster}; give --cluster local, or \
                 leave it out to have trials simulated"
            );
            return Err(Failure::usage("--trials-data", message));
        }
        let of_model = tokenizer_of(Path::new(text)).map(|path| path.display().to_string());
        let name = self.trials_tokenizer.clone().or(of_model);
        let tokenizer = TextTokenizer::open(name.as_deref().unwrap_or("bytes"))?;
        let sampling = Sampling { seed: 0, validation_fraction: 0.0 };
        // What is wrong with the data is said before anything is measured, and text is encoded once.
        let options = DataOptions {
            cache: None,
            text_field: TEXT_FIELD,
            new_head: None,
            terminal: Some(terminal),
        };
        open_data(model, &self.trials_data, &tokenizer, sampling, options)?;
        let (data, steps) = (&self.trials_data, self.trials_steps.get());
        Ok(Some(MadeTrials { model, data, tokenizer, sampling, steps }))
    }
}

/// Trials that are really made.
pub struct MadeTrials<'a> {
    model: &'a Model,
    data: &'a [PathBuf],
    tokenizer: TextTokenizer,
    sampling: Sampling,
    /// How many of a trial are measured.
    steps: u32,
}

impl MadeTrials<'_> {
    /// The plan that `method` finds by training with each strategy.
    pub fn plan(
        &self,
        cluster: &Cluster,
        request: &Request,
        method: &Method,
        terminal: Terminal,
    ) -> Result<Planned, Failure> {
        let &MadeTrials { model, data, ref tokenizer, sampling, steps } = self;
        let rate = LearningRate::new(Curve::Constant { peak: LEARNING_RATE });
        let settings = Settings {
            seed: sampling.seed,
            learning_rate: rate.map_err(shardloom::Error::from)?,
            on_non_finite: OnNonFinite::Continue,
            timeout: TIMEOUT,
            clock: RunClock::Wall,
        };
        let spinner = terminal.spinner("making trials");
        let mut made = 0;
        let measure = |plan: &Plan| {
            let data = Data::open(model, data, tokenizer, sampling)?;
            let step_seconds = measured_step_seconds(model, plan, data, settings.clone(), steps)?;
            made += 1;
            spinner.set_message(format!("trial {made}: {} a step", seconds(step_seconds)));
            Ok::<_, Box<dyn Error + Send + Sync>>(step_seconds)
        };
        let planned = plan_by_measured_trials(model, cluster, request, method, measure);
        spinner.finish_and_clear();
        planned.map_err(of_request)
    }
}
