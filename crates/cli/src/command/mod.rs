//! The commands, one file each.

mod compare;
mod completions;
mod considered;
mod cost;
mod demo;
mod dimensions;
mod explain;
mod export;
mod freeze;
mod generate;
mod import;
mod in_options;
mod interval;
mod launch;
mod manual;
mod memory;
mod methods;
mod order;
mod padding;
mod page_facts;
mod plan;
mod plan_line;
mod plan_or_model;
mod predict;
mod profile;
mod program;
mod schedule;
mod schedule_kind;
mod simulate;
mod slots;
mod stage_times;
mod targets;
mod train;
mod uplink;
mod validate;
mod vocabulary;
mod written;

pub use compare::Compare;
pub use completions::Completions;
pub use demo::Demo;
pub use explain::Explain;
pub use export::Export;
pub use generate::Generate;
pub use import::Import;
pub use launch::Launch;
pub use manual::Manual;
pub use methods::Methods;
pub use plan::Plan;
pub use predict::Predict;
pub use profile::Profile;
pub use program::Program;
pub use schedule::Schedule;
pub use simulate::Simulate;
pub use train::Train;
pub use validate::Validate;
pub use vocabulary::Vocabulary;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use shardloom::cluster::{Cluster, Stack};
use shardloom::collectives::{Algorithm, CollectiveError};
use shardloom::data::{Progress, Reading, Stage};
use shardloom::exchange::Project;
use shardloom::plan::{AttentionKind, Number, Recompute};
use shardloom::profile::{Scope, is_busy};
use shardloom::program::quantity::{digits, percent};
use shardloom::{
    CheckpointFolder, Data, Defaults, Error, Launched, LocalProfile, Model, ModelType, Sampling,
    TextTokenizer, disturbed_percent, read_text,
};

use crate::failure::Failure;
use crate::terminal::{Reminder, Terminal};

/// Where this machine's profile is kept.
#[derive(Debug, Args)]
pub struct ProfileFile {
    /// File with this machine's measured profile [default: $SHARDLOOM_PROFILE, or one in the cache]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

impl ProfileFile {
    /// The file, given or the user's.
    pub fn local(&self) -> LocalProfile {
        match &self.profile {
            Some(path) => LocalProfile::at(path),
            None => LocalProfile::of_user(),
        }
    }
}

/// The software that drives the machines of a cluster.
#[derive(Debug, Args)]
struct StackName {
    /// The software stack that training would run under: shardloom (this program's own trainer),
    /// megatron (of 2024 and later), megatron-2021, fsdp-eager, pytorch (Hugging Face's models, eager),
    /// pytorch-compiled, internevo, nanotron, or a TOML file. It says what kernels and host cost, and what
    /// plans made for it have: with most, full recomputation is of whole blocks, and with megatron-2021
    /// attention is not fused [default: what the machines usually run under: megatron on GPUs,
    /// megatron-2021 on those before the A100, shardloom elsewhere]
    #[arg(long, value_name = "STACK")]
    stack: Option<String>,
}

impl StackName {
    /// The stack of `cluster`, as it is to be given, unless it is what it has where nobody asks.
    fn unlike_usual<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a str> {
        let name = &cluster.stack().name;
        let is_usual = cluster.usual_stack().is_ok_and(|usual| usual.name == *name);
        self.stack.as_deref().or(Some(name)).filter(|_| !is_usual)
    }

    /// Refuses the option where nothing is predicted for machines, because of `why`.
    fn refuse(&self, why: &str) -> Result<(), Failure> {
        let message = || format!("--stack says what machines of a cluster run: {why}");
        match self.stack {
            Some(_) => Err(Failure::usage("--stack", message())),
            None => Ok(()),
        }
    }

