//! `shardloom train`: trains for real.

mod ending;
mod opening;
mod rate;
pub mod run;
mod shape;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use shardloom::cluster::Stack;
use shardloom::data::TEXT_FIELD;
use shardloom::plan::{Plan, StalenessLimits};
use shardloom::program::quantity::counted;
use shardloom::train::{DelayBound, OnNonFinite, RunClock, Settings};
use shardloom::{
    CheckpointFolder, Data, Defaults, Launched, LocalProfile, Model, Prediction, Sampling, Session,
    TextTokenizer, Unpredicted, folder_has_weights, guarded, predict_here, predict_in_processes,
    read_plan_and_model, simulate, tokenizer_of,
};

use super::cost::Cost;
use super::padding::Padding;
use super::{
    DataOptions, ProfileFile, in_processes, is_plan, note_disturbed, require_kept,
    require_no_option,
};
use crate::failure::Failure;
use crate::interrupt;
use crate::number::{share_below_one, size, whole};
use crate::output_file::OutputFile;
use crate::terminal::Terminal;
use rate::Rate;
use run::{Checkpoints, Job, Validation, claim};
use shape::{Chosen, Shape};

/// Train a model on this machine, every rank a thread; under mpirun or srun, in all processes they start
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom train gpt:layers=4,hidden=128,heads=4 --seq 128 --data crates --steps 200
  shardloom train gpt:layers=4,hidden=128,heads=4 --seq 128 --data crates --steps 200 \\
      --pp 2 --microbatches 4 --checkpoint run --checkpoint-every 50
  shardloom train plan.toml --data text.txt --steps 1000 --checkpoint run --resume
  shardloom train mlp:inputs=4,hidden=32,layers=2,classes=3 --data iris.csv --steps 500 --dp 2
  mpirun -n 4 shardloom train plan.toml --data text.txt --steps 1000
  mpirun -n 4 shardloom train gpt:layers=4,hidden=128,heads=4 --seq 128 --data crates --steps 200

MODEL is a Hugging Face config.json, a model TOML, a preset (gpt-2), or a family with parameters \
(gpt:layers=4,hidden=128,heads=4,seq=128,vocab=256). Of gpt, llama, u-transformer and lstm, \
seq may be left to --seq and vocab to the tokenizer.")]
pub struct Train {
    /// A plan file, as `shardloom plan -o` writes it, or a model
    #[arg(value_name = "PLAN|MODEL")]
    what: String,

    /// Text to train on: a file, or a folder with all text below it; documents in JSON lines (.jsonl) or Parquet
    /// (.parquet; built with --features parquet); tokens as Megatron-LM (.bin with .idx) and datatrove (.ds) write
    /// them, of --tokenizer; of a classifier a table of comma-separated values with the class last, of a DLRM one
    /// of numbers, categories and a label of 0 or 1. May be given several times
    #[arg(long, value_name = "PATH", required = true)]
    data: Vec<PathBuf>,

