//! A training run: a model, a plan and data brought together, with checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardloom_checkpoint::{Checkpoint, Meta, Refused, Store};
use shardloom_data::DataError;
use shardloom_interop::InteropError;
use shardloom_interop::weights::{self, WithoutHead};
use shardloom_plan::{Difference, Plan, diff};
use shardloom_program::timeline::Timeline;
use shardloom_train::learning_rate::LearningRate;
use shardloom_train::{Blueprint, Evaluation, OnNonFinite, Processes, Settings, Step, Trainer};

use crate::checkpoint_folder::latest_step;
use crate::huggingface_folder::{index_with, read_weights};
use crate::lowering::require_sizes;
use crate::processes::Order;
use crate::run_memory::RunMemory;
use crate::{Data, Error, Launched, Model, Result};
use crate::{class_names, trained_tokenizer};

/// A model in training.
///
/// ```
/// use shardloom::plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
/// use shardloom::train::learning_rate::{Curve, LearningRate};
/// use shardloom::train::{OnNonFinite, RunClock, Settings};
/// use shardloom::{Data, Model, Sampling, Session, TextTokenizer, uniform_plan};
///
/// let model = Model::load("gpt:layers=2,hidden=32,heads=2,seq=16,vocab=256")?;
/// let numbers = Uniform {
///     pp: 2,
///     mesh: Mesh::SINGLE,
///     sequence_parallel: false,
///     global_batch: 4,
///     microbatches: 2,
///     schedule: ScheduleKind::OneForwardOneBackward,
///     recompute: Recompute::None,
///     sync: Sync::default(),
///     precision: Precision::FP32,
///     optimizer: Optimizer::default(),
///     clip_norm: Some(1.0),
/// };
/// let plan = uniform_plan(&model, &numbers, "local:2")?;
/// let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
/// let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/session.rs");
/// let data = Data::open(&model, &[source.into()], &TextTokenizer::open("bytes")?, sampling)?;
/// let settings = Settings {
///     seed: 1,
///     learning_rate: LearningRate::new(Curve::Constant { peak: 1e-2 })?,
///     on_non_finite: OnNonFinite::Stop,
///     timeout: std::time::Duration::from_secs(60),
///     clock: RunClock::Wall,
/// };
/// let mut session = Session::start(&model, &plan, data, settings)?;
/// let first = session.step()?.loss;
/// for _ in 0..8 {
///     session.step()?;
/// }
/// assert!(session.step()?.loss < first);
/// # Ok::<(), shardloom::Error>(())
/// ```
pub struct Session {
    trainer: Trainer,
    model: Model,
    plan: Plan,
    /// What its checkpoints hold besides tensors, but for the position.
    meta: Meta,
    memory: RunMemory,
}

/// The most ranks of a run. Every one is a thread with a channel to every other, so that some thousands
/// exhaust a machine, however little they hold.
const MOST_RANKS: usize = 1024;

/// Keys of a checkpoint's further entries.
const LEARNING_RATE: &str = "learning-rate";
const VALIDATION_SAMPLES: &str = "validation-samples";

/// Where a session went on from.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// Steps it had done.
    pub step: u64,
    /// Newer checkpoints that were not used.
    pub refused: Vec<Refused>,
    /// Fields in which the plan differs from the one that the checkpoint was written under.
    pub plan_changes: Vec<Difference>,
    /// The learning rate it was written with, if that differs.
    pub former_learning_rate: Option<LearningRate>,
}

impl Session {
    /// Brings everything together and starts all ranks with fresh weights.
    ///
    /// # Errors
    /// If the plan does not fit the model, it has more than 1024 ranks, or they need more memory than
    /// there is.
    pub fn start(model: &Model, plan: &Plan, data: Data, settings: Settings) -> Result<Session> {
        Session::made(model, plan, data, settings, None)
    }

