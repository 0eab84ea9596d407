//! V-Half: half of 1F1B's activations on a pipeline that goes down the devices and back up (Qi et al.,
//! NeurIPS 2024, arXiv 2405.15362, section 3).
//!
//! Down the devices a micro-batch takes two slots to each, up one, so that every device holds its two
//! stages' activations for together about `6p` slots: `2 floor((p + 2) / 2)` activations of a stage, or
//! `floor((p + 2) / 2)` micro-batches. With equal times the bubble is about `3p` passes of a stage, half
//! of 1F1B's. Devices do not idle for every micro-batch as long as `W + 2I >= 2F` and `W + 2F >= 2I`.
//! One message on a way is enough.

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
    super::wants_two_stages(map, "v-half")?;
    Ok(building_block::orders(map, purpose, &block(map.devices())))
}

fn block(devices: usize) -> Block {
    // Without a delay input gradients would meet forwards on an even number of devices.
    let delay = if devices.is_multiple_of(2) { 3 } else { 0 };
    let offsets = |device: usize| {
        [
            2 * device,
            3 * devices - 2 - device,
            3 * devices - 1 + delay + 2 * device,
            6 * devices - 2 + delay - device,
        ]
    };
    (0..devices).map(offsets).collect()
}
