//! `shardloom profile`: measures this machine.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use shardloom::cluster::{Cluster, NodeGroup, Precision, Profile as Machine};
use shardloom::fabric::InProcess;
use shardloom::profile::{Effort, Options, Scope, check, measure};
use shardloom::program::quantity::{bytes, digits, percent, seconds, signed_percent};
use shardloom::{Launched, disturbed_percent};

use super::{ProfileFile, in_processes};
use crate::failure::Failure;
use crate::number::whole;
use crate::output_file::OutputFile;
use crate::table::table;
use crate::terminal::Terminal;

/// Measure this machine's operators and links, which predicted step times come from; under mpirun or srun
/// those of all machines and between them
///
/// Without -o the profile is kept for later runs, where `local` stands for this machine, or which are started
/// on the same machines.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom profile
  shardloom profile --thorough --check
  shardloom profile --ranks 4 -o cluster.toml
  shardloom launch --hosts node1:8,node2:8 -- profile -o machines.toml")]
pub struct Profile {
    /// Write a cluster file instead, for --cluster here or on another machine
    #[arg(short, long, value_name = "FILE", conflicts_with = "profile")]
    output: Option<PathBuf>,

    /// Ranks that run at once, each on a core of its own [default: all cores]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroUsize>)]
    ranks: Option<NonZeroUsize>,

    /// Measure for some minutes instead of about one
    #[arg(long)]
    thorough: bool,

    /// Measure operators in fp16, too, beside fp32 and bf16, for plans with --precision fp16: half as long again
    #[arg(long)]
    fp16: bool,

    /// Afterwards compare the profile with operators of sizes that were not measured
    #[arg(long)]
    check: bool,

    /// Overwrite the cluster file if it exists
    #[arg(long, requires = "output")]
    force: bool,

    #[command(flatten)]
    profile: ProfileFile,
}

#[derive(Serialize)]
struct Answer {
    path: String,
    seconds: f64,
    profile: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Vec<Row>>,
}

/// Machines that several processes measured.
#[derive(Serialize)]
struct Machines {
    path: String,
    seconds: f64,
    machines: Vec<Nodes>,
}

/// Equal machines.
#[derive(Serialize)]
struct Nodes {
    nodes: u32,
    devices_per_node: u32,
    profile: Machine,
}

#[derive(Serialize)]
struct Row {
    operator: String,
    size: String,
    estimated_seconds: f64,
    measured_seconds: f64,
    error: f64,
}

impl Profile {
    /// Measures; where `mpirun` or `srun` started several processes, the machines of all.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        in_processes(
            terminal,
            |launched| match launched {
                None => self.measure_here(terminal),
                Some(launched) => self.lead(launched, terminal),
            },
            |launched| Ok(launched.follow()?),
        )
    }

    fn scope(&self) -> Scope {
        let effort = if self.thorough { Effort::Thorough } else { Effort::Quick };
        Scope { effort, fp16: self.fp16 }
    }

    /// Has all processes measure.
    fn lead(&self, launched: &Launched, terminal: Terminal) -> Result<(), Failure> {
        let output = OutputFile::optional(self.output.as_ref(), self.force)?;
        let here = [("--ranks", self.ranks.is_some()), ("--check", self.check)];
        if let Some((option, _)) = here.into_iter().find(|&(_, given)| given) {
            let message = format!("{option}: is of one machine, without processes on others");
            return Err(Failure::usage(option, message));
        }
        let local = self.profile.local();
        let bar = terminal.share();
        let mut hear = super::measuring(&bar, "all machines", terminal);
        let start = Instant::now();
        let (cluster, path) = match &output {
            Some(file) => {
                let cluster = launched.measure(self.scope(), &mut hear)?;
                file.write(cluster.to_toml().map_err(shardloom::Error::from)?)?;
                (cluster, file.path().to_path_buf())
            }
            None => {
                let cluster = launched.measure_and_keep(&local, self.scope(), &mut hear)?;
                (cluster, launched.file(&local)?)
            }
        };
        let elapsed_seconds = start.elapsed().as_secs_f64();
        bar.finish_and_clear();
        launched.end()?;
        if terminal.json() {
            let nodes = |group: &NodeGroup| Nodes {
                nodes: group.nodes,
                devices_per_node: group.devices_per_node,
                profile: group.profile.clone(),
            };
            let machines = cluster.groups().iter().map(nodes).collect();
            let path = path.display().to_string();
            return terminal.object(&Machines { path, seconds: elapsed_seconds, machines });
        }
        for group in cluster.groups() {
            terminal.line(format_args!(
                "{}, nodes of its kind: {}",
                group.profile.device.name, group.nodes
            ))?;
            show(&group.profile, terminal)?;
        }
        if cluster.node_count() > 1 {
            show_links(&cluster, terminal)?;
        }
        let path = path.display();
        terminal.line(format_args!("Measured in {}; written to {path}", seconds(elapsed_seconds)))
    }

    fn measure_here(&self, terminal: Terminal) -> Result<(), Failure> {
        let output = OutputFile::optional(self.output.as_ref(), self.force)?;
        self.require_cores()?;
        let options = Options { ranks: self.ranks, memory_bytes: None, scope: self.scope() };
        let bar = terminal.share();
        let mut hear = super::measuring(&bar, "this machine", terminal);
        let start = Instant::now();
        let (profile, path) = match &output {
            Some(file) => {
                let profile =
                    measure(&InProcess, options, &mut hear).map_err(shardloom::Error::from)?;
                file.write(cluster_file(&profile)?)?;
                (profile, file.path().to_path_buf())
            }
            None => {
                let local = self.profile.local();
                (local.measure(options, &mut hear)?, local.path()?.to_path_buf())
            }
        };
        let elapsed_seconds = start.elapsed().as_secs_f64();
        let rows = match self.check {
            true => {
                let estimates = check(&profile, &InProcess, options, &mut hear);
                Some(estimates.map_err(shardloom::Error::from)?)
            }
            false => None,
        };
        bar.finish_and_clear();
        let rows = rows.map(|estimates| {
            let row = |estimate: shardloom::profile::Estimate| Row {
                error: estimate.error(),
                operator: estimate.class,
                size: estimate.size,
                estimated_seconds: estimate.estimated_seconds,
                measured_seconds: estimate.measured_seconds,
            };
            estimates.into_iter().map(row).collect::<Vec<Row>>()
        });
        if terminal.json() {
            let path = path.display().to_string();
            return terminal.object(&Answer {
                path,
                seconds: elapsed_seconds,
                profile,
                check: rows,
            });
        }
        show(&profile, terminal)?;
        super::note_disturbed(disturbed_percent(&profile), terminal);
        if let Some(rows) = rows {
            let cells = rows.iter().map(|row| {
                vec![
                    row.operator.clone(),
                    row.size.clone(),
                    seconds(row.estimated_seconds),
                    seconds(row.measured_seconds),
                    signed_percent(row.error),
                ]
            });
            let heading = ["operator", "size", "by the profile", "measured", "error"];
            terminal.text(table(&heading, &cells.collect::<Vec<_>>()))?;
            terminal.line(in_short(&rows))?;
        }
        let path = path.display();
        terminal.line(format_args!("Measured in {}; written to {path}", seconds(elapsed_seconds)))
    }

    /// More ranks than cores would take turns, and some thousands exhaust the memory.
    fn require_cores(&self) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism().ok();
        match self.ranks.zip(cores).filter(|(ranks, cores)| ranks > cores) {
            Some((ranks, cores)) => {
                let message =
                    format!("--ranks {ranks}: this machine has {cores} cores, one for each");
                Err(Failure::usage("--ranks", message))
            }
            None => Ok(()),
        }
    }
}

