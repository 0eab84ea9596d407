//! One forward, one backward with a flush (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503,
//! section 3.2; Megatron-LM, arXiv 2104.04473, section 2.2.1).
//!
//! Stage `s` of `p` runs `min(p - 1 - s, m)` forwards, then pairs of forward and backward, then the
//! remaining backwards; `min(p - s, m)` are in flight, however many micro-batches there are. Where stages
//! have replicas that take micro-batches in turn, each of them does so with its own micro-batches, after
//! as many forwards as [without flush](super::pipedream).

use super::{Action, Pass, PassKind, StageMap, pipedream};

/// The orders on a map of one stage per device.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Action>> {
    (0..map.devices()).map(|device| order(map, device)).collect()
}

fn order(map: &StageMap, device: usize) -> Vec<Action> {
    let work = map.work_on(device);
    let stage = work.first().map_or(0, |(instance, _)| usize::from(instance.stage));
    let warmup = pipedream::warm_up(map, stage).min(work.len());
    let action = |kind, place: usize| {
        let (instance, microbatch) = work[place];
        Action::Alone(Pass { kind, instance, microbatch })
    };
    let forward = |place| action(PassKind::Forward, place);
    let backward = |place| action(PassKind::Backward, place);
    let steady = (warmup..work.len()).flat_map(|it| [forward(it), backward(it - warmup)]);
    let drain = (work.len() - warmup..work.len()).map(backward);
    (0..warmup).map(forward).chain(steady).chain(drain).collect()
}
