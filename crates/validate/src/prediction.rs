//! What a row is predicted to take.

use shardloom_cluster::{Cluster, Residuals, Stack, StepKind};
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::Program;
use shardloom_sim::{Fit, Options, StepShares, simulate, step_kind};

use crate::case::MemoryOf;
use crate::hardware::plan;
use crate::prepared::Prepared;
use crate::{Case, Refusal};

/// What a step is predicted to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Its time, once steps follow each other.
    pub step_seconds: f64,
    /// Most memory that a device holds, of those whose memory was measured.
    pub peak_bytes: u64,
    /// Whether any device holds more than it has.
    pub exceeds: bool,
    /// Samples of a micro-batch on one replica.
    pub micro_batch: usize,
    /// What its devices do with its time.
    pub shares: StepShares,
    /// What decides which published rows it is like.
    pub step_kind: StepKind,
    /// Their residuals under the stack of the prediction, if it has any.
    pub residuals: Option<Residuals>,
}

impl Case {
    /// Simulates it under `stack`, or else under the stack that it ran under.
    ///
    /// # Errors
    /// If there is no such model, cluster or plan.
    pub fn predict(&self, stack: Option<&Stack>) -> Result<Prediction, Refusal> {
        Prepared::new(self, stack)?.predict(None)
    }
}

/// Simulates the program of `made`.
pub(crate) fn simulated(
    graph: &Graph,
    cluster: &Cluster,
    made: &Plan,
    program: &Program,
    micro_batch: usize,
    memory_of: MemoryOf,
) -> Result<Prediction, Refusal> {
    let simulation =
        simulate(graph, cluster, program, Options::default()).map_err(|error| plan(&error))?;
    let memory = simulation.memory_fits(program, cluster).map_err(|error| plan(&error))?;
    let measured = memory.iter().filter(|it| memory_of == MemoryOf::Fullest || it.rank == 0);
    let step_kind = step_kind(made, cluster);
    Ok(Prediction {
        step_seconds: simulation.step_time().seconds(),
        peak_bytes: measured.map(|rank| rank.peak_bytes).max().unwrap_or(0),
        exceeds: memory.iter().any(|rank| rank.fit() == Fit::Exceeds),
        micro_batch,
        shares: simulation.shares(),
        residuals: cluster.stack().residuals_of(&step_kind).cloned(),
        step_kind,
    })
}
