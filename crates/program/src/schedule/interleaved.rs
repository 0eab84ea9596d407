//! Interleaved 1F1B (Megatron-LM, Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2).
//!
//! Each of `p` devices holds `v` chunks of the model: chunk `c` of device `r` is stage `c p + r`.
//! Micro-batches go through each chunk in groups of `p`, and 1F1B is over passes of chunks, of which
//! device `r` runs `2 (p - r - 1) + (v - 1) p` forwards before the first backward, or all if there is but
//! one group. The bubble is `(p - 1) / (v m)` of the ideal time, a `v`-th of 1F1B's, for `v` times the
//! messages. Most are in flight on the first device: `p v + p - 1` chunks of micro-batches, which is
//! `1 + (p - 1) / (p v)` of what 1F1B holds there. One message on each way is enough.

use super::{Cell, Pass, StageMap, Turn};
use crate::ProgramError;

/// The orders on a map of several stages per device.
pub(super) fn orders(map: &StageMap) -> Result<Vec<Vec<Turn>>, ProgramError> {
    let (devices, microbatches) = (map.devices(), map.microbatches() as usize);
    let chunks = map.instances_on(0).count();
    if chunks < 2 {
        let message = "interleaved wants at least two stages on each device; with one it is 1f1b";
        return Err(ProgramError::Schedule(message.into()));
    }
    if !microbatches.is_multiple_of(devices) {
        return Err(ProgramError::Schedule(format!(
            "interleaved wants micro-batches in multiples of the {devices} devices, not {microbatches}"
        )));
    }
    Ok((0..devices).map(|device| order(map, device)).collect())
}

fn order(map: &StageMap, device: usize) -> Vec<Turn> {
    let (devices, microbatches) = (map.devices(), map.microbatches() as usize);
    let stages: Vec<_> = map.instances_on(device).collect();
    let (chunks, passes) = (stages.len(), stages.len() * microbatches);
    // The k-th pass of either kind; backwards go through the chunks the other way.
    let turn = |pass: Pass, k: usize| {
        let chunk = k / devices % chunks;
        let instance = match pass {
            Pass::Forward => stages[chunk],
            _ => stages[chunks - 1 - chunk],
        };
        let microbatch = k / (devices * chunks) * devices + k % devices;
        Turn::Alone(Cell { pass, instance, microbatch: microbatch as u32 })
    };
    let warmup = match microbatches == devices {
        true => passes,
        false => (2 * (devices - device - 1) + (chunks - 1) * devices).min(passes),
    };
    let forward = |k| turn(Pass::Forward, k);
    let backward = |k| turn(Pass::Backward, k);
    let mut order: Vec<Turn> = (0..warmup).map(forward).collect();
    order.extend((warmup..passes).flat_map(|k| [forward(k), backward(k - warmup)]));
    order.extend((passes - warmup..passes).map(backward));
    order
}
