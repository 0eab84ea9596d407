//! The answer, and how it is shown.

use serde::Serialize;
use shardloom::program::quantity::{bytes, percent, seconds, signed_percent};
use shardloom::sim::Fit;

use super::row::Row;
use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

/// What came of all.
#[derive(Serialize)]
pub struct Answer {
    /// Of a step, where all have as many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microbatches: Option<usize>,
    pub rows: Vec<Row>,
}

impl Answer {
    /// A table of those with numbers, the plans that were chosen, and why others have none. The table's
    /// first column is called `heading`.
    pub fn show(&self, heading: &str, terminal: Terminal) -> Result<(), Failure> {
        let measured = self.rows.iter().filter(|row| row.numbers.step_seconds.is_some());
        let trained = self.rows.iter().any(|row| row.numbers.final_loss.is_some());
        let mut headings = vec![heading, "step", "", "utilisation", "waiting", "peak memory"];
        headings.extend(trained.then_some("loss"));
        let rows: Vec<Vec<String>> =
            measured.enumerate().map(|(position, row)| self.cells(position, row)).collect();
        terminal.text(table(&headings, &rows))?;
        let plans = self.rows.iter().filter_map(|row| Some((&row.method, row.plan.as_ref()?)));
        list("Their plans:", plans, terminal)?;
        let refused = self.rows.iter().filter_map(|row| Some((&row.method, row.reason.as_ref()?)));
        list("Not with these numbers:", refused, terminal)
    }

    fn cells(&self, position: usize, row: &Row) -> Vec<String> {
        let fastest = self.rows.iter().find(|row| row.usable());
        let fastest = fastest.and_then(|row| row.numbers.step_seconds);
        let numbers = &row.numbers;
        let step = numbers.step_seconds.unwrap_or(f64::NAN);
        let beside = match (numbers.fit, fastest) {
            (Some(Fit::Exceeds), _) => "does not fit".to_owned(),
            _ if position == 0 => "fastest".to_owned(),
            (_, Some(fastest)) => signed_percent(step / fastest - 1.0),
            (_, None) => String::new(),
        };
        let mut cells = vec![
            row.method.clone(),
            seconds(step),
            beside,
            numbers.utilisation.map(percent).unwrap_or_default(),
            numbers.wait_fraction.map(percent).unwrap_or_default(),
            numbers.peak_bytes.map(bytes).unwrap_or_default(),
        ];
        cells.extend(numbers.final_loss.map(|loss| format!("{loss:.4}")));
        cells
    }
}

/// A heading, and a line of each; nothing if there are none.
fn list<'a>(
    heading: &str,
    entries: impl Iterator<Item = (&'a String, &'a String)>,
    terminal: Terminal,
) -> Result<(), Failure> {
    for (position, (name, text)) in entries.enumerate() {
        if position == 0 {
            terminal.line(format_args!("\n{heading}"))?;
        }
        terminal.line(format_args!("- {name}: {text}"))?;
    }
    Ok(())
}
