//! What can be wrong with a log.

use std::path::PathBuf;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No line of it tells of a step.
    #[error("{}: no line tells of a step; logs are known: {signs}", .path.display())]
    NoSteps {
        /// The file.
        path: PathBuf,
        /// By what lines are known.
        signs: String,
    },
    /// A table has no time of steps.
    #[error(
        "{}:1: none of the columns {columns} is a time of steps; that can be {known}",
        .path.display()
    )]
    Header {
        /// The file.
        path: PathBuf,
        /// Its columns.
        columns: String,
        /// The columns that say how fast steps are.
        known: String,
    },
    /// A row of a table is not what its header says.
    #[error("{}:{line}: {what}", .path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What is wrong.
        what: String,
    },
}