    /// The same with ranks in several processes, which this one leads: each of the others
    /// [follows](Session::follow). All must see the folder that checkpoints go to, if one is named. Where the plan
    /// has no more devices than there are processes, these are its devices, by number.
    ///
    /// # Errors
    /// As [`Session::start`]; if the processes cannot share the ranks out, or one is gone.
    pub fn lead(
        model: &Model,
        plan: &Plan,
        data: Data,
        settings: Settings,
        launched: &Launched,
        checkpoints: Option<&Path>,
    ) -> Result<Session> {
        let probe = checkpoints.map(Probe::new).transpose()?;
        let folder = probe.as_ref().map(|probe| probe.0.clone());
        let run = Run { probe: folder, ..Run::of(model, plan, &data, &settings) };
        launched.processes().tell(&Order::Run(Box::new(run)))?;
        // All have looked once they meet, in the making of the trainer.
        Session::made(model, plan, data, settings, Some(launched.processes()))
    }

    /// Has this process measure its machine and its ranks train, as the process that leads says, until that ends. The plan is
    /// the leader's; model, data and settings are read here and must be the same.
    ///
    /// # Errors
    /// As [`Session::lead`]; if something differs from what the leader has.
    pub fn follow(
        model: &Model,
        data: Data,
        settings: Settings,
        launched: &Launched,
    ) -> Result<()> {
        let Some(leader) = launched.next_run()? else { return Ok(()) };
        let processes = launched.processes();
        let plan = Plan::from_toml(&leader.plan, "the plan of process 0")?;
        let own = Run::of(model, &plan, &data, &settings);
        if let Some(what) = own.difference(&leader) {
            return Err(Error::OtherProcess { process: processes.process().number, what });
        }
        if let Some(probe) = leader.probe
            && !probe.try_exists().unwrap_or(false)
        {
            let folder = probe.parent().unwrap_or(&probe).to_path_buf();
            return Err(Error::FolderUnseen { folder, process: processes.process().number });
        }
        let (blueprint, _) = blueprint(model, &plan, &data, settings, Some(processes))?;
        Ok(Trainer::follow(blueprint, data.source)?)
    }

    fn made(
        model: &Model,
        plan: &Plan,
        data: Data,
        settings: Settings,
        processes: Option<&Arc<Processes>>,
    ) -> Result<Session> {
        let plan = &guarded(plan, settings.on_non_finite);
        let mut meta = Meta {
            sample_position: 0,
            seed: settings.seed,
            corpus_digest: data.digest.clone(),
            model: model.text(),
            plan: plan.to_toml(),
            // Its settings may change in the middle of a run.
            optimizer: plan.optimizer.name().to_owned(),
            ..Meta::default()
        };
        meta.extra.insert(LEARNING_RATE.into(), as_text(&settings.learning_rate));
        meta.extra.insert(VALIDATION_SAMPLES.into(), data.validation_samples().to_string());
        if let Some(tokenizer) = &data.tokenizer {
            trained_tokenizer::record(&mut meta, tokenizer);
        }
        class_names::record(&mut meta, &data.class_names);
        let (blueprint, memory) = blueprint(model, plan, &data, settings, processes)?;
        let trainer = Trainer::start(blueprint, data.source)?;
        Ok(Session { trainer, model: model.clone(), plan: plan.clone(), meta, memory })
    }

    /// The seed of all random numbers.
    pub fn seed(&self) -> u64 {
        self.meta.seed
    }

    /// Starts from the weights in a safetensors file, or in a folder as Hugging Face's library saves models
    /// (`model.safetensors`, or several files and their index), under this program's names or Hugging Face's.
    ///
    /// # Errors
    /// If a file cannot be read, or they do not hold the model's weights.
    pub fn load_weights(&mut self, path: &Path) -> Result<()> {
        let tensors = read_weights(path)?;
        let weights = weights::import(self.model.spec(), &tensors);
        let weights = weights.map_err(|error| unfit(path, error))?;
        require_finite(path, &weights)?;
        Ok(self.trainer.set_weights(weights)?)
    }

    /// [`load_weights`](Session::load_weights), but for the head, which starts anew as it was drawn for this run,
    /// and for an embedding of another vocabulary. Which parameters start anew is returned.
    ///
    /// # Errors
    /// As [`load_weights`](Session::load_weights) of everything else; if what starts anew is frozen.
    pub fn load_weights_without_head(&mut self, path: &Path) -> Result<Vec<String>> {
        let tensors = read_weights(path)?;
        let WithoutHead { mut parameters, anew } =
            weights::import_without_head(self.model.spec(), &tensors)
                .map_err(|error| unfit(path, error))?;
        drop(tensors);
        require_finite(path, &parameters)?;
        let frozen = self.plan.frozen(self.model.graph())?;
        if let Some(parameter) = anew.iter().find(|name| frozen.contains(name.as_str())) {
            return Err(Error::FrozenAnew { parameter: parameter.clone() });
        }
        let drawn = self.trainer.weights()?;
        parameters.extend(drawn.into_iter().filter(|(name, _)| anew.contains(name)));
        self.trainer.set_weights(parameters)?;
        Ok(anew.into_iter().collect())
    }

