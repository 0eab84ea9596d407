//! Times of single operators on a device, as `benches/gpu/operators.py` writes them.

use serde::Deserialize;

use super::Table;
use crate::operator::{OperatorKind, OperatorRow, format, shape};
use crate::{ValidateError, operator};

pub(super) const COLUMNS: [&str; 11] =
    ["device", "operator", "pass", "format", "batch", "m", "n", "k", "library", "bytes", "seconds"];

/// The most of a size, so that products of four are numbers.
const MOST: u64 = 1 << 30;

#[derive(Deserialize)]
struct Cells {
    device: String,
    operator: String,
    pass: String,
    format: String,
    batch: u64,
    m: u64,
    n: u64,
    k: u64,
    library: String,
    bytes: Option<f64>,
    seconds: f64,
}

pub(super) fn rows(table: &Table) -> Result<Vec<operator::OperatorRow>, ValidateError> {
    let mut rows = vec![];
    for read in table.rows::<Cells>() {
        let (line, it) = read?;
        line.require_text([
            ("device", &it.device),
            ("operator", &it.operator),
            ("pass", &it.pass),
            ("format", &it.format),
        ])?;
        line.require_positive([("seconds", it.seconds), ("bytes", it.bytes.unwrap_or(1.0))])?;
        let sizes = [it.batch, it.m, it.n, it.k];
        for (column, size) in ["batch", "m", "n", "k"].into_iter().zip(sizes) {
            if !(1..=MOST).contains(&size) {
                let what = format!("{size} is there, and a number from 1 to {MOST} is needed");
                return Err(line.cell(column, what));
            }
        }
        let shape =
            shape(&it.operator, &it.pass, sizes, it.bytes, |column, what| line.cell(column, what))?;
        rows.push(OperatorRow {
            line: line.number,
            hardware: it.device,
            format: format(&it.format),
            kind: OperatorKind {
                operator: it.operator,
                pass: it.pass,
                format: it.format,
                library: it.library,
            },
            shape,
            seconds: it.seconds,
        });
    }
    Ok(rows)
}
