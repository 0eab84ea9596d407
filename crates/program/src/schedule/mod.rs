//! Schedules: in which order each stage runs its passes. Pure functions, one file each; one checker
//! proves each.

mod afab;
mod check;
mod one_forward_one_backward;
mod timing;

use shardloom_plan::ScheduleKind;

pub use check::check;
pub use timing::{Durations, Timing, time};

/// A pass of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Forward.
    Forward,
    /// Backward, input and weight gradients together.
    Backward,
}

/// One pass of one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The pass.
    pub pass: Pass,
    /// The micro-batch, from 0.
    pub microbatch: u32,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = match self.pass {
            Pass::Forward => 'F',
            Pass::Backward => 'B',
        };
        write!(out, "{letter}{}", self.microbatch)
    }
}

/// The order of passes on each of `stages` stages for `microbatches` micro-batches.
pub fn orders(kind: ScheduleKind, stages: usize, microbatches: usize) -> Vec<Vec<Cell>> {
    let stage = |stage| match kind {
        ScheduleKind::Afab => afab::order(microbatches),
        ScheduleKind::OneForwardOneBackward => {
            one_forward_one_backward::order(stage, stages, microbatches)
        }
    };
    (0..stages).map(stage).collect()
}

/// The most micro-batches that `stage` holds between forward and backward, by the schedule's formula.
pub fn peak_in_flight(
    kind: ScheduleKind,
    stage: usize,
    stages: usize,
    microbatches: usize,
) -> usize {
    match kind {
        ScheduleKind::Afab => afab::peak_in_flight(microbatches),
        ScheduleKind::OneForwardOneBackward => {
            one_forward_one_backward::peak_in_flight(stage, stages, microbatches)
        }
    }
}

fn cells(pass: Pass, microbatches: impl Iterator<Item = usize>) -> impl Iterator<Item = Cell> {
    microbatches.map(move |microbatch| Cell { pass, microbatch: microbatch as u32 })
}