    /// Goes on from the newest sound checkpoint in `folder`; nothing happens, and nothing is returned,
    /// if it has no checkpoint at all. The plan may be another than the checkpoint was written under.
    /// Momentum that the former plan did not have begins at zero.
    ///
    /// # Errors
    /// If every checkpoint is damaged, or the newest sound one was written with another model, data,
    /// share of it for validation, seed, kind of optimizer or global batch.
    pub fn resume(&mut self, folder: &Path) -> Result<Option<Resumed>> {
        if latest_step(folder)?.is_none() {
            return Ok(None);
        }
        let (checkpoint, refused) = Store::open(folder)?.load_latest()?;
        let plan_changes = self.require_same_run(&checkpoint)?;
        let (path, step) = (checkpoint.path().to_path_buf(), checkpoint.step());
        let recorded = checkpoint.meta().extra.get(LEARNING_RATE);
        let changed =
            recorded.filter(|&recorded| self.meta.extra.get(LEARNING_RATE) != Some(recorded));
        let former_learning_rate = changed.and_then(|recorded| toml::from_str(recorded).ok());
        self.trainer.resume(checkpoint)?;
        Ok(Some(Resumed { path, step, refused, plan_changes, former_learning_rate }))
    }

    /// Fields in which the plan differs from that of `checkpoint`, which must be of the same run.
    fn require_same_run(&self, checkpoint: &Checkpoint) -> Result<Vec<Difference>> {
        let (theirs, ours) = (checkpoint.meta(), &self.meta);
        let path = checkpoint.path().to_path_buf();
        let other = |what, recorded: String, found: String, rule| {
            Err(Error::OtherRun { path: path.clone(), what, recorded, found, rule })
        };
        if theirs.model != ours.model {
            let rule = "resume with the same model, or start from its weights with a new run";
            return other("the model", theirs.model.clone(), ours.model.clone(), rule);
        }
        if theirs.corpus_digest != ours.corpus_digest {
            let (recorded, found) = (theirs.corpus_digest.clone(), ours.corpus_digest.clone());
            return Err(DataError::CorpusChanged { recorded, found }.into());
        }
        if theirs.seed != ours.seed {
            let rule = "the seed decides the order of samples, so resume with the same";
            return other("the seed", theirs.seed.to_string(), ours.seed.to_string(), rule);
        }
        let [kept, keeps] = [theirs, ours].map(|meta| meta.extra.get(VALIDATION_SAMPLES));
        if let (Some(kept), Some(keeps)) = (kept, keeps)
            && kept != keeps
        {
            let rule = "the rest is trained on in an order of its own, so resume with the same --validate-every and share";
            let text = |samples: &str| format!("{samples} samples");
            return other("what is kept for validation", text(kept), text(keeps), rule);
        }
        if theirs.optimizer != ours.optimizer {
            let rule = "the optimizer's state is of that kind, so resume with the same";
            return other("the optimizer", theirs.optimizer.clone(), ours.optimizer.clone(), rule);
        }
        let expected = self.sample_position(checkpoint.step());
        if theirs.sample_position != expected {
            let rule = "the global batch decides which samples a step has, so resume with the same";
            let text = |position| format!("{position} samples in {} steps", checkpoint.step());
            return other("the global batch", text(theirs.sample_position), text(expected), rule);
        }
        let place = format!("plan of {}", path.display());
        Ok(diff(&Plan::from_toml(&theirs.plan, &place)?, &self.plan))
    }

    /// Trains one step.
    ///
    /// # Errors
    /// If a rank fails, or the loss is not finite and the setting is to stop.
    pub fn step(&mut self) -> Result<Step> {
        Ok(self.trainer.step()?)
    }

