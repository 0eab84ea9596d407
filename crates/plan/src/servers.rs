//! Parameter servers: how many there are, and what workers push to them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardloom_graph::Graph;

use crate::summation::with_colocated;
use crate::{Ranges, ServerSet, Share, Staleness, Summation};

/// Parameter servers (Li et al. 2014, OSDI): every pipeline is one stage with the whole model, a worker. It
/// pulls the weights from the servers, each of which holds ranges of the parameters, and pushes its gradients
/// of a step. Without staleness servers add up what all workers push and update once a step; with some, they
/// update with a worker's gradients as soon as these come. Or workers update, and push what that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Servers {
    /// How many there are on machines of their own: the devices after those of the pipelines.
    pub count: u32,
    /// Whether each worker's device has a server besides; they come after the others, in the order of workers. Both
    /// kinds hold as much as makes all links equally busy, see [`Share::Balanced`](crate::Share::Balanced).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub colocated: bool,
    /// A worker begins step t once all workers' gradients of the first t - `staleness` steps have been
    /// applied; with 0, of all before it; unbounded, whatever has been. A row of steps that are trained
    /// together ends with all applied, so rows of a single step are synchronous whatever this says.
    pub staleness: Staleness,
    /// What workers push.
    #[serde(default, skip_serializing_if = "Push::is_default")]
    pub push: Push,
    /// How many further servers have a replica of each range, weights and optimizer state: those that follow its
    /// owner on the ring. The owner sends them the gradients that it has added up, with which they update too, and
    /// no worker goes on before they have. For servers without staleness.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replicas: u32,
    /// Servers that are no more: their ranges belong to the first that follows and is left. Their devices stand
    /// idle, and the others keep theirs.
    #[serde(default, skip_serializing_if = "ServerSet::is_empty")]
    pub lost: ServerSet,
}

/// What workers of parameter servers push at the end of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Push {
    /// Their parts of the mean gradients: servers keep the optimizer's state, and update.
    #[default]
    Gradients,
    /// By how much their own update, with the mean of their own gradients, has changed the weights: each keeps
    /// an optimizer's state of its own, and servers add what comes to the weights (Jiang et al. 2020, OSDI, and
    /// BytePS's code with `BYTEPS_ENABLE_ASYNC`).
    Deltas,
}

impl Push {
    /// All of them.
    pub const ALL: [Push; 2] = [Push::Gradients, Push::Deltas];

    fn is_default(&self) -> bool {
        *self == Push::default()
    }

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Push::Gradients => "gradients",
            Push::Deltas => "deltas",
        }
    }
}

impl FromStr for Push {
    type Err = String;

    fn from_str(text: &str) -> Result<Push, String> {
        let found = Push::ALL.into_iter().find(|push| push.name() == text);
        found.ok_or_else(|| format!("{text} is neither gradients nor deltas"))
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Servers {
    /// The size of partitions in BytePS (Jiang et al. 2020, OSDI).
    pub const PARTITION_BYTES: usize = 4_096_000;

    /// So many servers, to which workers push gradients, none of them lost, without replicas.
    pub fn of(count: u32, staleness: Staleness) -> Servers {
        let (push, lost) = (Push::default(), ServerSet::default());
        Servers { count, colocated: false, staleness, push, replicas: 0, lost }
    }

    /// How many there are for so many workers, colocated and lost ones included.
    pub fn of_workers(self, workers: usize) -> u32 {
        with_colocated(self.count, self.colocated, workers)
    }

    /// How much of the parameters those on machines of their own hold where others are colocated, from 0 to 1.
    pub fn own_part(self, workers: usize) -> f64 {
        if self.count == 0 { 0.0 } else { Share::Balanced.part(workers, self.count) }
    }

    /// The numbers of those that so many workers have left, ascending.
    pub fn left(self, workers: usize) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.of_workers(workers)).filter(move |&server| !self.lost.contains(server))
    }

    /// The most bytes of a range of parameters where nobody says it: [`Servers::PARTITION_BYTES`], or of a small model
    /// what leaves 64 ranges, so that there is some for every server, and of a large one what leaves so many `workers`
    /// 65,536 together, as each sends and receives every range.
    pub fn bucket_bytes(self, graph: &Graph, workers: usize) -> usize {
        partition_bytes(graph, workers)
    }
}

impl Summation {
    /// The most bytes of a bucket where nobody says it: as [`Servers::bucket_bytes`] where pieces are hashed;
    /// where buckets are cut into equal pieces, `usual`.
    pub fn bucket_bytes(self, graph: &Graph, workers: usize, usual: usize) -> usize {
        match self.ranges {
            Ranges::Hashed => partition_bytes(graph, workers),
            Ranges::Equal => usual,
        }
    }
}

/// The most ranges that all workers together send.
const MOST_RANGES: usize = 1 << 16;

fn partition_bytes(graph: &Graph, workers: usize) -> usize {
    let all = 4 * graph.parameter_count() as usize;
    let of_most = all.saturating_mul(workers) / MOST_RANGES;
    (all / 64).clamp(4, Servers::PARTITION_BYTES.max(of_most))
}
