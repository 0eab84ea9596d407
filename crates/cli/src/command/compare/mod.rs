//! `shardloom compare`: schedules or methods side by side.

mod answer;
mod contender;
mod row;
mod training;

use clap::Args;
use shardloom::cluster::{Cluster, Stack};
use shardloom::program::quantity::counted;
use shardloom::search::{Request, judge};
use shardloom::{Defaults, Model, usual_request};

use super::dimensions::{Dimensions, Place};
use super::order::{Order, order};
use super::plan_line::plan_line;
use super::uplink::Network;
use super::{ProfileFile, StackName};
use crate::failure::Failure;
use crate::number::whole;
use crate::terminal::Terminal;
use answer::Answer;
use contender::{Choosers, Contenders, Planned, choosers, every_order};
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
      --run --data src
  shardloom compare gpt-2-xl --cluster a100-80g:8 --global-batch 64 \\
      --methods auto,gpipe,zb-v,chimera

A schedule is a name (`shardloom schedule --help` lists all), with a colon and the stages on each device \
where they are to be more than the fewest. The name of a published system brings what `shardloom train \
--schedule` says.

utilisation: share of the ranks' time in which they compute. waiting: share in which they neither \
compute nor communicate: a message is under way from when its sender begins, a collective from when the last has come.")]
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
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>)]
    seq: Option<usize>,

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
        let model = Model::load_with(&self.model, defaults)?;
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
                let cluster = super::load_cluster(text, &self.profile.local()?, terminal)?;
                Some((text, cluster.under(Stack::default())))
            }
            Some(text) => {
                Some((text, self.stack.load_cluster(text, &self.profile.local()?, terminal)?))
            }
            None => {
                self.stack.refuse("there is no --cluster")?;
                None
            }
        };
        let cluster = cluster.as_ref().map(|(text, cluster)| (*text, cluster));
        let contenders = self.contenders(&model, cluster)?;
        let virtual_time = cluster.filter(|_| self.cluster.is_some()).map(|(_, cluster)| cluster);
        let bar = terminal.progress(contenders.len() as u64 * self.training.steps());
        let mut rows = vec![];
        let mut refusals = vec![];
        for index in 0..contenders.len() {
            let method = contenders.name(index);
            bar.set_message(method.clone());
            bar.set_position(index as u64 * self.training.steps());
            let mut row = Row::of(method);
            let numbers =
                contenders.plan(index, &model).and_then(|Planned { plan, judgement, notes }| {
                    row.plan = self.methods.is_some().then(|| plan_line(&plan));
                    row.notes = notes;
                    match (&trial, judgement, cluster) {
                        (Some(trial), ..) => trial.trained(&plan, virtual_time, &bar),
                        (None, Some(judgement), _) => Ok(Numbers::simulated(&judgement)),
                        (None, None, Some((_, cluster))) => {
                            let judgement = judge(model.graph(), cluster, &plan);
                            Ok(Numbers::simulated(&judgement.map_err(shardloom::Error::from)?))
                        }
                        (None, None, None) => unreachable!("the parser wants a cluster or --run"),
                    }
                });
            match numbers {
                Ok(numbers) => row.numbers = numbers,
                Err(failure) => match failure.refusal() {
                    Some(reason) => {
                        row.reason = Some(reason.to_owned());
                        refusals.push(failure);
                    }
                    None => return Err(failure),
                },
            }
            rows.push(row);
        }
        bar.finish_and_clear();
        // What is wrong with all of them is an error, and not a result.
        if refusals.len() == rows.len()
            && let Some(first) = refusals.into_iter().next()
        {
            return Err(first);
        }
        row::sort(&mut rows);
        let answer = Answer { microbatches: contenders.microbatches(), rows };
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
            true => Request { precision: here.precision, algorithm: here.algorithm, ..usual },
            false => usual,
        };
        let request = Box::new(self.dimensions.request(usual, model)?);
        Ok(Contenders::Choosers { choosers: choosers.clone(), cluster, request })
    }
}
