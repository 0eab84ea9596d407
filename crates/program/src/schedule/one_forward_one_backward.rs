//! One forward, one backward with a flush (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503,
//! section 3.2; Megatron-LM, arXiv 2104.04473, section 2.2.1).
//!
//! Stage `s` of `p` runs `min(p - 1 - s, m)` forwards, then pairs of forward and backward, then the
//! remaining backwards; `min(p - s, m)` are in flight, however many micro-batches there are.

use super::{Instance, Pass, StageMap, Turn, turns};

/// The orders on a map of one stage per device.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Turn>> {
    let device = |device| map.instances_on(device).flat_map(|it| order(map, it)).collect();
    (0..map.devices()).map(device).collect()
}

fn order(map: &StageMap, instance: Instance) -> Vec<Turn> {
    let microbatches = map.microbatches_of(instance);
    let after = map.chain(instance).stages() - 1 - usize::from(instance.stage);
    let warmup = after.min(microbatches.len());
    let forward = |range: &[u32]| turns(Pass::Forward, instance, range.to_vec()).collect();
    let mut order: Vec<Turn> = forward(&microbatches[..warmup]);
    for (steady, &microbatch) in microbatches[warmup..].iter().enumerate() {
        order.extend(turns(Pass::Forward, instance, [microbatch]));
        order.extend(turns(Pass::Backward, instance, [microbatches[steady]]));
    }
    let drain = microbatches[microbatches.len() - warmup..].to_vec();
    order.extend(turns(Pass::Backward, instance, drain));
    order
}
