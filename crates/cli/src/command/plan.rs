//! `shardloom plan`: finds a plan.

mod clusters;
mod constraints;
mod page;
mod trials;

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use serde::Serialize;
use shardloom::cluster::Cluster;
use shardloom::exchange::Project;
use shardloom::methods::Method;
use shardloom::plan::{Number, Plan as Found, Precision};
use shardloom::program::quantity::{digits, percent, seconds};
use shardloom::search::{Outcome, Request};
use shardloom::{
    Model, Planned, find_plan, find_plan_for, methods, parse_optimizer, plan_by_method,
    usual_request,
};

use super::cost::Cost;
use super::freeze::frozen;
use super::in_options::of_request;
use super::interval::Interval;
use super::memory::{self, Memory};
use super::padding::Padding;
use super::plan_line::plan_line;
use super::targets::counted;
use super::uplink::Network;
use super::{
    DeviceAnswer, ProfileFile, StackAnswer, StackName, considered, devices_described, load_model,
    number, project, written,
};
use crate::failure::Failure;
use crate::number::{size, tokens, whole};
use crate::output_file::OutputFile;
use crate::table::table;
use crate::terminal::Terminal;
use constraints::Constraints;
use trials::Trials;

/// Find the fastest plan for a model on a cluster that fits in memory
///
/// The plan is the fastest in the simulator of those that an analytic estimate finds promising. Plain
/// data parallelism, ZeRO-3 and the Megatron rules are always simulated beside it.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("written").args(["output", "html"]).multiple(true)))]
#[command(after_help = "Examples:
  shardloom plan llama-3-8b --cluster h100-80g:2x8 --global-batch 256 -o plan.toml
  shardloom plan llama-3-8b --cluster h100-80g:2x8 --global-batch 256 --html report.html
  shardloom plan gpt-2-xl --cluster a100-80g:8 --global-batch 64 --method chimera
  shardloom plan llama-3-8b --cluster h100-80g:2x8 --global-batch 256 --for torchtitan -o plan.toml
  shardloom plan config.json --cluster a100-80g:8 --global-batch 64 --seq 4096 --json
  shardloom plan llama-3-8b --cluster h100-80g:2x8 --cluster a100-80g:4x8 --global-batch 256
  shardloom plan gpt:layers=4,hidden=128,heads=4,vocab=256 --seq 128 --cluster local \\
      --global-batch 16 -o plan.toml
  shardloom plan gpt:layers=4,hidden=128,heads=4,vocab=256 --seq 128 --cluster local \\
      --global-batch 16 --method autosync --trials 40 --trials-data text.txt

MODEL is a Hugging Face config.json, a model TOML, a preset, or a family with parameters. CLUSTER is \
a preset with a size (h100-80g:64x8 is 64 nodes of 8), several joined by +, a TOML file, or local for \
this machine.")]
pub struct Plan {
    /// The model: a config.json or a folder with one, a model TOML, a preset (llama-3-8b), or a family with
    /// parameters (gpt:layers=12,...)
    #[arg(value_name = "MODEL")]
    model: String,

    /// The machines; several times to compare machines, each with its own fastest plan
    #[arg(long, value_name = "CLUSTER", required = true)]
    cluster: Vec<String>,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    stack: StackName,

    /// Samples of a step
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    global_batch: usize,

    /// Sequence length [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = size)]
    seq: Option<usize>,

    #[command(flatten)]
    padding: Padding,

    /// Plan as this published system does (`shardloom methods` lists them) instead of searching
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// Find the fastest plan of those that this project runs, which `shardloom export` writes for it: megatron,
    /// deepspeed, torchtitan, nanotron or accelerate
    #[arg(long = "for", value_name = "PROJECT", value_parser = project, conflicts_with = "method")]
    runner: Option<Project>,

    /// adamw, sgd, lamb or adafactor, with settings as in sgd:momentum=0.9,weight_decay=0.01;
    /// sgd's reference_batch=128 scales momentum and learning rate from batches of 128 samples to those
    /// that updates have
    #[arg(long, value_name = "OPTIMIZER", default_value = "adamw")]
    optimizer: String,

    /// Leave parameters as they are: `trunk`, which is all but the head, or those of names like these, where * is
    /// any characters and ? is one, as in --freeze 'embedding.*' --freeze 'block.0.*'
    #[arg(long, value_name = "trunk|NAMES")]
    freeze: Vec<String>,

    /// Keep attention within documents, where samples are packed of several. Times and memory are those of samples
    /// of one document
    #[arg(long, conflicts_with = "runner")]
    mask_documents: bool,

    /// Let stages update before the norm of all gradients is known, and check that in the next step; only
    /// with a method, as a search tries it by itself
    #[arg(long, requires = "method")]
    post_validation: bool,

