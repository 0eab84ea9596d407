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
    /// A count that the schedule cannot have.
    #[error("schedule: {rule}")]
    Count {
        /// Which one, by its name in a plan that is described by numbers: `chunks` or `microbatches`.
        key: &'static str,
        /// What was given.
        value: usize,
        /// What would be right.
        rule: String,
    },
}

impl ScheduleError {
    /// So many stages on each device cannot be.
    pub(crate) fn chunks(value: usize, rule: impl Into<String>) -> ScheduleError {
        ScheduleError::Count { key: "chunks", value, rule: rule.into() }
    }

    /// So many micro-batches cannot be.
    pub(crate) fn microbatches(value: usize, rule: impl Into<String>) -> ScheduleError {
        ScheduleError::Count { key: "microbatches", value, rule: rule.into() }
    }
}
