//! What can be wrong with a plan.

/// Why a plan cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The text is no plan.
    #[error("{place}: {message}")]
    Text {
        /// File and line.
        place: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A field has a value that cannot be.
    #[error("{key} = {value}: {rule}")]
    Field {
        /// Path of the field, e.g. `pipeline[0].stage[1].mesh.tp()`.
        key: String,
        /// What was given.
        value: String,
        /// What would be right.
        rule: String,
    },
}

impl PlanError {
    pub(crate) fn field(
        key: impl Into<String>,
        value: impl ToString,
        rule: impl Into<String>,
    ) -> PlanError {
        PlanError::Field { key: key.into(), value: value.to_string(), rule: rule.into() }
    }
}