    /// What weights in use, activations and their gradients are computed in: fp32, bf16 or fp16; in 16 bits with
    /// gradients and weights of the optimizer in fp32 [default: the 16-bit format that all devices have, of
    /// processors fp32]
    #[arg(long, value_name = "FORMAT", value_parser = number)]
    precision: Option<Number>,

    /// Compute products of activations and weights, but for the last, in 8 bits
    #[arg(long)]
    fp8: bool,

    /// Tokens, or samples of models without tokens, to train on in all, such as 15T, to say how long that takes and what it costs
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    tokens: Option<f64>,

    /// Write the plan to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write a report as one HTML page: a step of the plan, and the plans that it was found among
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Overwrite files that exist
    #[arg(long, requires = "written")]
    force: bool,

    #[command(flatten)]
    profile: ProfileFile,

    #[command(flatten)]
    trials: Trials,

    #[command(flatten)]
    constraints: Constraints,
}

#[derive(Serialize)]
struct Answer<'a> {
    plan: &'a Found,
    predicted: Predicted<'a>,
    stack: StackAnswer,
    devices: Vec<DeviceAnswer>,
    /// In US dollars, where the price of every device of the plan is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
    baselines: Vec<Baseline>,
    search: Search,
    devices_left_out: u32,
    notes: &'a [String],
    not_searched: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
}

#[derive(Serialize)]
struct Predicted<'a> {
    step_seconds: f64,
    /// The times between which four of five published steps like it were measured; null where the stack has none.
    step_seconds_interval: Option<[f64; 2]>,
    tokens_per_second: f64,
    mfu: Option<f64>,
    /// Against one device with memory enough.
    speedup: Option<f64>,
    /// The speed-up by the number of devices, where these are alike.
    efficiency: Option<f64>,
    peak_bytes_per_rank: &'a [u64],
    /// Of the ranks that simulations tell apart.
    memory: Vec<Memory>,
    bubble_fraction: f64,
    dependency_idle_fraction: f64,
    exposed_communication_fraction: f64,
}

#[derive(Serialize)]
struct Baseline {
    name: &'static str,
    fits: bool,
    step_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Search {
    method: &'static str,
    space: usize,
    evaluated: usize,
    bounded_away: usize,
    simulated: usize,
    seconds: f64,
    /// How long a step took in the trial of the plan, where trials were really made.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_step_seconds: Option<f64>,
}

/// A plan for some machines, and what it costs.
struct Answered {
    planned: Planned,
    cluster: Cluster,
    cost: Option<Cost>,
    /// What the model's targets are called.
    targets: &'static str,
}

/// What training on so many tokens takes.
#[derive(Serialize)]
struct Budget {
    tokens: f64,
    days: f64,
    /// In US dollars, where the price of every device is known.
    price: Option<f64>,
}

impl Budget {
    /// In words, where what is trained on is called so.
    fn described(&self, targets: &str) -> String {
        let Budget { tokens, days, price } = self;
        let price = price.map(|price| format!(" and {} US dollars", digits(price)));
        format!("{tokens:e} {targets} take {} days{}", digits(*days), price.unwrap_or_default())
    }
}

impl Plan {
    /// Plans.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let output = OutputFile::optional(self.output.as_ref(), self.force)?;
        let html = OutputFile::optional(self.html.as_ref(), self.force)?;
        OutputFile::require_distinct([&output, &html])?;
        let model = self.padding.of(load_model(&self.model, self.seq, terminal)?)?;
        let text = match &self.cluster[..] {
            [text] => text,
            _ if html.is_some() => {
                let message = "--html: a page is of one plan; give one --cluster".to_owned();
                return Err(Failure::usage("--html", message));
            }
            several => return clusters::run(self, several, &model, output.as_ref(), terminal),
        };
        let on = self.find(&model, &self.network.of(text)?, terminal)?;
        if let Some(file) = &output {
            file.write(on.planned.outcome.plan.to_toml())?;
            if let Some(weights) = model.weights() {
                terminal.note(format_args!(
                    "the plan says nothing of the weights in {}: `train` begins with drawn ones, unless --weights names \
                     them, and encodes text by bytes, unless --tokenizer says otherwise",
                    weights.display()
                ));
            }
        }
        if let Some(file) = &html {
            let spinner = terminal.spinner("simulating");
            let page = page::html(&model, &on);
            spinner.finish_and_clear();
            file.write(page?)?;
        }
        match terminal.json() {
            true => terminal.object(&self.answer(&on)),
            false => {
                self.show(&on, terminal)?;
                written::say(html.as_ref(), None, terminal)
            }
        }
    }