    /// Steps that the model has been trained for in the end
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU64>)]
    steps: NonZeroU64,

    /// `bytes` or a tokenizer.json [default: that of a MODEL that is a folder with one, else bytes]
    #[arg(long, value_name = "TOKENIZER")]
    tokenizer: Option<String>,

    /// Folder in which encoded text is kept for further runs [default: .shardloom-cache beside the text]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// The field that is the text of a document, in files of JSON lines, or the column, in Parquet
    #[arg(long, value_name = "FIELD", default_value = TEXT_FIELD)]
    text_field: String,

    /// Sequence length [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = size)]
    seq: Option<usize>,

    #[command(flatten)]
    padding: Padding,

    /// Where several processes cannot share the plan's ranks out, find another plan for them, with the same batch,
    /// formats, optimizer and clipping, as after some were lost; one process has all ranks
    #[arg(long)]
    replan: bool,

    /// Seed of weights, dropout and the order of samples
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = whole::<u64>)]
    seed: u64,

    /// What to do where the loss or a gradient is not finite
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnNan::Stop)]
    on_nan: OnNan,

    /// Start from these weights: a safetensors file, or a folder with one or with several and their index, with
    /// names of this program, as `shardloom export` writes it, or of Hugging Face [default: those of a MODEL that is
    /// a folder with some]
    #[arg(long, value_name = "FILE|DIR")]
    weights: Option<PathBuf>,

    /// Give the model a head of so many classes, or tokens of a vocabulary, that starts anew; all other weights are
    /// loaded, of a file that may have another head. A model that is tied shares its embedding with the head
    #[arg(long, value_name = "N", value_parser = size)]
    new_head: Option<usize>,

    /// Share of the data, from its end, that is kept for validation [default: 0.05 if another option
    /// asks for validation, else 0]
    #[arg(long, value_name = "SHARE", value_parser = share_below_one)]
    validation_fraction: Option<f64>,

    /// Validate after every so many steps [default: after the last]
    #[arg(long, value_name = "STEPS", value_parser = whole::<NonZeroU64>)]
    validate_every: Option<NonZeroU64>,

    /// Micro-batches to validate on at most [default: 16]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU64>)]
    validation_microbatches: Option<NonZeroU64>,

    /// Drain a pipeline without flush, or with post-validation, and have replicas wait for each other that
    /// otherwise do not, after every so many steps, besides where it is validated and saved
    #[arg(long, value_name = "STEPS", value_parser = whole::<NonZeroU64>, default_value_t = DRAIN_EVERY)]
    drain_every: NonZeroU64,

    /// Have the bound on the staleness of workers of parameter servers follow how far apart they are, within so many
    /// steps, as in 1:4: it begins with --staleness and may change with every row of steps, which --drain-every says
    #[arg(long, value_name = "LEAST:MOST")]
    staleness_within: Option<StalenessLimits>,

    /// Whether ranks run in real time, or in the modelled time of a cluster
    #[arg(long, value_name = "CLOCK", value_enum, default_value_t = Clock::Wall)]
    clock: Clock,

    /// The cluster of the virtual clock [default: the plan's]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,

    #[command(flatten)]
    profile: ProfileFile,

    #[command(flatten)]
    shape: Shape,

    #[command(flatten)]
    rate: Rate,

    #[command(flatten)]
    files: Files,
}

/// What a run leaves behind.
#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
struct Files {
    /// Write checkpoints in this folder: after the last step, and when interrupted
    #[arg(long, value_name = "FOLDER")]
    checkpoint: Option<PathBuf>,

    /// Write one after every so many steps, too
    #[arg(long, value_name = "STEPS", requires = "checkpoint", value_parser = whole::<NonZeroU64>)]
    checkpoint_every: Option<NonZeroU64>,

    /// Delete all checkpoints but the latest so many [default: keep all]
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = whole::<NonZeroUsize>)]
    keep: Option<NonZeroUsize>,

    /// Go on from the newest sound checkpoint in the folder, if there is one
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write a trace of the predicted and the measured step in Perfetto's binary format, which ui.perfetto.dev opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Overwrite files that exist, and delete another run's checkpoints
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnNan {
    /// End the run; checkpoints from before stay
    Stop,
    /// Leave the update out
    Skip,
    /// Go on regardless
    Continue,
}

