//! All forwards, then all backwards (GPipe, Huang et al. 2019, arXiv 1811.06965, section 2.3).
//! Backwards run in reverse, so that the last micro-batch's activations are the first to go.

use super::{Cell, Pass, cells};

pub(super) fn order(microbatches: usize) -> Vec<Cell> {
    cells(Pass::Forward, 0..microbatches)
        .chain(cells(Pass::Backward, (0..microbatches).rev()))
        .collect()
}

/// All of them.
pub(super) fn peak_in_flight(microbatches: usize) -> usize {
    microbatches
}
