//! 1F1B without flush (PipeDream, Narayanan et al., SOSP 2019, section 3.2; PipeDream-2BW, Narayanan et
//! al. 2021, arXiv 2006.09503, section 3.1).
//!
//! Stage `s` of `p` is `p - 1 - s` forwards ahead of its backwards, into later steps, and alternates. No
//! device waits once the pipeline is full. `p - s` micro-batches are in flight, and as many backwards less
//! one run between a forward and its own backward: that is the delay in micro-batches. PipeDream has
//! one micro-batch in a step, and so `p - s` versions of weights; PipeDream-2BW has at least `p - 1`, so
//! that a stage runs ahead into the next step only and two versions do. One message on each way is enough.

use super::{Cell, Pass, StageMap, Turn};

/// The orders on a map of one stage per device.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Turn>> {
    alternating(map, |after| after)
}

/// Forward and backward in turn, the forwards ahead of the backwards by what `ahead` says of the number of
/// stages after.
pub(super) fn alternating(map: &StageMap, ahead: impl Fn(u32) -> u32) -> Vec<Vec<Turn>> {
    let mut orders = vec![vec![]; map.devices()];
    for instance in map.instances() {
        let after = map.chain(instance).stages() - 1 - usize::from(instance.stage);
        // A chain has at most as many stages as fit a stage's number.
        let ahead = ahead(after as u32);
        for microbatch in map.microbatches_of(instance) {
            let turn = |pass, microbatch| Turn::Alone(Cell { pass, instance, microbatch });
            let pair = [turn(Pass::Forward, microbatch + ahead), turn(Pass::Backward, microbatch)];
            orders[map.device(instance)].extend(pair);
        }
    }
    orders
}
