//! `shardloom compare`: schedules or methods side by side.

mod answer;
mod contender;
mod entry;
mod row;
mod trained;
mod training;

use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use shardloom::cluster::{Cluster, Stack};
use shardloom::program::quantity::counted;
use shardloom::search::{Request, judge, single_device_seconds};
use shardloom::sim::on_all_cores;
use shardloom::{Defaults, Model, usual_request};

use super::dimensions::{Dimensions, Place};
use super::order::{Order, order};
use super::padding::Padding;
use super::plan_line::plan_line;
use super::uplink::Network;
use super::{ProfileFile, StackAnswer, StackName};
use crate::failure::Failure;
use crate::number::size;
use crate::terminal::{NOTED_EVERY, Reminder, Terminal};
use answer::Answer;
use contender::{Choosers, Contenders, Planned, choosers, every_order};
use entry::{Entry, Refusals};
use row::{Numbers, Row};
use training::Training;

/// Compare schedules of one shape, or methods on the same cluster
///
/// Schedules are of one shape, which --pp, --dp and the like give. Methods choose their plans themselves
/// for the same cluster and global batch. Each is simulated, or with --run really trained on this
/// machine: in real time, or in the virtual time of a cluster that is given. What does not exist for
/// these numbers is listed with the reason.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom compare gpt-2-xl --cluster a100-80g:8 --pp 8 --global-batch 64
  shardloom compare gpt-2-xl --cluster a100-80g:8 --pp 4 --dp 2 --global-batch 64 --microbatches 8 \\
      --schedules 1f1b,interleaved:2,interleaved:4,hanayo,chimera
  shardloom compare gpt:layers=6,hidden=128,heads=4 --seq 128 --pp 2 --schedules gpipe,1f1b \\
      --run --data crates --repeats 3
  shardloom compare gpt:layers=6,hidden=128,heads=4 --seq 128 --pp 2 --schedules 1f1b,pipedream \\
      --run --data crates --until-loss 2.5
  shardloom compare gpt-2-xl --cluster a100-80g:8 --global-batch 64 \\
      --methods auto,gpipe,zb-v,chimera

A schedule is a name (`shardloom schedule --help` lists all), with a colon and the stages on each device \
where they are to be more than the fewest. The name of a published system brings what `shardloom train \
--schedule` says.

speed-up: against one device; simulated, against the fastest plan for one with memory enough, as `shardloom \
plan` says it; in a run, against some steps of one rank, in as many micro-batches as the first that has a plan. \
utilisation: share of the ranks' time in which they compute. waiting: share in which they neither \
compute nor communicate: a message is under way from when its sender begins, a collective from when the last has come. \
waits: how often a rank does so in a step, for a microsecond or longer, on average over ranks. sent: what all \
ranks together send in a step.")]
pub struct Compare {
    /// The model: a config.json or a folder with one, a model TOML, a preset (llama-3-8b), or a family with
    /// parameters (gpt:layers=12,...)
    #[arg(value_name = "MODEL")]
    model: String,

    /// The machines [default: this one, if it really trains]
    #[arg(long, value_name = "CLUSTER", required_unless_present = "run")]
    cluster: Option<String>,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    stack: StackName,

    /// Schedules, separated by commas [default: all]
    #[arg(long, value_name = "KIND[:CHUNKS]", value_delimiter = ',', value_parser = order)]
    schedules: Vec<Order>,

    /// Methods, separated by commas, instead of schedules: names that `shardloom methods` lists, `auto`
    /// for the search of `shardloom plan`, or `all`
    #[arg(long, value_name = "METHOD", value_parser = choosers, conflicts_with = "schedules")]
    methods: Option<Choosers>,

    /// Sequence length [default: the model's]
    #[arg(long, value_name = "TOKENS", value_parser = size)]
    seq: Option<usize>,

    #[command(flatten)]
    padding: Padding,

    #[command(flatten)]
    profile: ProfileFile,

    #[command(flatten)]
    dimensions: Dimensions,

    #[command(flatten)]
    training: Training,
}

