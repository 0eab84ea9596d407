//! Rows of tables, and their fields.

use std::path::Path;

use csv::StringRecord;

use crate::DataError;
use crate::table::is_header;

/// Hands `take` the rows of a file of comma-separated values, but not a header: a first row without a number. What
/// it says is wrong is reported with the number of the row, the header counted.
pub(crate) fn each_row(
    path: &Path,
    mut take: impl FnMut(&StringRecord) -> Result<(), String>,
) -> crate::Result<()> {
    let wrong =
        |row: u64, reason: String| DataError::Table { path: path.to_path_buf(), row, reason };
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_path(path)
        .map_err(|error| wrong(0, error.to_string()))?;
    let mut record = StringRecord::new();
    for row in 1u64.. {
        if !reader.read_record(&mut record).map_err(|error| wrong(row, error.to_string()))? {
            break;
        }
        if row > 1 || !is_header(&record) {
            take(&record).map_err(|reason| wrong(row, reason))?;
        }
    }
    Ok(())
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
