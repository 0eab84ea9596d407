//! torchtitan (`MetricsProcessor` in `components/metrics.py`): fields set apart by two spaces, coloured unless
//! that is switched off; `tps` are tokens a second on each device, on average since the line before.

use super::number::after;
use super::{Lines, LoggedStep, Rate};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

pub(super) fn lines(text: &str) -> Lines {
    let mut found = Lines::default();
    for (number, line) in (1..).zip(text.lines()) {
        let Some((before, fields)) = line.split_once("step:") else { continue };
        let Some(rate) = after(fields, "tps:") else { continue };
        // Validation is no training.
        if before.trim_end().ends_with("validate") {
            continue;
        }
        let Some(step) = after(fields, "") else { continue };
        if let Some(gib) = after(fields, "memory:") {
            found.remember(gib * GIB, true);
        }
        let rate = Rate::TokensOfDevice(rate);
        found.steps.push(LoggedStep { step: step as u64, rate, batch: None, line: number });
    }
    found
}