    /// Trains one step and records what every rank did when.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_recorded(&mut self) -> Result<(Step, Timeline)> {
        Ok(self.trainer.step_recorded()?)
    }

    /// Trains steps in a row. A plan without flush fills its pipeline at the first and drains it after
    /// the last.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn train_steps(&mut self, steps: u32) -> Result<Vec<Step>> {
        Ok(self.trainer.train_steps(steps)?)
    }

    /// Likewise, and records what every rank did when.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn train_steps_recorded(&mut self, steps: u32) -> Result<(Vec<Step>, Timeline)> {
        Ok(self.trainer.train_steps_recorded(steps)?)
    }

    /// Whether steps run into each other, as they do without a flush, where an update is validated in the next
    /// step, and where replicas do not wait for each other.
    pub fn runs_ahead(&self) -> bool {
        let program = self.trainer.program();
        program.ahead > 0 || program.classes.iter().any(|class| class.late() > 0 || class.fetches())
    }

    /// Mean loss over the first samples that were kept for validation, at most `most` micro-batches of
    /// them, and of a classifier the share of them that it gives their class; nothing if there are too few.
    ///
    /// # Errors
    /// If a rank fails, or data cannot be read.
    pub fn evaluate(&mut self, most: u64) -> Result<Option<Evaluation>> {
        Ok(self.trainer.evaluate(most)?)
    }

    /// How many validation samples [`Session::evaluate`] takes.
    pub fn evaluated_samples(&self, most: u64) -> u64 {
        self.trainer.evaluated_samples(most)
    }

    /// Writes a checkpoint in `folder`, and deletes all but the latest `keep`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&mut self, folder: &Path, keep: Option<NonZeroUsize>) -> Result<PathBuf> {
        let mut meta = self.meta.clone();
        meta.sample_position = self.sample_position(self.next_step());
        Ok(self.trainer.save(folder, meta, keep)?)
    }

    /// The step that comes next, from 0.
    pub fn next_step(&self) -> u64 {
        self.trainer.next_step()
    }

    /// The memory that it needs in this process, as it was before it started.
    pub fn memory(&self) -> RunMemory {
        self.memory
    }

    /// The trainer, for all that it can say.
    pub fn trainer(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    fn sample_position(&self, step: u64) -> u64 {
        step.saturating_mul(self.plan.global_batch as u64)
    }
}

/// What the processes of a run must have in common.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    model: String,
    plan: String,
    corpus_digest: String,
    seed: u64,
    learning_rate: String,
    on_non_finite: String,
    validation_samples: u64,
    /// A file that is there where checkpoints go.
    probe: Option<PathBuf>,
}

/// A file that is there as long as this is, to be seen by other processes.
struct Probe(PathBuf);

/// Before the number of the process that made it, the name of such a file.
const SEEN_BY_ALL: &str = ".seen-by-all-";

impl Probe {
    /// One in a folder that no other run has; those of runs that were killed are deleted.
    fn new(folder: &Path) -> Result<Probe> {
        let folder = folder.canonicalize().map_err(Error::io("look at", folder))?;
        for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
            let entry = entry.map_err(Error::io("list", &folder))?;
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(SEEN_BY_ALL));
            if process.is_some_and(|it| it.parse::<u32>().is_ok()) {
                // What cannot be deleted is empty.
                let _ = fs::remove_file(entry.path());
            }
        }
        let path = folder.join(format!("{SEEN_BY_ALL}{}", std::process::id()));
        fs::write(&path, "").map_err(Error::io("write", &path))?;
        Ok(Probe(path))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // What cannot be deleted is empty.
        let _ = fs::remove_file(&self.0);
    }
}

impl Run {
    fn of(model: &Model, plan: &Plan, data: &Data, settings: &Settings) -> Run {
        Run {
            model: model.text(),
            plan: guarded(plan, settings.on_non_finite).to_toml(),
            corpus_digest: data.digest.clone(),
            seed: settings.seed,
            learning_rate: as_text(&settings.learning_rate),
            on_non_finite: format!("{:?}", settings.on_non_finite),
            validation_samples: data.validation_samples(),
            probe: None,
        }
    }

