//! What is wrong with a document, and where.

use std::fmt;

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1, where one is known.
    pub line: Option<usize>,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Fault {
    /// Where it is in the document of this name: `plan.toml:4`.
    pub fn place(&self, document: &str) -> String {
        at_line(document, self.line)
    }
}

/// A line of the document of this name, where one is known: `plan.toml:4`.
pub fn at_line(document: &str, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("{document}:{line}"),
        None => document.to_owned(),
    }
}

/// `line 4: ...`, for documents without a name.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}