impl From<OnNan> for OnNonFinite {
    fn from(what: OnNan) -> OnNonFinite {
        match what {
            OnNan::Stop => OnNonFinite::Stop,
            OnNan::Skip => OnNonFinite::Skip,
            OnNan::Continue => OnNonFinite::Continue,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Clock {
    /// Every rank is a thread that goes on as fast as it can
    Wall,
    /// Kernels really run and their time counts, transfers take what the cluster's links say
    Virtual,
}

/// Steps after which a pipeline without flush is drained, unless told otherwise.
pub const DRAIN_EVERY: NonZeroU64 = NonZeroU64::new(100).expect("a hundred is not zero");

/// The share of the data that is kept for validation where some is asked for and no share is given.
pub const VALIDATION_FRACTION: f64 = 0.05;

/// How long a rank waits for another before it gives up.
pub const TIMEOUT: Duration = Duration::from_secs(600);

impl Train {
    /// Trains; where `mpirun` or `srun` started several processes, with ranks in all of them.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        in_processes(
            terminal,
            |launched| {
                let path = Path::new(&self.what);
                let file = is_plan(path).is_ok_and(|it| it).then_some(path);
                self.lead(launched, terminal).map_err(|failure| failure.in_plan(file, None))
            },
            |launched| self.follow(launched),
        )
    }

    /// Does what this process is told by the one that leads.
    fn follow(&self, launched: &Launched) -> Result<(), Failure> {
        let (validation_fraction, _) = self.validation()?;
        let tokenizer = self.tokenizer()?;
        let (model, _) = self.model_and_plan_file(&tokenizer)?;
        let data = self.data(&model, &tokenizer, validation_fraction, None)?;
        let settings = self.settings(RunClock::Wall)?;
        // A request to stop goes to all processes; the one that leads heeds it.
        interrupt::listen()?;
        Ok(Session::follow(&model, data, settings, launched)?)
    }

    fn lead(&self, launched: Option<&Launched>, terminal: Terminal) -> Result<(), Failure> {
        let html = OutputFile::optional(self.files.html.as_ref(), self.files.force)?;
        let trace = OutputFile::optional(self.files.trace.as_ref(), self.files.force)?;
        OutputFile::require_distinct([&html, &trace])?;
        if let Some(folder) = &self.files.checkpoint {
            for file in [&html, &trace].into_iter().flatten() {
                file.require_no_folder(folder)?;
            }
        }
        let (validation_fraction, validation) = self.validation()?;
        let tokenizer = self.tokenizer()?;
        let folder = self.files.checkpoint.as_deref().map(|it| claim(it, terminal)).transpose()?;
        // Other processes may be in other folders.
        let folder = match launched {
            Some(_) => folder.map(CheckpointFolder::canonical).transpose()?,
            None => folder,
        };
        let local = self.profile.local();
        let (model, plan_file) = self.model_and_plan_file(&tokenizer)?;
        let weights = self.weights.clone().or_else(|| model.weights().map(Path::to_path_buf));
        if self.new_head.is_some() && weights.is_none() {
            let message = "--new-head: all of the model starts anew without --weights";
            return Err(Failure::usage("--new-head", message));
        }
        if let Some(folder) = folder.as_ref().filter(|_| self.files.force && !self.files.resume) {
            let tokenizer = self.tokenizer.as_deref().map(Path::new);
            let given = [Some(Path::new(&self.what)), weights.as_deref(), tokenizer];
            let data = self.data.iter().map(PathBuf::as_path);
            require_kept(folder, given.into_iter().flatten().chain(data))?;
        }
        // What is wrong with the data is said before a search, which may measure this machine first.
        let data = self.data(&model, &tokenizer, validation_fraction, Some(terminal))?;
        let Chosen { plan, search } = match launched {
            None => self.plan(&model, plan_file, &local, terminal)?,
            Some(launched) => {
                self.plan_for_processes(&model, plan_file, (launched, &local), terminal)?
            }
        };
        if let Some(end) = plan.averaging_ends().filter(|&end| end >= self.steps.get()) {
            let message = format!(
                "--steps {}: the plan averages replicas until {end} steps are done (sync.averaging.until, \
                 --average-until), and the run ends before; give more steps, or let it average to the end",
                self.steps
            );
            return Err(Failure::usage("--steps", message));
        }
        let delay_bound = self.delay_bound(&plan)?;
        if let Some(launched) = launched {
            let (ranks, processes) =
                (plan.device_count(), launched.processes().process().of as usize);
            if ranks < processes {
                let idle = processes - ranks;
                terminal.note(format_args!(
                    "{idle} of {processes} processes do nothing under this plan"
                ));
            }
        }
        // What is predicted is what will run.
        let plan = guarded(&plan, self.on_nan.into());
        if validation.is_some() {
            require_microbatch(&data, &plan, validation_fraction)?;
        }
        let (clock, prediction) = match launched {
            None => self.clock(&model, &plan, &local, terminal)?,
            Some(_) if self.clock == Clock::Virtual => {
                let message = "--clock virtual: all ranks are in one process there; start it once";
                return Err(Failure::usage("--clock", message));
            }
            Some(launched) => {
                (RunClock::Wall, predict_in_processes(&model, &plan, &local, launched)?)
            }
        };
        if let Ok(prediction) = &prediction {
            note_disturbed(prediction.disturbed_percent, terminal);
        }
        let prediction_after = match plan.averaging_ends().map(|end| plan.in_step(end)) {
            None => None,
            Some(after) => Some(match (&clock, launched) {
                (RunClock::Virtual(cluster), _) => Ok(simulate(&model, &after, cluster, false)?),
                (RunClock::Wall, None) => predict_here(&model, &after, &local)?,
                (RunClock::Wall, Some(launched)) => {
                    predict_in_processes(&model, &after, &local, launched)?
                }
            }),
        };
        let cost = match (&clock, &prediction) {
            (RunClock::Virtual(cluster), Ok(prediction)) => {
                let targets = model.graph().targets_per_sample();
                Cost::of(&plan, cluster, prediction.summary.step_seconds, targets)
            }
            _ => None,
        };
        let settings = self.settings(clock)?;
        if let Some(folder) = &folder {
            let parameters = model.graph().parameter_count();
            let frozen = plan.frozen_count(model.graph()).map_err(shardloom::Error::from)?;
            let state = plan.optimizer.state_bytes_per_parameter() as u64;
            folder.require_room(4 * parameters + (parameters - frozen) * state)?;
        }
        let checkpoints = folder.map(|folder| Checkpoints {
            folder,
            every: self.files.checkpoint_every,
            keep: self.files.keep,
            resumable: true,
            resume: self.files.resume,
            force: self.files.force,
        });
        let job = Job {
            model,
            data: self.data.clone(),
            tokenizer: data.tokenizer().map(str::to_owned),
            plan,
            search,
            steps: self.steps.get(),
            weights,
            new_head: self.new_head.is_some(),
            checkpoints,
            validation,
            prediction,
            prediction_after,
            cost,
            html,
            trace,
            drain_every: self.drain_every,
            delay_bound,
        };
        job.run(data, settings, launched, terminal)
    }

    /// The bound on staleness that follows how far apart workers are, if it is to.
    fn delay_bound(&self, plan: &Plan) -> Result<Option<DelayBound>, Failure> {
        let Some(StalenessLimits { least, most }) = self.staleness_within else { return Ok(None) };
        let option = "--staleness-within";
        let refuse =
            |why: String| Failure::usage(option, format!("{option} {least}:{most}: {why}"));
        let bound = DelayBound::new(least, most, plan);
        bound.map(Some).map_err(|error| refuse(error.to_string()))
    }

    /// The plan that is asked for.
    fn plan(
        &self,
        model: &Model,
        plan_file: Option<Plan>,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        match plan_file {
            Some(plan) => Ok(plan.into()),
            None => self.shape.plan(model, local, terminal),
        }
    }

    /// The plan that is asked for, where processes can share its ranks; where nothing is said of the split, or
    /// they cannot and another will do, one that is found for them.
    fn plan_for_processes(
        &self,
        model: &Model,
        plan_file: Option<Plan>,
        (launched, local): (&Launched, &LocalProfile),
        terminal: Terminal,
    ) -> Result<Chosen, Failure> {
        self.shape.require_no_ranks()?;
        if plan_file.is_none() && self.shape.leaves_split() {
            return self.shape.found_for(model, (launched, local), terminal);
        }
        let chosen = self.plan(model, plan_file, local, terminal)?;
        match launched.require_shares(&chosen.plan) {
            Err(_) if self.replan => {
                self.shape.found_instead(&chosen.plan, model, (launched, local), terminal)
            }
            checked => Ok(checked.map(|()| chosen)?),
        }
    }

    fn data(
        &self,
        model: &Model,
        tokenizer: &TextTokenizer,
        validation_fraction: f64,
        terminal: Option<Terminal>,
    ) -> Result<Data, Failure> {
        let sampling = Sampling { seed: self.seed, validation_fraction };
        let (cache, text_field) = (self.cache.as_deref(), self.text_field.as_str());
        let options = DataOptions { cache, text_field, new_head: self.new_head, terminal };
        super::open_data(model, &self.data, tokenizer, sampling, options)
    }

    fn settings(&self, clock: RunClock) -> Result<Settings, Failure> {
        let learning_rate = self.rate.learning_rate(self.steps.get())?;
        let (seed, on_non_finite) = (self.seed, self.on_nan.into());
        Ok(Settings { seed, learning_rate, on_non_finite, timeout: TIMEOUT, clock })
    }

    /// The share of the data that is kept for validation, and how it is validated on.
    fn validation(&self) -> Result<(f64, Option<Validation>), Failure> {
        let asking = [
            ("--validate-every", self.validate_every.is_some()),
            ("--validation-microbatches", self.validation_microbatches.is_some()),
        ];
        let asking = asking.into_iter().find(|&(_, given)| given).map(|(option, _)| option);
        match (self.validation_fraction, asking) {
            (None | Some(0.0), None) => Ok((0.0, None)),
            (Some(0.0), Some(option)) => {
                let message = format!(
                    "--validation-fraction 0: {option} needs data to validate on; give a share above \
                     0, or leave it out for {VALIDATION_FRACTION}"
                );
                Err(Failure::usage("--validation-fraction", message))
            }
            (fraction, _) => {
                let microbatches = self.validation_microbatches.map_or(16, NonZeroU64::get);
                let validation = Validation { every: self.validate_every, microbatches };
                Ok((fraction.unwrap_or(VALIDATION_FRACTION), Some(validation)))
            }
        }
    }

    /// Which time ranks live in, and what a step is predicted to be there.
    fn clock(
        &self,
        model: &Model,
        plan: &Plan,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<(RunClock, Result<Prediction, Unpredicted>), Failure> {
        match self.clock {
            Clock::Wall if self.cluster.is_some() => {
                let message = "--cluster is for --clock virtual; in real time, ranks run here";
                Err(Failure::usage("--cluster", message))
            }
            Clock::Wall => Ok((RunClock::Wall, predict_here(model, plan, local)?)),
            Clock::Virtual => {
                let text = self.cluster.as_deref().unwrap_or(&plan.cluster);
                // What runs is this program's own trainer, whatever the machines usually run under.
                let cluster = super::load_cluster(text, local, terminal)?.under(Stack::default());
                let prediction = simulate(model, plan, &cluster, false)?;
                Ok((RunClock::Virtual(cluster), Ok(prediction)))
            }
        }
    }

    /// What text becomes tokens by. Weights in a folder, the model's or those that are given, are of some tokenizer,
    /// so that bytes are only taken for them if they are asked for.
    fn tokenizer(&self) -> Result<TextTokenizer, Failure> {
        let weights = self.weights.as_deref().filter(|weights| weights.is_dir());
        let folder = weights.unwrap_or(Path::new(&self.what));
        let of_model = tokenizer_of(folder).map(|path| path.display().to_string());
        let name = match self.tokenizer.clone().or(of_model) {
            Some(name) => name,
            None if folder_has_weights(folder) => {
                let message = format!(
                    "{} has weights and no tokenizer.json: give --tokenizer FILE, or --tokenizer bytes",
                    folder.display()
                );
                return Err(Failure::usage("--tokenizer", message));
            }
            None => "bytes".into(),
        };
        Ok(TextTokenizer::open(&name)?)
    }

    /// The model, and the plan where a file has one.
    fn model_and_plan_file(
        &self,
        tokenizer: &TextTokenizer,
    ) -> Result<(Model, Option<Plan>), Failure> {
        let path = Path::new(&self.what);
        if is_plan(path)? {
            let seq = self.seq.map(|_| "--seq");
            let (plan, model) = read_plan_and_model(path)?;
            require_no_option(self.shape.given().or(seq).or(self.padding.given()), path)?;
            let size = model.head_size();
            if let Some(wanted) = self.new_head.filter(|&wanted| size != Some(wanted)) {
                let has = size.map_or("no classes".into(), |size| format!("a head of {size}"));
                let message = format!(
                    "--new-head {wanted}: the plan's model has {has}; find a plan for a model with one of {wanted}"
                );
                return Err(Failure::usage("--new-head", message));
            }
            return Ok((model, Some(plan)));
        }
        let vocabulary = Some(tokenizer.tokenizer().vocabulary_size());
        let defaults = Defaults { sequence_length: self.seq, vocabulary };
        let model = Model::load_with(&self.what, defaults)?;
        let model = match self.new_head {
            Some(classes) => model.with_head(classes)?,
            None => model,
        };
        Ok((self.padding.of(model)?, None))
    }
}

/// Makes sure that what is kept for validation fills a micro-batch, without which there is no loss to show.
fn require_microbatch(data: &Data, plan: &Plan, fraction: f64) -> Result<(), Failure> {
    let (kept, needed) = (data.validation_samples(), plan.microbatch_samples());
    if kept >= needed as u64 {
        return Ok(());
    }
    let message = format!(
        "--validation-fraction {fraction} keeps {}, but a micro-batch has {needed}; give a larger share, more data, or \
         more micro-batches",
        counted(kept as usize, "sample")
    );
    Err(Failure::usage("--validation-fraction", message))
}
