//! DeepSpeed: `ThroughputTimer` in `utils/timer.py` prints samples a second of the step behind it and of all
//! so far; its pipeline engine the mean time of steps since the line before.

use super::number::after;
use super::{Lines, LoggedStep, Rate};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

pub(super) fn lines(text: &str) -> Lines {
    let mut found = Lines::default();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(gib) = after(line, "MaxMemAllocated=") {
            found.remember(gib * GIB, false);
        }
        let of_pipeline = || {
            let rate = after(line, "iter time (s):").map(Rate::StepSeconds);
            rate.or_else(|| after(line, "samples/sec:").map(Rate::Samples))
        };
        let of_timer = after(line, "CurrSamplesPerSec=").or_else(|| {
            // Older ones know no other, and that of all steps says nothing of one.
            let only = !line.contains("RunningAvgSamplesPerSec=");
            after(line, "SamplesPerSec=").filter(|_| only)
        });
        let Some(rate) = of_timer.map(Rate::Samples).or_else(of_pipeline) else { continue };
        let Some(step) = step(line) else { continue };
        found.steps.push(LoggedStep { step, rate, batch: None, line: number });
    }
    found
}

/// The number of a step, as one of its versions writes it.
fn step(line: &str) -> Option<u64> {
    let keys = ["global_step=", "steps:", "step:", "step="];
    let named = keys.into_iter().find_map(|key| after(line, key));
    // Older ones write an epoch and a step: `0/20, SamplesPerSec=`.
    let counted = || {
        let (before, _) = line.split_once("SamplesPerSec=")?;
        before.rsplit_once('/').and_then(|(_, step)| after(step, ""))
    };
    named.or_else(counted).map(|it| it as u64)
}