    /// A cluster by its text under this stack, or else under its usual one; as [`load_cluster`].
    fn load_cluster(
        &self,
        text: &str,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Cluster, Failure> {
        let stack = self.stack.as_deref().map(Stack::parse).transpose();
        let stack = stack.map_err(|error| Failure::usage("--stack", error.to_string()))?;
        let cluster = load_cluster(text, local, terminal)?;
        Ok(match stack {
            Some(stack) => cluster.under(stack),
            None => cluster,
        })
    }

    /// A cluster under this stack, or else under the one that runs of `project` are predicted under on machines with
    /// the software of others.
    fn load_cluster_for(
        &self,
        project: Option<Project>,
        text: &str,
        local: &LocalProfile,
        terminal: Terminal,
    ) -> Result<Cluster, Failure> {
        let cluster = self.load_cluster(text, local, terminal)?;
        let is_own = cluster.stack().name == Stack::default().name;
        match project.and_then(shardloom::stack_of).filter(|_| self.stack.is_none() && !is_own) {
            Some(name) => Ok(cluster.under(Stack::parse(name).map_err(Error::from)?)),
            None => Ok(cluster),
        }
    }
}

/// The software stack of an answer.
#[derive(Debug, Serialize)]
struct StackAnswer {
    name: String,
    /// What its constants were fitted to; null if they are estimates.
    calibrated_on: Option<String>,
}

impl StackAnswer {
    fn of(cluster: &Cluster) -> StackAnswer {
        let stack = cluster.stack();
        StackAnswer { name: stack.name.clone(), calibrated_on: stack.calibrated_on.clone() }
    }
}

/// A kind of device of an answer.
#[derive(Debug, Serialize)]
struct DeviceAnswer {
    name: String,
    /// What its efficiencies were fitted to; null if they are estimates or measured.
    calibrated_on: Option<String>,
    /// The processor that it was measured on; null if it was not.
    measured_on: Option<String>,
    price_per_hour: Option<f64>,
    price_to_buy: Option<f64>,
}

impl DeviceAnswer {
    /// Of every kind in a cluster, once.
    fn all(cluster: &Cluster) -> Vec<DeviceAnswer> {
        let kind = |profile: &shardloom::cluster::Profile| DeviceAnswer {
            name: profile.device.name.clone(),
            calibrated_on: profile.calibrated_on.clone(),
            measured_on: profile.measured_on.as_ref().map(|it| it.processor.clone()),
            price_per_hour: profile.device.price_per_hour,
            price_to_buy: profile.device.price_to_buy,
        };
        cluster.profiles().into_iter().map(kind).collect()
    }
}

/// The devices of a cluster in words, and what their numbers rest on.
fn devices_described(cluster: &Cluster) -> String {
    let kinds: Vec<String> = cluster.profiles().iter().map(|it| it.described()).collect();
    kinds.join("; ")
}

/// Likewise, and how many of the devices a plan of fewer has.
fn devices_described_of(cluster: &Cluster, used: usize) -> String {
    let described = devices_described(cluster);
    match cluster.device_count() as usize {
        all if used < all => {
            format!("{described}; the plan has {used} of the {all}, and the others are idle")
        }
        _ => described,
    }
}

/// The model that an argument names, with samples of `seq` positions. Says how many these are where only another
/// project's file does, and that there are more than were learned.
fn load_model(text: &str, seq: Option<usize>, terminal: Terminal) -> Result<Model, Failure> {
    let model = Model::load_with(text, Defaults { sequence_length: seq, vocabulary: None })?;
    let graph = model.graph();
    if let (None, true, Some(dim)) = (seq, Model::is_configuration(text), graph.dim_named("seq")) {
        let positions = digits(graph.dim(dim).size as f64);
        terminal.note(format_args!(
            "samples have {positions} tokens, as many as there are positions in {text}; --seq gives them another length"
        ));
    }
    if let (Some(seq), Some(learned)) = (seq, Model::learned_positions(text))
        && seq > learned
    {
        terminal.note(format_args!(
            "positions of {text} are learned, and there are {learned}: with {seq} it is another model, which its \
             weights do not fit"
        ));
    }
    Ok(model)
}

/// Runs a command: where `mpirun` or `srun` started several processes, in the first of them `lead`, and in the
/// others `follow`, which does what that one says.
fn in_processes(
    terminal: Terminal,
    lead: impl FnOnce(Option<&Launched>) -> Result<(), Failure>,
    follow: impl FnOnce(&Launched) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match shardloom::launched() {
        // Whoever the launcher started first says it for all.
        Err(_) if !shardloom::is_first_of_launched() => Err(Failure::SaidElsewhere),
        Err(error) => Err(error.into()),
        Ok(None) => lead(None),
        // Said at once: to end, this process waits for the others.
        Ok(Some(launched)) if launched.leads() => {
            lead(Some(&launched)).map_err(|failure| failure.said(terminal.json()))
        }
        Ok(Some(launched)) => follow(&launched).map_err(|failure| {
            // Process 0 says it.
            launched.processes().leave(failure.text());
            Failure::SaidElsewhere
        }),
    }
}

/// The machines that processes run on, measured if they were not before, which shows as progress; and the file
/// that they are kept in.
fn machines_of(
    launched: &Launched,
    local: &LocalProfile,
    terminal: Terminal,
) -> Result<(Cluster, PathBuf), Failure> {
    let file = launched.file(local)?;
    if let Some(cluster) = launched.measured_before(local)? {
        return Ok((cluster, file));
    }
    let bar = terminal.share();
    let mut hear = measuring(&bar, "all machines", terminal);
    let measured = launched.measure_and_keep(local, Scope::default(), &mut hear);
    bar.finish_and_clear();
    let cluster = measured?;
    terminal.note(format_args!("machines measured; kept in {}", file.display()));
    Ok((cluster, file))
}

/// A cluster by its text; measuring this machine, where that is needed, shows as progress.
fn load_cluster(text: &str, local: &LocalProfile, terminal: Terminal) -> Result<Cluster, Failure> {
    let bar = terminal.share();
    let mut is_said = false;
    let mut show = measuring(&bar, "this machine", terminal);
    let mut hear = |what: &str, share: f64| {
        if !is_said {
            is_said = true;
            let Ok(path) = local.path() else { return };
            let path = path.display();
            bar.suspend(|| {
                let takes = match is_busy() {
                    true => "several minutes, as other programs are at work",
                    false => "half a minute to two",
                };
                terminal.note(format_args!(
                    "measuring this machine, once, for {takes}; kept in {path}"
                ));
            });
        }
        show(what, share);
    };
    let cluster = shardloom::load_cluster(text, local, &mut hear);
    bar.finish_and_clear();
    let cluster = cluster?;
    for profile in cluster.profiles() {
        note_disturbed(disturbed_percent(profile), terminal);
    }
    Ok(cluster)
}

/// Shows on a bar what is being measured; where there is no bar to be seen, a line a minute says how far it is.
fn measuring(bar: &ProgressBar, machines: &str, terminal: Terminal) -> impl FnMut(&str, f64) {
    const NOTED_EVERY: Duration = Duration::from_secs(60);
    let reminder = Reminder::new(NOTED_EVERY);
    move |what, share| {
        bar.set_message(format!("measuring {machines}: {what}"));
        bar.set_position((share * 1000.0) as u64);
        if bar.is_hidden() && reminder.is_due() {
            terminal.note(format_args!("measuring {machines}: {} done", percent(share)));
        }
    }
}

/// Says that what was measured may be too slow, if other programs disturbed it.
fn note_disturbed(percent: u32, terminal: Terminal) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // A command may load clusters several times.
    if let Some(said) = disturbed(percent)
        && !SAID.swap(true, Ordering::Relaxed)
    {
        terminal.note(said);
    }
}

/// What is to be said of predictions for machines where other programs took so much of the processors' time while
/// they were measured, if they did.
fn disturbed(percent: u32) -> Option<String> {
    (percent > 0).then(|| {
        format!(
            "other programs took {percent}% of the processors' time while this machine was measured, so that what \
             is predicted for it may be too slow; `shardloom profile` measures again"
        )
    })
}

/// Whether a path leads to a plan: a TOML file with a table `model` describes a model instead. A file whose name does not
/// say that it is TOML says so by its first lines; what is no file, such as a pipe, can only be read once, as a plan.
fn is_plan(path: &Path) -> Result<bool, Failure> {
    let kind = path.extension().and_then(|extension| extension.to_str());
    if matches!(kind, Some("json" | "onnx")) || path.is_dir() || !path.exists() {
        return Ok(false);
    }
    if !path.is_file() {
        return Ok(true);
    }
    let cannot_read =
        |error| Failure::file(path, format!("cannot read {}: {error}", path.display()));
    if kind != Some("toml") {
        let mut beginning = vec![];
        let file = File::open(path).map_err(cannot_read)?;
        file.take(LONGEST_BEGINNING).read_to_end(&mut beginning).map_err(cannot_read)?;
        let text = String::from_utf8_lossy(&beginning);
        return Ok(text.lines().any(|line| line.trim_start().starts_with("format = ")));
    }
    let text = read_text(path).map_err(cannot_read)?;
    Ok(!text.lines().any(|line| line.trim().starts_with("[model]")))
}

/// The bytes within which a plan says that it is one.
const LONGEST_BEGINNING: u64 = 1 << 16;

/// How data is read.
struct DataOptions<'a> {
    /// Where encoded text is kept; none for beside the text.
    cache: Option<&'a Path>,
    /// The field of documents that is their text.
    text_field: &'a str,
    /// The size of a head that starts anew, if one was asked for.
    new_head: Option<usize>,
    /// Where to show how far reading is.
    terminal: Option<Terminal>,
}

