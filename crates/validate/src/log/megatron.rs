//! Megatron-LM (`training_log` and `report_memory` in its `training.py` and `utils.py`): a line for each
//! interval, fields set apart by bars.

use super::number::{after, all_after};
use super::{Batch, Lines, LoggedStep, Rate};

const MIB: f64 = 1024.0 * 1024.0;

pub(super) fn lines(text: &str) -> Lines {
    let mut found = Lines::default();
    for (number, line) in (1..).zip(text.lines()) {
        for mib in all_after(line, "max allocated:") {
            found.remember(mib * MIB, false);
        }
        let Some(milliseconds) = after(line, "elapsed time per iteration (ms):") else { continue };
        let Some(step) = after(line, "iteration ") else { continue };
        let batch = after(line, "global batch size:").map(|it| Batch::Samples(it as u64));
        let rate = Rate::StepSeconds(milliseconds / 1e3);
        found.steps.push(LoggedStep { step: step as u64, rate, batch, line: number });
    }
    found
}
