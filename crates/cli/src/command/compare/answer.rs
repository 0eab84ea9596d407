//! The answer, and how it is shown.

use serde::Serialize;
use shardloom::program::quantity::{bytes, digits, percent, seconds, signed_percent};
use shardloom::sim::Fit;

use super::row::Row;
use crate::command::StackAnswer;
use crate::failure::Failure;
use crate::table::table;
use crate::terminal::Terminal;

/// What came of all.
#[derive(Serialize)]
pub struct Answer {
    /// Of a step, where all have as many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microbatches: Option<usize>,
    /// Until which training loss they were trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_loss: Option<f64>,
    /// The software that steps are simulated under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackAnswer>,
    pub rows: Vec<Row>,
}

impl Answer {
    /// A table of those with numbers, the plans that were chosen, and why others have none. The table's
    /// first column is called `heading`.
    pub fn show(&self, heading: &str, terminal: Terminal) -> Result<(), Failure> {
        let measured = self.rows.iter().filter(|row| row.numbers.step_seconds.is_some());
        let trained = self.rows.iter().any(|row| row.numbers.final_loss.is_some());
        let mut headings = vec![heading, "step", ""];
        headings.extend(["speed-up", "utilisation", "waiting", "waits", "sent", "peak memory"]);
        headings.extend(trained.then_some("loss"));
        let goal = self.until_loss.map(|loss| format!("to loss {loss}"));
        headings.extend(goal.as_deref());
        // Rows are sorted, so that one that can be trained with comes first if there is any.
        let fastest = self.rows.first().filter(|row| row.usable());
        let rows: Vec<Vec<String>> = measured.map(|row| self.cells(row, fastest)).collect();
        terminal.text(table(&headings, &rows))?;
        let plans = self.rows.iter().filter_map(|row| Some((&row.method, row.plan.as_ref()?)));
        list("Their plans:", plans, terminal)?;
        let notes =
            self.rows.iter().flat_map(|row| row.notes.iter().map(move |it| (&row.method, it)));
        list("To know about them:", notes, terminal)?;
        let refused = self.rows.iter().filter_map(|row| Some((&row.method, row.reason.as_ref()?)));
        list("Not with these numbers:", refused, terminal)
    }

    fn cells(&self, row: &Row, fastest: Option<&Row>) -> Vec<String> {
        let numbers = &row.numbers;
        let step = numbers.step_seconds.unwrap_or(f64::NAN);
        let beside = match (numbers.fit, fastest) {
            (Some(Fit::Exceeds), _) => "does not fit".to_owned(),
            (_, Some(fastest)) if std::ptr::eq(fastest, row) => "fastest".to_owned(),
            (_, fastest) => {
                let fastest = fastest.and_then(|it| it.numbers.step_seconds);
                fastest.map(|it| signed_percent(step / it - 1.0)).unwrap_or_default()
            }
        };
        let spread = numbers.step_seconds_deviation.map(|it| format!(" ± {}", seconds(it)));
        let mut cells = vec![
            row.method.clone(),
            seconds(step) + &spread.unwrap_or_default(),
            beside,
            numbers.speedup.map(|it| format!("{it:.2}")).unwrap_or_default(),
            numbers.utilisation.map(percent).unwrap_or_default(),
            numbers.wait_fraction.map(percent).unwrap_or_default(),
            numbers.waits.map(digits).unwrap_or_default(),
            numbers.sent_bytes.map(bytes).unwrap_or_default(),
            numbers.peak_bytes.map(bytes).unwrap_or_default(),
        ];
        cells.extend(numbers.final_loss.map(|loss| format!("{loss:.4}")));
        cells.extend(self.until_loss.map(|_| {
            match (numbers.steps_to_loss, numbers.seconds_to_loss) {
                (Some(steps), Some(time)) => {
                    format!("{steps} steps, {}", seconds(time))
                }
                _ => "not reached".to_owned(),
            }
        }));
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
