//! What can go wrong in lowering.

use shardloom_collectives::Algorithm;
use shardloom_schedule::ScheduleError;

/// Why a plan has no program.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProgramError {
    /// The plan does not fit the model or the cluster.
    #[error(transparent)]
    Plan(#[from] shardloom_plan::PlanError),
    /// More servers than ranges of parameters to deal to them.
    #[error(
        "{key} = {servers}: ranges of parameters are dealt to servers, and there are {ranges}; take fewer \
         servers, or {instead}"
    )]
    TooManyServers {
        /// What the plan says them by.
        key: &'static str,
        /// The servers.
        servers: u32,
        /// The ranges.
        ranges: usize,
        /// What would make more.
        instead: &'static str,
    },
    /// An algorithm whose inner groups divide none of the groups of ranks that are to take it.
    #[error(
        "sync.algorithm = {algorithm}: its inner groups divide no group of ranks that is to take it; give \
         another size, or an algorithm without inner groups"
    )]
    InnerGroups {
        /// The algorithm that the plan names.
        algorithm: Algorithm,
    },
    /// Two operators want the same parameter in different layouts.
    #[error(
        "parameter {name} is used in two layouts, {first} and {second}; choose layout rules that split its uses alike"
    )]
    ParameterLayouts {
        /// The parameter.
        name: String,
        /// One layout.
        first: String,
        /// The other.
        second: String,
    },
    /// A parameter's gradient must be reduced in one use and not in another.
    #[error(
        "parameter {name} has a gradient that is partial over {first} in one use and over {second} in another; choose layout rules that split its uses alike"
    )]
    ParameterGradients {
        /// The parameter.
        name: String,
        /// Mesh axes of one use.
        first: String,
        /// Mesh axes of the other.
        second: String,
    },
    /// An optimizer with sums over rows and columns needs each part of a parameter to lie in a range of
    /// both.
    #[error(
        "adafactor keeps sums over the rows and columns of {name}, and the layout splits it along {dim}, which is not the first axis of either; split it along another dimension or choose another optimizer"
    )]
    FactoredSplit {
        /// The parameter.
        name: String,
        /// The dimension it is split along.
        dim: String,
    },
    /// No sequence of collectives leads from one layout to another.
    #[error("{name}: no redistribution from {from} to {to}")]
    Redistribution {
        /// The tensor.
        name: String,
        /// What the producer gives.
        from: String,
        /// What the consumer needs.
        to: String,
    },
    /// Rows whose number is known only while running would have to change their layout in a way that they
    /// cannot.
    #[error(
        "{name} has as many rows as turn out while running, and they go from samples to experts or back and no other way, not from {from} to {to}; split experts over a mesh axis that splits the batch, before the batch in the layout"
    )]
    Rows {
        /// The tensor.
        name: String,
        /// How it is spread.
        from: String,
        /// How it would have to be.
        to: String,
    },
    /// A parameter that lives in two stages needs both to have the same mesh.
    #[error(
        "parameter {name} lives in stages {first} and {second}, whose meshes differ ({first_mesh} against {second_mesh}); give both the same mesh or untie the weights"
    )]
    SharedMeshes {
        /// The parameter.
        name: String,
        /// First stage.
        first: usize,
        /// Second stage.
        second: usize,
        /// The first stage's mesh.
        first_mesh: String,
        /// The second stage's mesh.
        second_mesh: String,
    },
    /// A schedule breaks one of its rules.
    #[error(transparent)]
    Schedule(ScheduleError),
}

impl From<ScheduleError> for ProgramError {
    fn from(error: ScheduleError) -> ProgramError {
        match error {
            ScheduleError::Plan(error) => ProgramError::Plan(error),
            ScheduleError::Rule(_) | ScheduleError::Count { .. } => ProgramError::Schedule(error),
        }
    }
}
