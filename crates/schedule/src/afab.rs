//! All forwards, then all backwards (GPipe, Huang et al. 2019, arXiv 1811.06965, section 2.3).
//! Backwards run in reverse, so that the last micro-batch's activations are the first to go.
//!
//! With several stages on a device, forwards go through them in the order of the pipeline, through a stage
//! that several pipelines have there in the order of micro-batches. The most in flight are all micro-batches of all stages.

use super::{Action, Pass, PassKind, StageMap};

/// The orders on any map.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Action>> {
    let order = |device| {
        let mut work = map.work_on(device);
        // Those of a stage stay in the order of micro-batches.
        work.sort_by_key(|(instance, _)| instance.stage);
        let action = |kind| {
            move |&(instance, microbatch)| Action::Alone(Pass { kind, instance, microbatch })
        };
        let forwards = work.iter().map(action(PassKind::Forward));
        forwards.chain(work.iter().rev().map(action(PassKind::Backward))).collect()
    };
    (0..map.devices()).map(order).collect()
}