    /// The plan on the machines of this text.
    fn find(&self, model: &Model, text: &str, terminal: Terminal) -> Result<Answered, Failure> {
        let method = self.method.as_deref().map(methods::named).transpose();
        let method = method.map_err(shardloom::Error::from)?;
        let trials = self.trials.made((model, self.model.as_str()), text, terminal)?;
        let local = self.profile.local();
        let cluster = self.stack.load_cluster_for(self.runner, text, &local, terminal)?;
        let mut request = usual_request(model, &cluster, text, self.global_batch);
        request.optimizer = parse_optimizer(&self.optimizer)?;
        request.frozen = frozen(&self.freeze, model)?;
        request.mask_documents = self.mask_documents;
        request.post_validation = self.post_validation;
        request.trials = self.trials.of_request();
        if let (Some(Number::Fp32), true) = (self.precision, self.fp8) {
            let message = "--fp8: operands are cast to 8 bits from a 16-bit format; leave out --precision fp32";
            return Err(Failure::usage("--fp8", message));
        }
        if let Some(compute) = self.precision {
            request.precision = Precision::usual(compute);
            request.formats_by_machines = false;
        }
        if self.fp8 {
            request.precision.fp8_products = true;
            request.formats_by_machines = false;
        }
        self.constraints.restrict(&mut request)?;
        let planned = match (trials, method) {
            (Some(trials), Some(method)) => trials.plan(&cluster, &request, method, terminal)?,
            (_, method) => self.search(model, &cluster, &request, method, terminal)?,
        };
        let (plan, judgement) = (&planned.outcome.plan, &planned.outcome.judgement);
        let targets = model.graph().targets_per_sample();
        let cost = Cost::of(plan, &cluster, judgement.step_seconds, targets);
        Ok(Answered { planned, cluster, cost, targets: counted(model) })
    }

    /// The fastest plan, of a method where one is named or for a project, with what the options that were given cost.
    fn search(
        &self,
        model: &Model,
        cluster: &Cluster,
        request: &Request,
        method: Option<&Method>,
        terminal: Terminal,
    ) -> Result<Planned, Failure> {
        let spinner = terminal.spinner("searching");
        let planned = match (method, self.runner) {
            (Some(method), _) => plan_by_method(model, cluster, request, method),
            (None, Some(project)) => find_plan_for(model, cluster, request, project),
            (None, None) => find_plan(model, cluster, request),
        };
        spinner.finish_and_clear();
        let mut planned = planned.map_err(of_request)?;
        let mut given = self.constraints.given();
        given.extend(method.map(|method| format!("--method {}", method.name)));
        planned.outcome.notes.extend(price(&planned.outcome, &given));
        Ok(planned)
    }

