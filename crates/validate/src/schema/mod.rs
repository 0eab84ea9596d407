//! The forms of files of measurements, told apart by their columns.

mod korthikanti;
mod megatron_2021;
mod operators;
mod published;
mod vtrain;
mod weak_scaling;

use std::path::{Path, PathBuf};

use csv::{DeserializeErrorKind, ErrorKind, ReaderBuilder, StringRecord};
use serde::de::DeserializeOwned;
use shardloom_document::read_document;

use crate::line::{COMMENT, line_of};
use crate::{OperatorRow, Row, ValidateError};

/// A file of measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// The file.
    pub path: PathBuf,
    /// What its columns are called together.
    pub schema: &'static str,
    /// Why nothing can be compared with what it holds, if so.
    pub refused: Option<&'static str>,
    /// Its rows, where it has steps.
    pub rows: Vec<Row>,
    /// Its rows, where it has operators.
    pub operators: Vec<OperatorRow>,
}

/// A form of files.
struct Schema {
    name: &'static str,
    columns: &'static [&'static str],
    holds: Holds,
}

/// What files of a form hold.
enum Holds {
    /// Steps.
    Steps {
        /// The column that says how many samples a step has.
        batch: &'static str,
        /// What reads them.
        rows: fn(&Table) -> Result<Vec<Row>, ValidateError>,
    },
    /// Single operators.
    Operators(fn(&Table) -> Result<Vec<OperatorRow>, ValidateError>),
    /// Something else.
    Other(&'static str),
}

const NO_BATCH: &str = "no row says how many samples a step has: ratios, not steps";

const SCHEMAS: [Schema; 8] = [
    Schema {
        name: "published",
        columns: &published::COLUMNS,
        holds: Holds::Steps { batch: "gbs", rows: published::rows },
    },
    Schema {
        name: "vtrain-multi-node",
        columns: &vtrain::MULTI_NODE,
        holds: Holds::Steps { batch: "global_batch", rows: vtrain::rows },
    },
    Schema {
        name: "vtrain-single-node",
        columns: &vtrain::SINGLE_NODE,
        holds: Holds::Steps { batch: "global_batch", rows: vtrain::rows },
    },
    Schema {
        name: "korthikanti",
        columns: &korthikanti::COLUMNS,
        holds: Holds::Steps { batch: "global_batch", rows: korthikanti::rows },
    },
    Schema {
        name: "weak-scaling",
        columns: &weak_scaling::COLUMNS,
        holds: Holds::Steps { batch: "global_batch", rows: weak_scaling::rows },
    },
    Schema {
        name: "schedule-ratios",
        columns: &[
            "schedule",
            "microbatches_24",
            "microbatches_32",
            "microbatches_64",
            "memory_gb",
        ],
        holds: Holds::Other(
            "it compares schedules on a model whose shape is not certain: ratios, not steps",
        ),
    },
    Schema {
        name: "operators",
        columns: &operators::COLUMNS,
        holds: Holds::Operators(operators::rows),
    },
    Schema {
        name: "kernels",
        columns: &["system", "op", "peak_tflops", "shape", "measured_fraction_of_peak"],
        holds: Holds::Other("it has times of kernels, not steps"),
    },
];

/// Reads a file. Lines that begin with `#` are comments.
///
/// # Errors
/// If it cannot be read, its columns are those of no known schema, or a cell does not hold what its column
/// says; then with file and line.
pub fn read(path: &Path) -> Result<Measurements, ValidateError> {
    let table = Table::read(path)?;
    let schema = table.schema()?;
    let mut found = Measurements {
        path: path.to_owned(),
        schema: schema.name,
        refused: None,
        rows: vec![],
        operators: vec![],
    };
    match schema.holds {
        Holds::Steps { batch, .. } if table.is_without(batch) => found.refused = Some(NO_BATCH),
        Holds::Steps { rows, .. } => found.rows = rows(&table)?,
        Holds::Operators(rows) => found.operators = rows(&table)?,
        Holds::Other(why) => found.refused = Some(why),
    }
    Ok(found)
}

/// A file as text in cells.
struct Table {
    path: PathBuf,
    header: StringRecord,
    /// Each with its line.
    records: Vec<(u64, StringRecord)>,
}

impl Table {
    fn read(path: &Path) -> Result<Table, ValidateError> {
        let text = read_document(path)
            .map_err(|error| ValidateError::Read { path: path.into(), source: error.into() })?;
        let failed = |error: csv::Error| {
            let line = line_of(&text, error.position()) as u64;
            let line_error = |what: String| ValidateError::Line { path: path.into(), line, what };
            match error.kind() {
                ErrorKind::UnequalLengths { expected_len, len, .. } => {
                    line_error(format!("there are {len} cells, and {expected_len} columns"))
                }
                ErrorKind::Utf8 { err, .. } => line_error(err.to_string()),
                _ => ValidateError::Read { path: path.into(), source: error },
            }
        };
        let mut reader = ReaderBuilder::new().comment(Some(COMMENT)).from_reader(&text[..]);
        let header = reader.headers().map_err(failed)?.clone();
        let with_line = |record: StringRecord| (line_of(&text, record.position()) as u64, record);
        let records = reader.records().map(|record| record.map(with_line));
        let records = records.collect::<Result<_, _>>().map_err(failed)?;
        Ok(Table { path: path.to_owned(), header, records })
    }

