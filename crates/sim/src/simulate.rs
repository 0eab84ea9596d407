//! A program's simulation from the cost model.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_program::Program;
use shardloom_program::timeline::{Picos, Timeline};

use crate::{Modelled, Options, SimError, run};

/// What happened when, over some steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// All steps, one after another.
    pub timeline: Timeline,
    /// For each track, when each step's last instruction ended.
    pub step_ends: Vec<Vec<Picos>>,
    /// How many of the last steps lack what would run beside them: the pipeline drains.
    pub draining: usize,
}

/// Simulates `program`, lowered from `graph`, on `cluster`. Without a flush there are further steps, that
/// fill the pipeline and drain it.
///
/// # Errors
/// If the cluster lacks a device of the program, a device does not compute in its precision, or ranks
/// wait for each other for ever.
pub fn simulate(
    graph: &Graph,
    cluster: &Cluster,
    program: &Program,
    options: Options,
) -> Result<Simulation, SimError> {
    let mut driver = Modelled::new(graph, cluster, program)?;
    run(program, cluster, options.filled(program), &mut driver)
}

impl Simulation {
    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.step_ends.first().map_or(0, Vec::len)
    }

    /// How long a step takes once steps follow each other: the longest that a rank takes from the end
    /// of the last step but one to that of the last, before the pipeline drains. With a single step, the
    /// time to its end.
    pub fn step_time(&self) -> Picos {
        let full = self.steps().saturating_sub(self.draining);
        let last = |ends: &Vec<Picos>| match &ends[..if full > 1 { full } else { ends.len() }] {
            [.., before, last] => last.since(*before),
            [only] => *only,
            [] => Picos::ZERO,
        };
        self.step_ends.iter().map(last).max().unwrap_or_default()
    }
}
