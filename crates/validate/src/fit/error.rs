//! What can be wrong with a fit.

use shardloom_cluster::ClusterError;

use crate::Refusal;

/// Why constants cannot be fitted.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The stack has no constant of that name.
    #[error("{name} is no constant of the stack {stack}, which has {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The stack.
        stack: String,
        /// Its constants.
        known: String,
    },
    /// A constant is 0.
    #[error(
        "{name} is 0 under the stack {stack}, and constants are searched by factors of what they are: give it a \
         value in a file that --stack reads"
    )]
    Zero {
        /// The constant.
        name: String,
        /// The stack.
        stack: String,
    },
    /// No row has a time that counts and can be predicted.
    #[error("no row that is predicted under the stack {stack} has a time to fit to")]
    NoRows {
        /// The stack.
        stack: String,
    },
    /// A row can be predicted with some constants and not with others.
    #[error("a row cannot be predicted with other constants: {0}")]
    Prediction(#[source] Refusal),
    /// The stack cannot be changed so.
    #[error(transparent)]
    Stack(#[from] ClusterError),
}