    /// The schema whose columns these are, in any order.
    fn schema(&self) -> Result<&'static Schema, ValidateError> {
        let has = |column: &&str| self.header.iter().any(|it| it == *column);
        let shared = |schema: &Schema| schema.columns.iter().filter(|it| has(it)).count();
        let unlike = |schema: &Schema| {
            schema.columns.len() + self.header.len() - 2 * shared(schema).min(self.header.len())
        };
        let nearest = SCHEMAS.iter().min_by_key(|schema| unlike(schema));
        let wrong = |what: String| ValidateError::Header { path: self.path.clone(), what };
        let Some(schema) = nearest.filter(|schema| 2 * shared(schema) >= schema.columns.len())
        else {
            let first = self.header.get(0).unwrap_or("");
            let names: Vec<&str> = SCHEMAS.iter().map(|schema| schema.name).collect();
            let names = names.join(", ");
            return Err(wrong(format!(
                "the columns from {first:?} on are those of no known schema; there are {names}"
            )));
        };
        let name = schema.name;
        if let Some(unknown) = self.header.iter().find(|it| !schema.columns.contains(it)) {
            return Err(wrong(format!("column {unknown:?} is not one of the schema {name}")));
        }
        if let Some(missing) = schema.columns.iter().find(|it| !has(it)) {
            return Err(wrong(format!("column {missing:?} of the schema {name} is missing")));
        }
        if self.header.len() > schema.columns.len() {
            return Err(wrong(format!("a column of the schema {name} is there twice")));
        }
        Ok(schema)
    }

    /// Whether there are rows, and none has anything in this column.
    fn is_without(&self, column: &str) -> bool {
        let Some(index) = self.header.iter().position(|it| it == column) else { return false };
        let is_empty = |record: &StringRecord| record.get(index).is_none_or(str::is_empty);
        !self.records.is_empty() && self.records.iter().all(|(_, record)| is_empty(record))
    }

    /// The rows as `R`, each with its line.
    fn rows<R: DeserializeOwned>(
        &self,
    ) -> impl Iterator<Item = Result<(Line<'_>, R), ValidateError>> {
        self.records.iter().map(|&(number, ref record)| {
            let line = Line { table: self, number, record };
            let row =
                record.deserialize(Some(&self.header)).map_err(|error| line.refuse(&error))?;
            Ok((line, row))
        })
    }
}

/// Where a row stands.
#[derive(Clone, Copy)]
struct Line<'t> {
    table: &'t Table,
    number: u64,
    record: &'t StringRecord,
}

impl Line<'_> {
    fn refuse(self, error: &csv::Error) -> ValidateError {
        let ErrorKind::Deserialize { err, .. } = error.kind() else {
            let what = error.to_string();
            return ValidateError::Line { path: self.table.path.clone(), line: self.number, what };
        };
        let field = err.field().and_then(|field| usize::try_from(field).ok());
        let column = field.and_then(|field| self.table.header.get(field)).unwrap_or("unknown");
        let cell = field.and_then(|field| self.record.get(field)).unwrap_or("");
        let what = match err.kind() {
            DeserializeErrorKind::ParseInt(_) => {
                format!("a whole number from 0 up is needed, not {cell:?}")
            }
            DeserializeErrorKind::ParseFloat(_) => format!("a number is needed, not {cell:?}"),
            DeserializeErrorKind::ParseBool(_) => {
                format!("true or false is needed, not {cell:?}")
            }
            other => other.to_string(),
        };
        self.cell(column, what)
    }

    fn cell(self, column: &str, what: impl Into<String>) -> ValidateError {
        ValidateError::Cell {
            path: self.table.path.clone(),
            line: self.number,
            column: column.to_owned(),
            what: what.into(),
        }
    }

    /// Refuses numbers that are not above 0.
    fn require_positive<const N: usize>(
        self,
        cells: [(&str, f64); N],
    ) -> Result<(), ValidateError> {
        match cells.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((column, value)) => {
                Err(self.cell(column, format!("{value} is there, and a number above 0 is needed")))
            }
            None => Ok(()),
        }
    }

    /// Refuses cells without text.
    fn require_text<const N: usize>(self, cells: [(&str, &str); N]) -> Result<(), ValidateError> {
        match cells.into_iter().find(|(_, text)| text.trim().is_empty()) {
            Some((column, _)) => Err(self.cell(column, "the cell is empty")),
            None => Ok(()),
        }
    }
}
