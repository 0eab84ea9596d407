//! Tables of steps.

use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};

use super::{Batch, Lines, LogError, LoggedStep, Rate};
use crate::line::{COMMENT, line_of};

/// Columns that say how fast a step is.
struct RateColumns {
    /// Their names, in small letters, with `_`.
    names: &'static [&'static str],
    /// What a number in them is.
    rate: fn(f64) -> Rate,
}

/// Of several columns the first in this order counts.
const RATES: [RateColumns; 5] = [
    RateColumns {
        names: &[
            "step_seconds",
            "step_s",
            "step_time",
            "step_time_s",
            "seconds",
            "iteration_seconds",
            "iteration_time",
            "time",
        ],
        rate: Rate::StepSeconds,
    },
    RateColumns {
        names: &["step_ms", "step_time_ms", "iteration_ms", "iteration_time_ms", "time_ms"],
        rate: |milliseconds| Rate::StepSeconds(milliseconds / 1e3),
    },
    RateColumns { names: &["tokens_per_second", "tokens_per_sec"], rate: Rate::Tokens },
    RateColumns {
        names: &["tokens_per_second_per_device", "tokens_per_sec_per_gpu", "tok_s_gpu", "tps"],
        rate: Rate::TokensOfDevice,
    },
    RateColumns { names: &["samples_per_second", "samples_per_sec"], rate: Rate::Samples },
];

const STEPS: [&str; 4] = ["step", "iteration", "global_step", "steps"];
const BATCHES: [&str; 2] = ["global_batch", "global_batch_size"];
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const MEMORY: [(&str, f64); 3] =
    [("peak_bytes", 1.0), ("peak_memory_gib", GIB), ("memory_gib", GIB)];

pub(super) fn lines(path: &Path, text: &str) -> Result<Lines, LogError> {
    let row_error = |error: csv::Error| {
        let line = line_of(text.as_bytes(), error.position());
        let what = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("there are {len} cells, and {expected_len} columns")
            }
            _ => error.to_string(),
        };
        LogError::Row { path: path.into(), line, what }
    };
    let mut reader =
        ReaderBuilder::new().trim(Trim::All).comment(Some(COMMENT)).from_reader(text.as_bytes());
    let header = reader.headers().map_err(row_error)?.clone();
    let name = |name: &str| name.to_ascii_lowercase().replace([' ', '-', '/'], "_");
    let names: Vec<String> = header.iter().map(name).collect();
    let column = |wanted: &str| names.iter().position(|it| it == wanted);
    let rate = RATES.iter().find_map(|it| {
        let found = it.names.iter().find_map(|name| column(name))?;
        Some((found, it.rate))
    });
    let Some((timed, rate)) = rate else {
        // Text that is no table has no columns to name.
        if header.len() < 2 {
            return Ok(Lines::default());
        }
        let known = RATES.iter().flat_map(|it| it.names.iter().copied());
        return Err(LogError::Header {
            path: path.into(),
            columns: header.iter().collect::<Vec<_>>().join(", "),
            known: known.collect::<Vec<_>>().join(", "),
        });
    };
    let numbered = STEPS.iter().find_map(|word| column(word));
    let batched = BATCHES.iter().find_map(|word| column(word));
    let memory = MEMORY.iter().find_map(|(word, size)| Some((column(word)?, *size)));
    let mut found = Lines::default();
    for (index, record) in reader.records().enumerate() {
        let record = record.map_err(row_error)?;
        let line = line_of(text.as_bytes(), record.position());
        let cell = |column: usize| number(&record, column);
        let Some(value) = cell(timed).filter(|value| value.is_finite() && *value > 0.0) else {
            let (name, cell) = (&names[timed], record.get(timed).unwrap_or(""));
            let what = format!("column {name}: a number above 0 is needed, not {cell:?}");
            return Err(LogError::Row { path: path.into(), line, what });
        };
        if let Some((column, size)) = memory
            && let Some(value) = cell(column)
        {
            found.remember(value * size, false);
        }
        found.steps.push(LoggedStep {
            step: numbered.and_then(cell).map_or(index as u64 + 1, |it| it as u64),
            rate: rate(value),
            batch: batched.and_then(cell).map(|it| Batch::Samples(it as u64)),
            line,
        });
    }
    match grows(&found.steps) {
        false => Ok(found),
        true => {
            let what = format!(
                "column {} grows from row to row: that is the time at which steps end, not how long they take",
                names[timed]
            );
            Err(LogError::Row { path: path.into(), line: 1, what })
        }
    }
}

fn number(record: &StringRecord, column: usize) -> Option<f64> {
    record.get(column)?.replace(',', "").parse().ok()
}

/// Whether times are those of a clock: each at least the first again above the one before, for some rows.
fn grows(steps: &[LoggedStep]) -> bool {
    let times: Vec<f64> = steps
        .iter()
        .filter_map(|it| match it.rate {
            Rate::StepSeconds(seconds) => Some(seconds),
            _ => None,
        })
        .collect();
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return false };
    times.len() >= 4 && times.is_sorted_by(|one, other| one < other) && *last > 3.0 * first
}
