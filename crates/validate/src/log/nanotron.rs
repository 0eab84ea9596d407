//! nanotron (`train_step_logs` in `trainer.py`): fields set apart by bars, numbers of three digits with a
//! letter for powers of a thousand; the batch is in tokens.

use super::number::after;
use super::{Batch, Lines, LoggedStep, Rate};

const MIB: f64 = 1024.0 * 1024.0;

pub(super) fn lines(text: &str) -> Lines {
    let mut found = Lines::default();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(mib) = after(line, "Peak allocated") {
            found.remember(mib * MIB, false);
        }
        let (Some(step), Some(rate)) = (after(line, "iteration:"), after(line, "tokens_per_sec:"))
        else {
            continue;
        };
        // Of either of its names: older ones say elapsed_time_per_iteration_ms.
        let rate = match after(line, "time_per_iteration_ms:") {
            Some(milliseconds) => Rate::StepSeconds(milliseconds / 1e3),
            None => Rate::Tokens(rate),
        };
        let batch = after(line, "global_batch_size:").map(Batch::Tokens);
        found.steps.push(LoggedStep { step: step as u64, rate, batch, line: number });
    }
    found
}
