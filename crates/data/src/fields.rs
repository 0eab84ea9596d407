//! Rows of tables, and their fields.

use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::Path;

use csv::{Position, StringRecord};
use shardloom_document::row_line;

use crate::DataError;
use crate::table::is_header;

/// Hands `take` the rows of a file of comma-separated values, but not a header: a first row without a number. All
/// have as many fields. What is wrong is reported with the line where the row begins. What is no file, such as a pipe,
/// cannot be read as often as a table is, and may have no end.
pub(crate) fn each_row(
    path: &Path,
    mut take: impl FnMut(&StringRecord) -> Result<(), String>,
) -> crate::Result<()> {
    let wrong = |position: Option<&Position>, reason: String| {
        table_error(path, position.map(|position| line_of(path, position)), reason)
    };
    if path.exists() && !path.is_file() {
        return Err(DataError::NotAFile { path: path.into() });
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_path(path)
        .map_err(|error| wrong(None, error.to_string()))?;
    let mut record = StringRecord::new();
    let (mut is_first, mut width) = (true, None);
    let (mut header, mut other) = (None, "");
    loop {
        let more = reader.read_record(&mut record).map_err(|error| match error.kind() {
            csv::ErrorKind::Utf8 { pos, .. } => wrong(pos.as_ref(), "it is not UTF-8 text".into()),
            _ => wrong(None, error.to_string()),
        })?;
        if !more {
            break;
        }
        let position = record.position();
        if std::mem::take(&mut is_first) && is_header(&record) {
            header = position.cloned();
            other = other_separator(&record);
            continue;
        }
        let fields = *width.get_or_insert(record.len());
        if record.len() != fields {
            let reason = format!("{} columns, but rows before it have {fields}", record.len());
            return Err(wrong(position, reason));
        }
        take(&record).map_err(|reason| wrong(position, reason))?;
    }
    match (width, header) {
        (Some(_), _) => Ok(()),
        (None, Some(position)) => {
            let reason = format!(
                "it has no number, so it is taken for the names of columns, and there are no rows below it; a row is \
                 numbers with commas between them{other}"
            );
            Err(wrong(Some(&position), reason))
        }
        (None, None) => Err(wrong(None, "there are no rows".into())),
    }
}

/// What to say of a row that has something else than commas between its fields.
pub(crate) fn other_separator(record: &StringRecord) -> &'static str {
    match record.get(0) {
        Some(field) if record.len() == 1 && field.contains(';') => ", and not `;`",
        Some(field) if record.len() == 1 && field.contains('\t') => ", and not tabs",
        _ => "",
    }
}

/// The line of a row.
fn line_of(path: &Path, position: &Position) -> usize {
    let from_there = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(position.byte()))?;
        Ok(BufReader::new(file))
    });
    match from_there {
        Ok(rest) => row_line(position.line(), rest, None),
        Err(_) => position.line() as usize,
    }
}

/// What is wrong with a table.
pub(crate) fn table_error(path: &Path, line: Option<usize>, reason: String) -> DataError {
    DataError::Table { path: path.to_path_buf(), line, reason }
}

/// A number.
pub(crate) fn number(field: &str) -> Result<f32, String> {
    let number = field.parse::<f32>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("{field:?} is no finite number"))
}

/// The category of the n-th feature that has some, below `below`.
pub(crate) fn category(field: &str, feature: usize, below: usize) -> Result<u32, String> {
    let category = field.parse::<u32>().ok().filter(|&it| (it as usize) < below);
    category.ok_or_else(|| {
        let most = below.saturating_sub(1);
        format!("{field:?} is no category.{feature}: a whole number from 0 to {most}")
    })
}

/// A class, which may be written as any number that is whole.
pub(crate) fn class(field: &str) -> Option<u32> {
    let class = field.parse::<f32>().ok()?;
    // Up to here whole numbers are exact in 32-bit floating point; the next one is read as this one.
    (class >= 0.0 && class.fract() == 0.0 && class < 16_777_216.0).then_some(class as u32)
}
