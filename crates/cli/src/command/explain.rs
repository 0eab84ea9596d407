//! `shardloom explain`: why a plan is as fast as it is.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::cluster::Cluster;
use shardloom::plan::{Plan, diff};
use shardloom::program::quantity::seconds;
use shardloom::search::{Rival, Topic};
use shardloom::sim::{Fit, MemoryFit};
use shardloom::{Model, explain, read_plan_and_model};

use super::interval::Interval;
use super::uplink::Network;
use super::{DeviceAnswer, ProfileFile, StackAnswer, StackName, devices_described_of, page_facts};
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Say what limits a plan, what would next, and what would change the answer
///
/// Everything said comes from experiments in the simulator: the step again with communication free, with
/// links twice as fast, with twice the micro-batches, and so on.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom explain plan.toml
  shardloom explain plan.toml --against other.toml --json")]
pub struct Explain {
    /// The plan, as `shardloom plan -o` writes it
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// Another plan to say why not to take it; may be given several times
    #[arg(long, value_name = "PLAN")]
    against: Vec<PathBuf>,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    stack: StackName,

    #[command(flatten)]
    profile: ProfileFile,
}

#[derive(Serialize)]
struct Answer {
    step_seconds: f64,
    /// The times between which four of five published steps like it were measured; null where the stack has none.
    step_seconds_interval: Option<[f64; 2]>,
    /// Whether the plan fits in memory.
    fit: Fit,
    stack: StackAnswer,
    devices: Vec<DeviceAnswer>,
    facts: Vec<Fact>,
    /// Of each other plan, the fields in which it differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    against: Vec<Against>,
}

#[derive(Serialize)]
struct Against {
    plan: String,
    differences: Vec<String>,
}

#[derive(Serialize)]
struct Fact {
    topic: &'static str,
    sentence: String,
    number: f64,
}

impl Explain {
    /// Explains.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let (mut plan, model) = read_plan_and_model(&self.plan)?;
        let written = plan.cluster.clone();
        plan.cluster = self.network.of(&written)?;
        let of = Some(self.plan.as_path());
        let cluster = self
            .stack
            .load_cluster(&plan.cluster, &self.profile.local(), terminal)
            .map_err(|error| error.in_plan(of, Some("cluster")))?;
        let mut others = vec![];
        for path in &self.against {
            let (mut other, model) = read_plan_and_model(path)?;
            // Cards or uplinks that are given are those of both.
            let on = match other.cluster == written {
                true => {
                    other.cluster.clone_from(&plan.cluster);
                    cluster.clone()
                }
                false => self
                    .stack
                    .load_cluster(&other.cluster, &self.profile.local(), terminal)
                    .map_err(|error| error.in_plan(Some(path), Some("cluster")))?,
            };
            let valid = other.validate(&other.graph_of(model.graph()), on.device_count() as usize);
            valid.map_err(|error| {
                Failure::from(shardloom::Error::from(error)).in_plan(Some(path), None)
            })?;
            others.push((path.display().to_string(), other, model, on));
        }
        let differences = |(name, other, ..): &(String, Plan, Model, Cluster)| Against {
            plan: name.clone(),
            differences: diff(&plan, other).iter().map(ToString::to_string).collect(),
        };
        let against: Vec<Against> = others.iter().map(differences).collect();
        let rivals: Vec<Rival<'_>> = others
            .iter()
            .map(|(name, plan, model, cluster)| Rival { name, plan, graph: model.graph(), cluster })
            .collect();
        let spinner = terminal.spinner("simulating");
        let explanation = explain(&model, &cluster, &plan, &rivals);
        spinner.finish_and_clear();
        let explanation = explanation.map_err(|error| Failure::from(error).in_plan(of, None))?;
        let interval = Interval::of(&plan, &cluster, explanation.step_seconds);
        if terminal.json() {
            let fact = |fact: shardloom::search::Fact| Fact {
                topic: topic(fact.topic),
                sentence: fact.sentence,
                number: fact.number,
            };
            return terminal.object(&Answer {
                step_seconds: explanation.step_seconds,
                step_seconds_interval: interval.map(|it| it.ends),
                fit: explanation.memory.iter().map(MemoryFit::fit).max().unwrap_or(Fit::Fits),
                stack: StackAnswer::of(&cluster),
                devices: DeviceAnswer::all(&cluster),
                facts: explanation.facts.into_iter().map(fact).collect(),
                against,
            });
        }
        terminal.line(super::plan_line::plan_line(&plan))?;
        if let Some(excess) = page_facts::excess(&explanation.memory) {
            terminal.line(excess)?;
        }
        let within = interval.map(|it| it.described()).unwrap_or_default();
        let step = seconds(explanation.step_seconds);
        terminal.line(format_args!("A step takes {step}{within}."))?;
        terminal.line(format_args!("Software: {}.", cluster.stack().described()))?;
        terminal.line(format_args!(
            "Devices: {}.",
            devices_described_of(&cluster, plan.device_count())
        ))?;
        for fact in explanation.facts {
            terminal.line(format_args!("- {}", fact.sentence))?;
        }
        for Against { plan, differences } in against {
            match differences[..] {
                [] => terminal.line(format_args!("{plan} is the same plan."))?,
                _ => terminal.line(format_args!("{plan} differs in"))?,
            }
            for difference in differences {
                terminal.line(format_args!("- {difference}"))?;
            }
        }
        Ok(())
    }
}

fn topic(topic: Topic) -> &'static str {
    match topic {
        Topic::Share => "share",
        Topic::Bottleneck => "bottleneck",
        Topic::Change => "change",
        Topic::Algorithm => "algorithm",
        Topic::Memory => "memory",
        Topic::Parallelism => "parallelism",
        Topic::Machine => "machine",
        Topic::Batch => "batch",
        Topic::Rival => "rival",
    }
}
