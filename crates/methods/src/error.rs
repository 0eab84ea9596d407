//! Why a method has no plan.

use std::error::Error;
use std::path::PathBuf;

use shardloom_cluster::ClusterError;
use shardloom_plan::PlanError;
use shardloom_program::ProgramError;
use shardloom_program::quantity::bytes;
use shardloom_search::SearchError;
use shardloom_sim::SimError;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum MethodError {
    /// No method is called so.
    #[error("method {name:?}: {hint}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What was probably meant.
        hint: String,
    },
    /// The method has no plan for these numbers.
    #[error("{method} has no plan here: {key} = {value}: {rule}")]
    Impossible {
        /// The method.
        method: &'static str,
        /// What stands in the way: `devices`, `blocks`, `global_batch`, `algorithm`, `post_validation` or
        /// `trials`.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// None of the method's plans fits in memory.
    #[error(
        "{model} fits on {cluster} in no plan of {method} ({simulated} simulated); closest comes {closest}, \
         which needs {} of the {} that a device has for it; take {}, or a method that splits more, such as zero or \
         megatron-lm",
        bytes(*.needed_bytes),
        bytes(*.available_bytes),
        match replicas_exceed {
            true => "larger devices",
            false => "more or larger devices, a smaller global batch",
        }
    )]
    NothingFits {
        /// The method.
        method: &'static str,
        /// The model.
        model: String,
        /// The cluster.
        cluster: String,
        /// How many plans were simulated.
        simulated: u32,
        /// The one that needs the least of its devices.
        closest: String,
        /// What it needs on its fullest device.
        needed_bytes: u64,
        /// What that device has for it.
        available_bytes: u64,
        /// Whether weights, gradients and optimizer state alone are more, and whole on each device, however many there
        /// are.
        replicas_exceed: bool,
    },
    /// A planner is asked for what cannot be.
    #[error("{key} = {value}: {rule}")]
    Planner {
        /// The field.
        key: &'static str,
        /// What was asked for.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// A file of trials is none, or cannot be read or written.
    #[error("{}{}: {fault}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    TrialsFile {
        /// The file.
        path: PathBuf,
        /// The line, where one is known.
        line: Option<usize>,
        /// What is wrong.
        fault: String,
    },
    /// A plan that was to be tried could not be.
    #[error("a trial: {0}")]
    Trial(#[source] Box<dyn Error + Send + Sync>),
    /// A request or baseline cannot be.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A plan has no program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A program has no simulation.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A plan is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The cluster lacks something.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}