/// How far the profile is off in all.
fn in_short(rows: &[Row]) -> String {
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by(|one, other| one.error.abs().total_cmp(&other.error.abs()));
    let (Some(middle), Some(worst)) = (order.get(order.len() / 2), order.last()) else {
        return "nothing was compared".into();
    };
    format!(
        "{} of {} are within 10%; half are within {}, and the worst is {} {} with {}",
        order.iter().filter(|row| row.error.abs() <= 0.1).count(),
        order.len(),
        percent(middle.error.abs()),
        worst.operator,
        worst.size,
        signed_percent(worst.error)
    )
}

/// What links between machines do.
fn show_links(cluster: &Cluster, terminal: Terminal) -> Result<(), Failure> {
    let mut slowest = cluster.groups().iter().map(|group| &group.profile.node).collect::<Vec<_>>();
    slowest.sort_by(|one, other| {
        one.uplink_bytes_per_second.total_cmp(&other.uplink_bytes_per_second)
    });
    let Some(node) = slowest.first() else { return Ok(()) };
    terminal.line(format_args!(
        "between machines: {} for a small message, {} of 1 MiB; all ranks of a machine together {}/s",
        seconds(node.inter.latency_seconds),
        seconds(node.inter.transfer_seconds(MESSAGE_BYTES)),
        bytes(node.uplink_bytes_per_second as u64)
    ))
}

/// A message that tells links apart.
const MESSAGE_BYTES: f64 = 1048576.0;

/// The machine as a cluster of one node.
fn cluster_file(profile: &Machine) -> Result<String, Failure> {
    let group =
        NodeGroup { profile: profile.clone(), nodes: 1, devices_per_node: profile.node.devices };
    let cluster = Cluster::new(vec![group]).and_then(|cluster| cluster.to_toml());
    Ok(cluster.map_err(shardloom::Error::from)?)
}

/// A few numbers that tell machines apart.
fn show(profile: &Machine, terminal: Terminal) -> Result<(), Failure> {
    const SIDE: u64 = 512;
    let device = &profile.device;
    terminal.line(format_args!(
        "{} ranks, {} of memory each",
        profile.node.devices,
        bytes(device.memory_bytes)
    ))?;
    let product = device.matmul_seconds(Precision::Fp32, 1, SIDE, SIDE, SIDE);
    let product_seconds = product.map_err(shardloom::Error::from)?;
    let flops = 2.0 * (SIDE * SIDE * SIDE) as f64;
    terminal.line(format_args!(
        "matrix product {SIDE} x {SIDE} x {SIDE}: {} ({} GFLOP/s)",
        seconds(product_seconds),
        digits(flops / product_seconds / 1e9)
    ))?;
    let message_seconds = profile.node.intra.transfer_seconds(MESSAGE_BYTES);
    terminal.line(format_args!("message of 1 MiB between ranks: {}", seconds(message_seconds)))
}
