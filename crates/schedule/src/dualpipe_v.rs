//! DualPipeV: one half of DualPipe's devices, with one pipeline down them and back up in place of the two
//! ("cut in half", published with DeepSeek's code for DualPipe).
//!
//! The second half of DualPipe's devices mirrors the first and holds the same parameters. Here device `d`
//! of `p` runs the same eight steps with stages `d` and `2p - 1 - d` of one pipeline, and no stage is
//! there twice. The bubble is `(p - 1)(F&B + B - 3W)` in times of a stage where DualPipe's is
//! as published; at most `2p + 1` activations
//! of a stage are in flight on each device.

use super::{Action, Instance, StageMap, dualpipe};
use crate::ScheduleError;

/// The orders on a map that goes to and fro once.
///
/// # Errors
/// If devices do not hold two stages each, or if there are too few micro-batches to fill the pipeline.
pub(super) fn orders(map: &StageMap) -> Result<Vec<Vec<Action>>, ScheduleError> {
    super::wants_two_stages(map, "dualpipev")?;
    let devices = map.devices();
    let (microbatches, least) = (map.microbatches() as usize, 2 * devices);
    if microbatches < least {
        let rule = format!(
            "dualpipev wants at least {least} micro-batches on {devices} devices, and these are \
             {microbatches}"
        );
        return Err(ScheduleError::microbatches(microbatches, rule));
    }
    let stage = |stage: usize| Instance { pipeline: 0, stage: stage as u16 };
    let order = |device: usize| {
        let ways = [stage(device), stage(2 * devices - 1 - device)];
        dualpipe::steps(map, ways, device, devices)
    };
    Ok((0..devices).map(order).collect())
}
