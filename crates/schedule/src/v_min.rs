//! V-Min: a third of 1F1B's activations on a pipeline that goes down the devices and back up (Qi et al.,
//! NeurIPS 2024, arXiv 2405.15362, section 3).
//!
//! A micro-batch goes on in every slot, down and up, so that every device holds its two stages'
//! activations for together about `4p` slots: `2 floor((p + 4) / 3)` activations of a stage, or
//! `floor((p + 4) / 3)` micro-batches. With equal times the bubble is about `4p` passes of a stage, two
//! thirds of 1F1B's; with unequal times there is no slack, and devices idle for every micro-batch. One
//! message on a way is enough.

use super::building_block::{self, Block};
use super::timing::Purpose;
use super::{Action, StageMap};
use crate::ScheduleError;

/// The orders on a map that goes to and fro once.
///
/// # Errors
/// If devices do not hold two stages each.
pub(super) fn orders(
    map: &StageMap,
    purpose: Purpose<'_>,
) -> Result<Vec<Vec<Action>>, ScheduleError> {
    super::wants_two_stages(map, "v-min")?;
    Ok(building_block::orders(map, purpose, &block(map.devices())))
}

fn block(devices: usize) -> Block {
    // Without a delay input gradients would meet forwards where three divides the devices.
    let delay = if devices.is_multiple_of(3) { 2 } else { 0 };
    let offsets = |device: usize| {
        [
            device,
            2 * devices - 1 - device,
            2 * devices + delay + device,
            4 * devices - 1 + delay - device,
        ]
    };
    (0..devices).map(offsets).collect()
}