    /// What differs, besides the plan, which is the leader's.
    fn difference(&self, leader: &Run) -> Option<&'static str> {
        let differs = [
            ("the model", self.model != leader.model),
            ("the data", self.corpus_digest != leader.corpus_digest),
            ("the plan, as it is read,", self.plan != leader.plan),
            ("what is kept for validation", {
                self.validation_samples != leader.validation_samples
            }),
            ("the seed", self.seed != leader.seed),
            ("the learning rate", self.learning_rate != leader.learning_rate),
            ("what is done about numbers that are not finite", {
                self.on_non_finite != leader.on_non_finite
            }),
        ];
        differs.into_iter().find_map(|(what, differs)| differs.then_some(what))
    }
}

/// Weights at `path` that are not those of the model.
fn unfit(path: &Path, source: InteropError) -> Error {
    Error::Weights { path: path.to_path_buf(), index: index_with(path), source: Box::new(source) }
}

/// Makes sure that weights from `path` are numbers: with others every loss would be none, whatever the data.
fn require_finite(path: &Path, weights: &BTreeMap<String, Vec<f32>>) -> Result<()> {
    for (parameter, values) in weights {
        if let Some(element) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::NonFiniteWeights {
                path: path.to_path_buf(),
                parameter: parameter.clone(),
                element,
                value: values[element],
            });
        }
    }
    Ok(())
}

fn as_text(learning_rate: &LearningRate) -> String {
    toml::to_string(learning_rate).expect("a learning rate is a table of a string and numbers")
}

/// What a run is made of, if this machine has room for what of it is here, and how much that is.
fn blueprint(
    model: &Model,
    plan: &Plan,
    data: &Data,
    settings: Settings,
    processes: Option<&Arc<Processes>>,
) -> Result<(Blueprint, RunMemory)> {
    let devices = plan.least_devices();
    if devices > MOST_RANKS {
        return Err(Error::Ranks { ranks: devices, most: MOST_RANKS });
    }
    require_sizes(model, plan)?;
    data.require_documents(plan)?;
    let made = |plan: &Plan, settings| {
        Blueprint::new(plan.graph_of(model.graph()).into_owned(), plan, devices, settings)
    };
    // Where averages end, what follows is there before what ends is gone.
    let after = plan.averaging_ends().map(|end| made(&plan.in_step(end), settings.clone()));
    let after = after.transpose()?;
    let blueprint = made(plan, settings)?;
    let here = processes.map_or(1.0, |processes| processes.share_here(blueprint.program()));
    let together = after.map_or(0, |after| after.needed_bytes());
    let memory = RunMemory::of(&blueprint, together, here, data.memory_bytes()).require()?;
    let blueprint = match processes {
        Some(processes) => blueprint.over(Arc::clone(processes)),
        None => blueprint,
    };
    Ok((blueprint, memory))
}

/// `plan` with what `on_non_finite` asks of its program: all ranks look at the gradient before they update
/// with it. Without a flush, and with servers, that would have them wait for each other every step, and where
/// replicas have weights of their own their gradients have no norm together, so there a run that is to stop looks
/// at its losses only.
pub fn guarded(plan: &Plan, on_non_finite: OnNonFinite) -> Plan {
    let guards = match on_non_finite {
        OnNonFinite::Stop => {
            plan.flushes() && plan.sync.servers.is_none() && plan.sync.averaging.is_none()
        }
        OnNonFinite::Skip => true,
        OnNonFinite::Continue => false,
    };
    Plan { skip_non_finite: plan.skip_non_finite || guards, ..plan.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_others_to_see_goes_with_its_run_and_those_of_killed_runs_with_the_next() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let names = || {
            let entries = fs::read_dir(folder.path()).expect("a folder");
            let name = |it: std::io::Result<fs::DirEntry>| it.expect("an entry").file_name();
            let mut names: Vec<_> = entries.map(name).collect();
            names.sort();
            names
        };
        for name in [".seen-by-all-12", ".seen-by-all-notes", "step-00000002"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let probe = Probe::new(folder.path()).expect("a folder");
        let own = format!(".seen-by-all-{}", std::process::id());
        assert_eq!(names(), [own.as_str(), ".seen-by-all-notes", "step-00000002"]);
        drop(probe);
        assert_eq!(names(), [".seen-by-all-notes", "step-00000002"]);
    }
}
