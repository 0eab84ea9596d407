//! All forwards, then all backwards (GPipe, Huang et al. 2019, arXiv 1811.06965, section 2.3).
//! Backwards run in reverse, so that the last micro-batch's activations are the first to go.
//!
//! With several stages on a device, forwards go through them in the order of the pipeline. The most in
//! flight are all micro-batches of all stages.

use super::{Pass, StageMap, Turn, turns};

/// The orders on any map.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Turn>> {
    let order = |device| {
        let instances: Vec<_> = map.instances_on(device).collect();
        let forwards =
            instances.iter().flat_map(|&it| turns(Pass::Forward, it, map.microbatches_of(it)));
        let backwards = instances
            .iter()
            .rev()
            .flat_map(|&it| turns(Pass::Backward, it, map.microbatches_of(it).into_iter().rev()));
        forwards.chain(backwards).collect()
    };
    (0..map.devices()).map(order).collect()
}
