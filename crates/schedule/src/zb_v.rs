//! ZB-V: zero bubble with the memory of 1F1B on a pipeline that goes down the devices and back up (Qi et
//! al. 2024, arXiv 2401.10241, section 6).
//!
//! Device `d` of `p` holds stages `d` and `2p - 1 - d`. It runs `2(p - d) - 1` forwards of its first
//! stage, `d` of each of its stages in turn, and from then on every pass makes room for the next. With
//! equal times of forward, input gradients and weight gradients no device stands idle between its start
//! and its end from `2p - 1` micro-batches on. At most `2p` activations of a stage are in flight on a
//! device, which is `p` micro-batches; one message on a way is enough. With other times weight gradients
//! are moved to where they fill gaps, and orders are made [in rounds](super::zb_v_rounds); the best is kept.

use super::timing::{Purpose, best};
use super::weight_filling::{Memory, fill, without_weights};
use super::{Action, Instance, Pass, PassKind, StageMap, zb_v_rounds};
use crate::ScheduleError;

/// The orders on a map that goes to and fro once.
///
/// # Errors
/// If devices do not hold two stages each.
pub(super) fn orders(
    map: &StageMap,
    purpose: Purpose<'_>,
) -> Result<Vec<Vec<Action>>, ScheduleError> {
    super::wants_two_stages(map, "zb-v")?;
    let memory = Memory::microbatches(2 * map.devices());
    let stable: Vec<Vec<Action>> = (0..map.devices()).map(|device| order(map, device)).collect();
    let bare = without_weights(&stable);
    let filled = [false, true].map(|eager| fill(map, purpose.times, &bare, memory, eager));
    let rounds = zb_v_rounds::orders(map, purpose.times, memory);
    Ok(best(map, purpose, [stable].into_iter().chain(filled).chain(rounds)))
}

/// The passes that a device has run so far of its two stages.
struct Passes {
    order: Vec<Action>,
    stages: [Instance; 2],
    counts: [[u32; 2]; 3],
}

/// Stages by the order in which forwards reach them.
const DOWN: usize = 0;
const UP: usize = 1;

impl Passes {
    fn count(&mut self, kind: PassKind, stage: usize) -> &mut u32 {
        &mut self.counts[match kind {
            PassKind::Forward => 0,
            PassKind::Backward | PassKind::BackwardInput => 1,
            PassKind::BackwardWeight => 2,
        }][stage]
    }

    fn run(&mut self, kind: PassKind, stage: usize) {
        let count = self.count(kind, stage);
        let microbatch = *count;
        *count += 1;
        self.order.push(Action::Alone(Pass { kind, instance: self.stages[stage], microbatch }));
    }

    /// Forward, input and weight gradients of a stage.
    fn run_all(&mut self, stage: usize) {
        self.run(PassKind::Forward, stage);
        self.run(PassKind::BackwardInput, stage);
        self.run(PassKind::BackwardWeight, stage);
    }
}

/// The order for equal times. With fewer micro-batches than fill the pipeline the order is that for just
/// enough, without those that there are not.
fn order(map: &StageMap, device: usize) -> Vec<Action> {
    let devices = map.devices();
    let microbatches = map.microbatches().max(2 * devices as u32 - 1);
    let stage = |stage: usize| Instance { pipeline: 0, stage: stage as u16 };
    let stages = [stage(device), stage(2 * devices - 1 - device)];
    let mut passes = Passes { order: vec![], stages, counts: [[0; 2]; 3] };
    for _ in 0..2 * (devices - device) - 1 {
        passes.run(PassKind::Forward, DOWN);
    }
    for _ in 0..device {
        passes.run(PassKind::Forward, UP);
        passes.run(PassKind::Forward, DOWN);
    }
    for _ in device..devices {
        passes.run_all(UP);
    }
    while *passes.count(PassKind::Forward, UP) < microbatches {
        if *passes.count(PassKind::Forward, DOWN) < microbatches {
            passes.run(PassKind::Forward, DOWN);
        }
        passes.run(PassKind::BackwardInput, DOWN);
        passes.run(PassKind::BackwardWeight, DOWN);
        passes.run_all(UP);
    }
    for _ in 0..device {
        passes.run(PassKind::BackwardInput, DOWN);
        passes.run(PassKind::BackwardInput, UP);
    }
    for _ in device..devices {
        passes.run(PassKind::BackwardInput, DOWN);
        passes.run(PassKind::BackwardWeight, DOWN);
    }
    for stage in [UP, DOWN] {
        while *passes.count(PassKind::BackwardWeight, stage) < microbatches {
            passes.run(PassKind::BackwardWeight, stage);
        }
    }
    let exists = |pass: &Pass| pass.microbatch < map.microbatches();
    passes.order.into_iter().filter_map(|action| action.filtered(exists)).collect()
}
