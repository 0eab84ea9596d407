//! 1F1B without flush (PipeDream, Narayanan et al., SOSP 2019, section 3.2; PipeDream-2BW, Narayanan et
//! al. 2021, arXiv 2006.09503, section 3.1).
//!
//! Stage `s` of `p` is `p - 1 - s` forwards ahead of its backwards, into later steps, and alternates. No
//! device waits once the pipeline is full. `p - s` micro-batches are in flight, and as many backwards less
//! one run between a forward and its own backward: that is the delay in micro-batches. PipeDream has
//! one micro-batch in a step, and so `p - s` versions of weights; PipeDream-2BW has at least `p - 1`, so
//! that a stage runs ahead into the next step only and two versions do. One message on each way is enough.
//!
//! Where stages have replicas that take micro-batches in turn (1F1B-RR), each replica of a stage is ahead
//! by `w(s) = ceil((w(s + 1) + 1) r(s + 1) / r(s))` of its own micro-batches, 0 at the last stage: what
//! the next stage's replicas have in flight, shared out. At the input stage one more is the paper's NOAM,
//! `ceil(workers / replicas of the input stage)`, if there are two stages or all have as many replicas;
//! elsewhere rounding up stage by stage may come to more.

use super::{Action, Instance, Pass, PassKind, StageMap};

/// The orders on a map of one stage per device.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Action>> {
    alternating(map, |ahead| ahead)
}

/// Forward and backward in turn, the forwards ahead of the backwards by what `ahead` makes of
/// [`warm_up`].
pub(super) fn alternating(map: &StageMap, ahead: impl Fn(usize) -> usize) -> Vec<Vec<Action>> {
    let pipelines = map.chains().len() as u32;
    let order = |device: usize| {
        let work = map.work_on(device);
        let Some(&(first, _)) = work.first() else { return vec![] };
        let replicas = replicas(map, usize::from(first.stage)) as u32;
        // A device has as many micro-batches ahead of it as fit the number of one.
        let further = ahead(warm_up(map, usize::from(first.stage))) as u32 * replicas;
        let pair = |(instance, microbatch)| {
            let action =
                |kind, instance, microbatch| Action::Alone(Pass { kind, instance, microbatch });
            let later = microbatch + further;
            let pipeline = (later % pipelines) as u16;
            [
                action(PassKind::Forward, Instance { pipeline, ..instance }, later),
                action(PassKind::Backward, instance, microbatch),
            ]
        };
        work.into_iter().flat_map(pair).collect()
    };
    (0..map.devices()).map(order).collect()
}

/// How many micro-batches a device of `stage` takes in before the first comes back. Between a micro-batch's
/// forward and its backward pass, the devices of this stage together take in as many others as the next
/// stage's hold: their own warm-up and one more each.
pub(super) fn warm_up(map: &StageMap, stage: usize) -> usize {
    let earlier = (stage..map.chains()[0].stages() - 1).rev();
    earlier.fold(0, |warm_up, stage| {
        ((warm_up + 1) * replicas(map, stage + 1)).div_ceil(replicas(map, stage))
    })
}

fn replicas(map: &StageMap, stage: usize) -> usize {
    map.replicas().map_or(1, |replicas| replicas[stage])
}