/// What `model` is trained on: text in the tokens of `tokenizer`, or a table.
fn open_data(
    model: &Model,
    paths: &[PathBuf],
    tokenizer: &TextTokenizer,
    sampling: Sampling,
    options: DataOptions<'_>,
) -> Result<Data, Failure> {
    let table = model.graph().inputs().any(|(_, input)| input.name == "features");
    if table && tokenizer.name() != "bytes" {
        let (name, model) = (tokenizer.name(), model.spec().name());
        let message = format!("--tokenizer {name}: {model} learns from a table, which has no text");
        return Err(Failure::usage("--tokenizer", message));
    }
    let DataOptions { cache, text_field, new_head, terminal } = options;
    let bar = terminal.map_or_else(ProgressBar::hidden, Terminal::share);
    let heard = |Progress { stage, done, total }| {
        bar.set_message(match stage {
            Stage::Checking => "looking at the data",
            Stage::Waiting => "waiting for another process that encodes the same text",
            Stage::Encoding => "encoding the text, once",
        });
        bar.set_position((done as f64 / total.max(1) as f64 * 1000.0) as u64);
    };
    let cache = cache.map(Path::to_path_buf);
    let reading = Reading { cache, text_field: text_field.into(), heard: &heard };
    let data = Data::open_with(model, paths, tokenizer, sampling, &reading);
    bar.finish_and_clear();
    data.map_err(|error| match (error, new_head) {
        (Error::Vocabulary { what, needed, .. }, Some(head)) => {
            let message = format!(
                "--new-head {head}: there are {needed} {what}; give --new-head {needed} or more"
            );
            Failure::usage("--new-head", message)
        }
        (error, _) => error.into(),
    })
}