impl Compare {
    /// Compares.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        if self.methods.is_some() {
            self.dimensions.leave_choice_to("--methods", None)?;
            self.dimensions.refuse_unjudged("--methods")?;
        }
        let tokenizer = self.training.tokenizer()?;
        let vocabulary = self.training.run.then(|| tokenizer.tokenizer().vocabulary_size());
        let defaults = Defaults { sequence_length: self.seq, vocabulary };
        let model = self.padding.of(Model::load_with(&self.model, defaults)?)?;
        // What is wrong with the data is said before this machine is measured for a plan.
        let trial = match self.training.run {
            true => Some(self.training.trial(&model, &tokenizer, terminal)?),
            false => None,
        };
        let given = match &self.cluster {
            Some(text) => Some(self.network.of(text)?),
            None => {
                self.network.refuse_without_cluster()?;
                None
            }
        };
        let text = given.as_deref().or(self.methods.is_some().then_some("local"));
        let cluster = match text {
            Some(text) if self.training.run => {
                self.stack.refuse("--run trains with this program's own trainer")?;
                let cluster = super::load_cluster(text, &self.profile.local(), terminal)?;
                Some((text, cluster.under(Stack::default())))
            }
            Some(text) => {
                Some((text, self.stack.load_cluster(text, &self.profile.local(), terminal)?))
            }
            None => {
                self.stack.refuse("there is no --cluster")?;
                None
            }
        };
        let cluster = cluster.as_ref().map(|(text, cluster)| (*text, cluster));
        let contenders = self.contenders(&model, cluster)?;
        let virtual_time = cluster.filter(|_| self.cluster.is_some()).map(|(_, cluster)| cluster);
        let bar = terminal.progress(contenders.len() as u64);
        let reminder = Reminder::new(NOTED_EVERY);
        let compared = AtomicUsize::new(0);
        let found = on_all_cores(contenders.len(), |index| {
            bar.set_message(contenders.name(index));
            let found = contenders.plan(index, &model).and_then(|planned| {
                // With a trial there are no numbers yet.
                let numbers = match (&trial, cluster) {
                    (None, Some((_, cluster))) => simulated(&model, cluster, &planned)?,
                    _ => Numbers::default(),
                };
                Ok((planned, numbers))
            });
            bar.inc(1);
            let compared = compared.fetch_add(1, Ordering::Relaxed) + 1;
            if bar.is_hidden() && !terminal.json() && reminder.is_due() {
                terminal.note(format_args!("{compared} of {} compared", contenders.len()));
            }
            found
        });
        let mut entries = vec![];
        let mut refusals = Refusals::default();
        for (index, found) in found.into_iter().enumerate() {
            let mut row = Row::of(contenders.name(index));
            let plan = match found {
                Ok((Planned { plan, notes, .. }, numbers)) => {
                    row.plan = self.methods.is_some().then(|| plan_line(&plan));
                    (row.notes, row.numbers) = (notes, numbers);
                    Some(plan)
                }
                Err(failure) => {
                    refusals.add(&mut row, failure)?;
                    None
                }
            };
            entries.push(Entry { row, plan });
        }
        bar.finish_and_clear();
        if let Some(trial) = &trial {
            trial.train_all(&mut entries, virtual_time, &mut refusals, terminal)?;
        }
        refusals.unless_all(entries.len())?;
        let mut rows: Vec<Row> = entries.into_iter().map(|entry| entry.row).collect();
        row::sort(&mut rows);
        let until_loss = self.training.until_loss;
        let simulated_on = cluster.filter(|_| !self.training.run).map(|(_, cluster)| cluster);
        let stack = simulated_on.map(StackAnswer::of);
        let answer = Answer { microbatches: contenders.microbatches(), until_loss, stack, rows };
        if terminal.json() {
            return terminal.object(&answer);
        }
        let how = match (self.training.run, text) {
            (false, text) => format!("simulated on {}", text.unwrap_or_default()),
            (true, _) if virtual_time.is_none() => "trained here".to_owned(),
            (true, text) => {
                format!("trained here in the virtual time of {}", text.unwrap_or_default())
            }
        };
        let devices = counted(contenders.devices(), "device");
        let samples = counted(self.dimensions.global_batch(), "sample");
        let microbatches =
            answer.microbatches.map(|it| format!(" in {}", counted(it, "micro-batch")));
        terminal.line(format_args!(
            "{}, {how}: {devices}, {samples}{}",
            model.spec().name(),
            microbatches.unwrap_or_default()
        ))?;
        if let Some(cluster) = simulated_on {
            terminal.line(format_args!("Software: {}", cluster.stack().described()))?;
        }
        answer.show(contenders.heading(), terminal)
    }

    /// What is compared, on the cluster that is called so.
    fn contenders<'a>(
        &'a self,
        model: &Model,
        cluster: Option<(&str, &'a Cluster)>,
    ) -> Result<Contenders<'a>, Failure> {
        let batch = self.dimensions.global_batch();
        let usual = |(text, cluster): (&str, &Cluster)| usual_request(model, cluster, text, batch);
        let Some(Choosers(choosers)) = &self.methods else {
            let dimensions = &self.dimensions;
            let place = match cluster {
                Some((text, cluster)) if !self.training.run => {
                    Place::on(cluster, &usual((text, cluster)))
                }
                _ => Place::here(dimensions),
            };
            let orders =
                if self.schedules.is_empty() { every_order() } else { self.schedules.clone() };
            let microbatches = dimensions.microbatches(model, &orders);
            return Ok(Contenders::Orders { orders, dimensions, microbatches, place });
        };
        let (text, cluster) = cluster.expect("methods have this machine's cluster if no other");
        let usual = usual((text, cluster));
        let here = Place::here(&self.dimensions);
        let usual = match self.training.run {
            true => Request {
                precision: here.precision,
                formats_by_machines: false,
                algorithm: here.algorithm,
                ..usual
            },
            false => usual,
        };
        let request = Box::new(self.dimensions.request(usual, model)?);
        Ok(Contenders::Choosers { choosers: choosers.clone(), cluster, request })
    }
}

/// What the simulator says of a plan, beside the fastest one for a single device.
fn simulated(model: &Model, cluster: &Cluster, planned: &Planned) -> Result<Numbers, Failure> {
    let Planned { plan, judgement, .. } = planned;
    let judgement = match judgement {
        Some(judgement) => judgement.clone(),
        None => judge(model.graph(), cluster, plan).map_err(shardloom::Error::from)?,
    };
    let plan_defaults = cluster.stack().plan_defaults;
    let request = Request { plan_defaults, ..Request::like(plan) };
    let alone = single_device_seconds(model.graph(), cluster, &request);
    Ok(Numbers::simulated(&judgement, alone.map_err(shardloom::Error::from)?))
}
