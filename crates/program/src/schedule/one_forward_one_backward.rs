//! One forward, one backward with a flush (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503,
//! section 3.2; Megatron-LM, arXiv 2104.04473, section 2.2.1).

use super::{Cell, Pass, cells};

/// `min(stages - 1 - stage, microbatches)` forwards, then pairs of forward and backward, then the
/// remaining backwards.
pub(super) fn order(stage: usize, stages: usize, microbatches: usize) -> Vec<Cell> {
    let warmup = (stages - 1 - stage).min(microbatches);
    let mut order: Vec<Cell> = cells(Pass::Forward, 0..warmup).collect();
    for steady in 0..microbatches - warmup {
        order.extend(cells(Pass::Forward, std::iter::once(warmup + steady)));
        order.extend(cells(Pass::Backward, std::iter::once(steady)));
    }
    order.extend(cells(Pass::Backward, microbatches - warmup..microbatches));
    order
}

/// `stages - stage`, however many micro-batches there are.
pub(super) fn peak_in_flight(stage: usize, stages: usize, microbatches: usize) -> usize {
    (stages - stage).min(microbatches)
}
