//! Chimera (Li and Hoefler 2021, arXiv 2107.06925, sections 3.1, 3.5 and 3.6).
//!
//! Each of `D` devices holds one stage of each of `2 q` pipelines, half of which run the other way, so
//! that parameters are held `2 q` times. The orders are those of a grid of slots in which forward and
//! backward passes take a slot each: the `j`-th micro-batch of a unit goes forward in stage `s` at slot
//! `s + 2 j` and backward at `2 D - 1 - s + 2 j`, and a pipeline has `D / 2 q` micro-batches in a unit.
//! As `D / q` is even, the slots of a device's stages never meet, and a unit that begins `2 D` slots
//! after another fills the gaps that the other leaves: units are concatenated.
//!
//! Micro-batches are dealt as evenly as can be, so that with an odd number some pipelines have one more than
//! others, and the slots of those that lack stay empty.
//!
//! With `f = b` a step of whole units takes `2 N + D/q - 2`. With `b = 2 f` one unit takes
//! `3 N + 2 (D/q - 2)`, and each further one leaves a gap of `D/q - 2` between units, which
//! [doubling](doubled_orders) closes. With one pair of pipelines between `D/2 + 1` and `D` micro-batches
//! are in flight, `D/2 + 1 + min(i, D - 1 - i)` on device `i`. One message on each way is enough.

use super::{Action, Instance, Pass, PassKind, StageMap};
use crate::ScheduleError;

/// The orders of Chimera.
pub(super) fn orders(map: &StageMap) -> Vec<Vec<Action>> {
    merged(map, 1)
}

/// The orders of forward doubling (section 3.5): as Chimera's, but of pairs of micro-batches, one right
/// after the other. Where a backward pass takes as long as two forward passes, the forwards of a pair
/// take as long as one backward, so that units of `2 D` micro-batches leave no gap between them and a step
/// takes `3 (N + (D/q - 2) / 2)`; a last unit that is not whole leaves some. Twice as many micro-batches
/// are in flight, and two messages on a way.
///
/// Backward halving is this order on micro-batches of half the size: a pair is then a whole micro-batch,
/// whose backward pass runs in two halves, and what is in flight takes the memory of Chimera's.
///
/// An order that runs a pair's forwards as one pass hands on both at once; here the first is handed on
/// as soon as it is done.
pub(super) fn doubled_orders(map: &StageMap) -> Result<Vec<Vec<Action>>, ScheduleError> {
    let pipelines = map.chains().len();
    let each = map.microbatches() as usize / pipelines;
    if !each.is_multiple_of(2) {
        return Err(ScheduleError::Rule(format!(
            "chimera-doubling wants an even number of micro-batches for each of {pipelines} pipelines, \
             not {each}"
        )));
    }
    Ok(merged(map, 2))
}

/// All pipelines on the grid, `together` micro-batches at once.
fn merged(map: &StageMap, together: usize) -> Vec<Vec<Action>> {
    let devices = map.devices();
    // The arrangement has made sure that pipelines are even in number and divide the devices.
    let unit = devices / map.chains().len();
    let mut slots = vec![vec![]; devices];
    for instance in map.instances() {
        let Instance { stage, .. } = instance;
        let (device, stage) = (map.device(instance), usize::from(stage));
        for (group, microbatches) in map.microbatches_of(instance).chunks(together).enumerate() {
            let begin = group / unit * 2 * devices + group % unit * 2;
            let backward = begin + 2 * devices - 1 - stage;
            for (kind, slot) in [(PassKind::Forward, begin + stage), (PassKind::Backward, backward)]
            {
                let pass = |&microbatch: &u32| Pass { kind, instance, microbatch };
                slots[device].extend(microbatches.iter().map(pass).map(|pass| (slot, pass)));
            }
        }
    }
    let order = |mut slots: Vec<(usize, Pass)>| {
        slots.sort_unstable();
        slots.into_iter().map(|(_, pass)| Action::Alone(pass)).collect()
    };
    slots.into_iter().map(order).collect()
}
