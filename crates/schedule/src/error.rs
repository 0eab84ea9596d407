//! What can go wrong with schedules.

/// Why an order of passes, or a map of stages, is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// The plan's words do not fit together.
    #[error(transparent)]
    Plan(#[from] shardloom_plan::PlanError),
    /// It breaks one of the rules of schedules.
    #[error("schedule: {0}")]
    Rule(String),
}