/// Refuses to delete the checkpoints of a folder with what the command reads.
///
/// # Errors
/// If one of `inputs` is the folder, or in one of its checkpoints.
fn require_kept<'a>(
    folder: &CheckpointFolder,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Failure> {
    match inputs.into_iter().find(|input| folder.holds(input)) {
        None => Ok(()),
        Some(input) => {
            let message = format!(
                "--force deletes the checkpoints in {}, and this command reads {}: name another --checkpoint",
                folder.path().display(),
                input.display()
            );
            Err(Failure::usage("--force", message))
        }
    }
}

/// Refuses options that a plan file says itself.
fn require_no_option(option: Option<&'static str>, plan: &Path) -> Result<(), Failure> {
    let Some(option) = option else { return Ok(()) };
    let message = format!(
        "{option} cannot be given with the plan {}, which says it itself; change the plan, or give a \
         model",
        plan.display()
    );
    Err(Failure::usage(option, message))
}

/// Parses the name of a project.
pub fn project(name: &str) -> Result<Project, String> {
    named(name, Project::ALL, Project::name)
}

/// Parses the name of a kind of models of Hugging Face's library.
pub fn model_type(name: &str) -> Result<ModelType, String> {
    named(name, ModelType::ALL, ModelType::name)
}

/// Parses the name of a recomputation policy.
pub fn recompute(name: &str) -> Result<Recompute, String> {
    named(name, Recompute::ALL, Recompute::name)
}

/// The recomputation policies that searches take.
pub fn searched_recomputes() -> impl Iterator<Item = Recompute> {
    Recompute::ALL.into_iter().filter(|&it| it != Recompute::Stage)
}

/// Parses the name of a recomputation policy for a search, which refuses one by stage and says why.
pub fn searched_recompute(name: &str) -> Result<Recompute, String> {
    let found = named(name, searched_recomputes(), Recompute::name);
    found.or_else(|known| recompute(name).map_err(|_| known))
}

/// Parses how attention is computed.
pub fn attention(name: &str) -> Result<AttentionKind, String> {
    named(name, AttentionKind::ALL, AttentionKind::name)
}

/// Parses the format that is computed in.
pub fn number(name: &str) -> Result<Number, String> {
    named(name, Number::ALL, Number::name)
}

/// Parses the name of a collective algorithm.
pub fn algorithm(name: &str) -> Result<Algorithm, String> {
    name.parse().map_err(|error: CollectiveError| error.to_string())
}

/// The one of `all` that is called `name`.
fn named<T: Copy>(
    name: &str,
    all: impl IntoIterator<Item = T>,
    name_of: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    let mut names = vec![];
    for each in all {
        if name_of(each).eq_ignore_ascii_case(name) {
            return Ok(each);
        }
        names.push(name_of(each));
    }
    Err(format!("there are {}", names.join(", ")))
}
