//! Zero-bubble orders without rounds: each device runs the pass that can start first.
//!
//! Until its first gradient arrives a device runs forwards, as many as fit into memory. From then on, where
//! both a forward and a gradient are there, it runs the forward as long as fewer micro-batches are without
//! gradients than were then, so that later devices do not run dry, and else the gradient. Weight gradients
//! make room for forwards before these arrive, and fill gaps.

use shardloom_plan::PassTimes;

use super::first::First;
use super::weight_filling::{Filling, Memory};
use super::zero_bubble::pass;
use super::{Action, PassKind, StageMap};

/// What a device has run.
#[derive(Clone, Copy, Default)]
struct Progress {
    forwards: u32,
    gradients: u32,
    /// How many forwards it ran before its first gradient.
    warm_up: Option<u32>,
}

/// The orders of one stage on each device; `eager` ones put weight gradients into gaps that are too short.
pub(super) fn orders(
    map: &StageMap,
    times: &PassTimes,
    memory: Memory,
    eager: bool,
) -> Vec<Vec<Action>> {
    let mut filling = Filling::new(map, times, memory, eager);
    let mut progress = vec![Progress::default(); map.devices()];
    // Of devices that are as early the last: gradients come from there.
    let mut first = First::new(map.devices());
    let last = map.devices() - 1;
    let mut kinds: Vec<Option<PassKind>> = vec![None; map.devices()];
    let mut changed: Vec<usize> = (0..map.devices()).collect();
    loop {
        for device in changed {
            let action = next(map, &filling, progress[device], device);
            first.set(last - device, action.map(|(start, _)| start));
            kinds[device] = action.map(|(_, kind)| kind);
        }
        let Some((_, place)) = first.get() else { break };
        let device = last - place;
        let Some(kind) = kinds[device] else { break };
        let it = &mut progress[device];
        let count = match kind {
            PassKind::Forward => &mut it.forwards,
            _ => {
                it.warm_up.get_or_insert(it.forwards);
                &mut it.gradients
            }
        };
        filling.run(pass(kind, device, *count));
        *count += 1;
        // Only the devices beside this one may have waited for it.
        let beside = [device.checked_sub(1), Some(device), Some(device + 1)];
        changed = beside.into_iter().flatten().filter(|&it| it <= last).collect();
    }
    filling.finish()
}

/// What `device` runs next, and when it turns to it; none if nothing is there.
fn next(map: &StageMap, filling: &Filling, it: Progress, device: usize) -> Option<(f64, PassKind)> {
    let clock = filling.clock(device);
    let arrival = |kind, microbatch| {
        let exists = microbatch < map.microbatches();
        exists.then(|| filling.arrival(pass(kind, device, microbatch))).flatten()
    };
    let forward = arrival(PassKind::Forward, it.forwards).filter(|_| filling.can_make_room(device));
    let forward = forward.map(|at| clock.max(at - filling.time_to_make_room(device)));
    let gradient = arrival(PassKind::BackwardInput, it.gradients).map(|at| clock.max(at));
    let refills = it.warm_up.is_some_and(|most| it.forwards - it.gradients < most);
    match (forward, gradient) {
        (Some(forward), Some(gradient)) if forward < gradient || refills && forward == gradient => {
            Some((forward, PassKind::Forward))
        }
        (_, Some(gradient)) => Some((gradient, PassKind::BackwardInput)),
        (forward, None) => Some((forward?, PassKind::Forward)),
    }
}
