//! Files of documents, of each of which one field is the text.

mod json_lines;
#[cfg(feature = "parquet")]
mod parquet;

use std::path::Path;

use json_lines::JsonLines;
#[cfg(feature = "parquet")]
use parquet::ParquetRows;

use crate::Result;

/// The longest line of JSON or text of a row, as all of it is in memory.
const LONGEST: usize = 1 << 24;

/// What a file of documents is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A JSON object in each line.
    JsonLines,
    /// A table in Parquet, whose rows are documents.
    Parquet,
}

impl Form {
    /// Whether this build can read it.
    pub fn is_known(self) -> bool {
        self != Form::Parquet || cfg!(feature = "parquet")
    }

    /// Whether its bytes are characters.
    pub fn is_text(self) -> bool {
        self == Form::JsonLines
    }
}

/// The texts of a file.
pub(crate) enum Documents<'a> {
    JsonLines(JsonLines<'a>),
    #[cfg(feature = "parquet")]
    Parquet(Box<ParquetRows<'a>>),
}

impl<'a> Documents<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read, is Parquet without such a column, or of a form that this build cannot read.
    pub fn open(form: Form, path: &Path, field: &'a str) -> Result<Documents<'a>> {
        match form {
            Form::JsonLines => JsonLines::open(path, field).map(Documents::JsonLines),
            #[cfg(feature = "parquet")]
            Form::Parquet => {
                let rows = ParquetRows::open(path, field)?;
                Ok(Documents::Parquet(Box::new(rows)))
            }
            #[cfg(not(feature = "parquet"))]
            Form::Parquet => Err(crate::DataError::NoParquet { path: path.to_path_buf() }),
        }
    }

    /// The next text; none behind the last.
    ///
    /// # Errors
    /// If the file cannot be read, or a document has no such text.
    pub fn next(&mut self) -> Result<Option<String>> {
        match self {
            Documents::JsonLines(lines) => lines.next(),
            #[cfg(feature = "parquet")]
            Documents::Parquet(rows) => rows.next(),
        }
    }
}
