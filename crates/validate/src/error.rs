//! What can be wrong with a file of measurements.

use std::path::PathBuf;

/// Why a file of measurements cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: csv::Error,
    },
    /// It has a column that no schema has, or one that its schema has not.
    #[error("{}:1: {what}", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Which column, and what would be right.
        what: String,
    },
    /// A cell does not hold what its column says.
    #[error("{}:{line}: column {column}: {what}", .path.display())]
    Cell {
        /// The file.
        path: PathBuf,
        /// Line of the row, counted from 1.
        line: u64,
        /// The column.
        column: String,
        /// What is there, and what would be right.
        what: String,
    },
    /// A row has too few or too many cells, or is not text.
    #[error("{}:{line}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line of the row, counted from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

impl ValidateError {
    /// The file.
    pub fn path(&self) -> &PathBuf {
        match self {
            ValidateError::Read { path, .. }
            | ValidateError::Header { path, .. }
            | ValidateError::Cell { path, .. }
            | ValidateError::Line { path, .. } => path,
        }
    }
}