    /// All that is said of a plan.
    fn answer<'a>(&self, on: &'a Answered) -> Answer<'a> {
        let Answered { planned, cluster, cost, .. } = on;
        let outcome = &planned.outcome;
        let step_seconds = outcome.judgement.step_seconds;
        Answer {
            plan: &outcome.plan,
            predicted: Predicted {
                step_seconds,
                step_seconds_interval: Interval::of(&outcome.plan, cluster, step_seconds)
                    .map(|it| it.ends),
                tokens_per_second: planned.tokens_per_second,
                mfu: planned.model_flops_utilisation,
                speedup: planned.speedup,
                efficiency: planned.efficiency(cluster),
                peak_bytes_per_rank: &planned.peak_bytes_per_rank,
                memory: Memory::all(&outcome.judgement.memory),
                bubble_fraction: outcome.judgement.bubble_fraction,
                dependency_idle_fraction: outcome.judgement.dependency_idle_fraction,
                exposed_communication_fraction: outcome.judgement.exposed_communication_fraction(),
            },
            stack: StackAnswer::of(cluster),
            devices: DeviceAnswer::all(cluster),
            cost: *cost,
            baselines: outcome
                .baselines
                .iter()
                .map(|each| Baseline {
                    name: each.name,
                    fits: each.fits,
                    step_seconds: each.step_seconds(),
                })
                .collect(),
            search: Search {
                method: outcome.search.method,
                space: outcome.search.space,
                evaluated: outcome.search.evaluated,
                bounded_away: outcome.search.bounded_away,
                simulated: outcome.search.simulated,
                seconds: outcome.search.seconds,
                measured_step_seconds: planned.measured_step_seconds,
            },
            devices_left_out: outcome.devices_left_out,
            notes: &outcome.notes,
            not_searched: &outcome.not_searched,
            budget: self.budget(on),
        }
    }

    fn budget(&self, on: &Answered) -> Option<Budget> {
        self.tokens.map(|tokens| budget(tokens, &on.planned, on.cost))
    }

    fn show(&self, on: &Answered, terminal: Terminal) -> Result<(), Failure> {
        let &Answered { ref planned, ref cluster, cost, targets } = on;
        let budget = self.budget(on);
        let outcome = &planned.outcome;
        let step_seconds = outcome.judgement.step_seconds;
        terminal.line(plan_line(&outcome.plan))?;
        terminal.text(table(&["plan", "step", ""], &considered::rows(outcome)))?;
        let utilisation = planned
            .model_flops_utilisation
            .map(|share| format!(", {} of peak FLOP/s", percent(share)));
        terminal.line(format_args!(
            "{} {targets}/s{}; waiting for others {}, exposed communication {}",
            digits(planned.tokens_per_second),
            utilisation.unwrap_or_default(),
            percent(outcome.judgement.dependency_idle_fraction),
            percent(outcome.judgement.exposed_communication_fraction())
        ))?;
        if let Some(fullest) = outcome.judgement.fullest() {
            terminal.line(format_args!("Memory: {}", memory::described(fullest)))?;
        }
        if let Some(line) = speedup(planned, cluster) {
            terminal.line(line)?;
        }
        if let Some(measured) = planned.measured_step_seconds {
            let (measured, predicted) = (seconds(measured), seconds(step_seconds));
            terminal.line(format_args!(
                "Measured: a step took {measured} in the trial of this plan (predicted: {predicted}); it is the \
                 fastest of those that were tried, and all times above are predicted"
            ))?;
        }
        if let Some(interval) = Interval::of(&outcome.plan, cluster, step_seconds) {
            let (step, within) = (seconds(step_seconds), interval.described());
            terminal.line(format_args!("Step time: {step}{within}"))?;
        }
        terminal.line(format_args!("Software: {}", cluster.stack().described()))?;
        terminal.line(format_args!("Devices: {}", devices_described(cluster)))?;
        if let Some(cost) = cost {
            terminal.line(format_args!("Cost: {}", cost.described()))?;
        }
        if let Some(budget) = budget {
            terminal.line(budget.described(targets))?;
        }
        for note in &outcome.notes {
            terminal.line(note)?;
        }
        let search = &outcome.search;
        terminal.line(format_args!(
            "{} plans: {} evaluated, {} bounded away, {} simulated, in {}",
            search.space,
            search.evaluated,
            search.bounded_away,
            search.simulated,
            seconds(search.seconds)
        ))?;
        if !outcome.not_searched.is_empty() {
            terminal.line(format_args!("Not searched: {}", outcome.not_searched.join("; ")))?;
        }
        match &self.output {
            // A plan does not say under which software it will run.
            Some(path) => {
                let stack = self.stack_to_simulate_with(cluster);
                terminal.line(format_args!("Written to {}{stack}", path.display()))
            }
            None => Ok(()),
        }
    }

    /// What to say of a plan that was written: the software that it is for, where that is not the usual one.
    fn stack_to_simulate_with(&self, cluster: &Cluster) -> String {
        let stack = self.stack.unlike_usual(cluster);
        stack.map(|name| format!("; simulate it with --stack {name}")).unwrap_or_default()
    }
}

/// What it costs to keep to the options that were `given`, where a baseline that fits and does not keep to them is
/// faster.
fn price(outcome: &Outcome, given: &[String]) -> Option<String> {
    if given.is_empty() {
        return None;
    }
    let own = outcome.judgement.step_seconds;
    let faster = (outcome.baselines.iter())
        .filter(|each| each.fits)
        .filter_map(|each| Some((each.name, each.plan.as_ref()?, each.step_seconds()?)))
        .filter(|&(_, _, step)| step < own);
    let (name, plan, step) = faster.min_by(|one, other| one.2.total_cmp(&other.2))?;
    let costs = if given.len() == 1 { "costs" } else { "cost" };
    Some(format!(
        "{} {costs} {} a step or more: {name} takes {} otherwise, on {}",
        given.join(" and "),
        seconds(own - step),
        seconds(step),
        plan_line(plan)
    ))
}

/// How much faster than one device; none for a plan for one.
fn speedup(planned: &Planned, cluster: &Cluster) -> Option<String> {
    let speedup = planned.speedup.filter(|_| planned.outcome.plan.device_count() > 1)?;
    let efficiency = planned.efficiency(cluster).map(|it| format!(", efficiency {}", percent(it)));
    let times = if speedup < 100.0 { format!("{speedup:.1}") } else { digits(speedup) };
    Some(format!(
        "Speed-up: {times} against one device with memory enough{}",
        efficiency.unwrap_or_default()
    ))
}

fn budget(tokens: f64, planned: &Planned, cost: Option<Cost>) -> Budget {
    let training_seconds = tokens / planned.tokens_per_second;
    let price_per_hour = cost.and_then(|cost| cost.per_hour);
    Budget {
        tokens,
        days: training_seconds / 86_400.0,
        price: price_per_hour.map(|price| price * training_seconds / 3600.0),
    }
}
