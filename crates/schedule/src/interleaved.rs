//! Interleaved 1F1B (Megatron-LM, Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2).
//!
//! Each of `p` devices holds `v` chunks of the model: chunk `c` of device `r` is stage `c p + r`.
//! Micro-batches go through each chunk in groups of `n`, and 1F1B is over passes of chunks, of which
//! device `r` runs `2 (p - r - 1) + (v - 1) n` forwards before the first backward, or all if there are
//! no more. Groups are of `p` where that divides the micro-batches `m`. Elsewhere they are of the least `n`
//! that leaves a last group of `p` or more, as Megatron-LM demands today: a smaller one would wait for
//! itself from chunk to chunk. (The paper has multiples of `p` only, and for `m = p` all forwards first.)
//!
//! The bubble is `(p - 1) / (v m)` of the ideal time, a `v`-th of 1F1B's, for `v` times the messages.
//! Most are in flight on the first device: `2 p - 1 + (v - 1) n` chunks of micro-batches, which for `n = p`
//! is `1 + (p - 1) / (p v)` of what 1F1B holds there. One message on each way is enough where groups are
//! of `p`; larger ones wait between the last device and the first, up to `n - p + 1` of them.

use super::{Action, Pass, PassKind, StageMap};
use crate::ScheduleError;

/// The orders on a map of several stages per device.
pub(super) fn orders(map: &StageMap) -> Result<Vec<Vec<Action>>, ScheduleError> {
    let (devices, microbatches) = (map.devices(), map.microbatches() as usize);
    let chunks = map.instances_on(0).count();
    if chunks < 2 {
        let rule = "interleaved wants at least two stages on each device; with one it is 1f1b";
        return Err(ScheduleError::chunks(chunks, rule));
    }
    let leaves_enough = |group: &usize| {
        let last = microbatches % group;
        last == 0 || last >= devices
    };
    let Some(group) = (devices..=microbatches).find(leaves_enough) else {
        let rule = format!(
            "interleaved wants at least as many micro-batches as the {devices} devices, not \
             {microbatches}"
        );
        return Err(ScheduleError::microbatches(microbatches, rule));
    };
    Ok((0..devices).map(|device| order(map, device, group)).collect())
}

/// The order of a device where micro-batches go through its chunks in groups of `group`.
fn order(map: &StageMap, device: usize, group: usize) -> Vec<Action> {
    let microbatches: Vec<u32> = (0..map.microbatches()).collect();
    let stages: Vec<_> = map.instances_on(device).collect();
    // Backwards go through the chunks the other way.
    let passes = |kind: PassKind| -> Vec<Action> {
        let order: Vec<_> = match kind {
            PassKind::Forward => stages.clone(),
            _ => stages.iter().rev().copied().collect(),
        };
        let all = microbatches.chunks(group).flat_map(|group| {
            order.iter().flat_map(move |&instance| {
                group.iter().map(move |&microbatch| Pass { kind, instance, microbatch })
            })
        });
        all.map(Action::Alone).collect()
    };
    let (forwards, backwards) = (passes(PassKind::Forward), passes(PassKind::Backward));
    let warmup = 2 * (map.devices() - device - 1) + (stages.len() - 1) * group;
    let (first, rest) = forwards.split_at(warmup.min(forwards.len()));
    let mut order = first.to_vec();
    order.extend(rest.iter().zip(&backwards).flat_map(|(&forward, &backward)| [forward, backward]));
    order.extend(&backwards[rest.len()..]);
    order
}
