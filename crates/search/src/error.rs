//! What can go wrong in a search.

use shardloom_program::ProgramError;
use shardloom_program::quantity::bytes;
use shardloom_sim::SimError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A request cannot be.
    #[error("{key} = {value}: {rule}")]
    Request {
        /// The field.
        key: &'static str,
        /// What was asked for.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// No layout can be lowered.
    #[error(
        "no plan of {model} can be lowered: on every number of devices some operator needs a whole tensor \
         to become a partial one, or a parameter to be split in two ways"
    )]
    NoLayout {
        /// The model's name.
        model: String,
    },
    /// No plan has what was asked for.
    #[error("no plan of {model} on {cluster} has {only}: {rule}")]
    NoneWith {
        /// The model's name.
        model: String,
        /// The cluster.
        cluster: String,
        /// What was asked for.
        only: String,
        /// What would be right.
        rule: String,
    },
    /// Whoever is to run a plan runs none.
    #[error("{runner} runs no plan of {model} on {cluster}{only}: {reason}")]
    NoneRuns {
        /// The model's name.
        model: String,
        /// The cluster.
        cluster: String,
        /// Who was to run it.
        runner: String,
        /// What else was asked for.
        only: String,
        /// Why not.
        reason: Box<str>,
    },
    /// No plan fits in memory.
    #[error(
        "{model} fits on {cluster} in no plan ({space} looked at); closest comes {closest}, which needs \
         {} of the {} that a device has for it; {remedy}",
        bytes(*.needed_bytes),
        bytes(*.available_bytes)
    )]
    NothingFits {
        /// The model's name.
        model: String,
        /// The cluster.
        cluster: String,
        /// How many plans there are.
        space: usize,
        /// The plan that needs the least memory.
        closest: String,
        /// What it needs on its fullest device.
        needed_bytes: u64,
        /// What devices have.
        available_bytes: u64,
        /// What would make it fit.
        remedy: String,
    },
    /// A plan has no program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A program has no simulation.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A cluster for an experiment cannot be built.
    #[error(transparent)]
    Cluster(#[from] shardloom_cluster::ClusterError),
}

impl SearchError {
    /// Whether a plan was not simulated because it has too many instructions.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, SearchError::Sim(SimError::TooMany { .. }))
    }
}
