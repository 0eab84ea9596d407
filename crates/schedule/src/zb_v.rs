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
use super::{Cell, Instance, Pass, StageMap, Turn, zb_v_rounds};
use crate::ScheduleError;

/// The orders on a map that goes to and fro once.
///
/// # Errors
/// If devices do not hold two stages each.
pub(super) fn orders(
    map: &StageMap,
    purpose: Purpose<'_>,
) -> Result<Vec<Vec<Turn>>, ScheduleError> {
    super::wants_two_stages(map, "zb-v")?;
    let memory = Memory::microbatches(2 * map.devices());
    let stable: Vec<Vec<Turn>> = (0..map.devices()).map(|device| order(map, device)).collect();
    let bare = without_weights(&stable);
    let filled = [false, true].map(|eager| fill(map, purpose.times, &bare, memory, eager));
    let rounds = zb_v_rounds::orders(map, purpose.times, memory);
    Ok(best(map, purpose, [stable].into_iter().chain(filled).chain(rounds)))
}

/// The passes that a device has run so far of its two stages.
struct Passes {
    order: Vec<Turn>,
    stages: [Instance; 2],
    counts: [[u32; 2]; 3],
}

/// Stages by the order in which forwards reach them.
const DOWN: usize = 0;
const UP: usize = 1;

impl Passes {
    fn count(&mut self, pass: Pass, stage: usize) -> &mut u32 {
        &mut self.counts[match pass {
            Pass::Forward => 0,
            Pass::Backward | Pass::BackwardInput => 1,
            Pass::BackwardWeight => 2,
        }][stage]
    }

    fn run(&mut self, pass: Pass, stage: usize) {
        let count = self.count(pass, stage);
        let microbatch = *count;
        *count += 1;
        self.order.push(Turn::Alone(Cell { pass, instance: self.stages[stage], microbatch }));
    }

    /// Forward, input and weight gradients of a stage.
    fn run_all(&mut self, stage: usize) {
        self.run(Pass::Forward, stage);
        self.run(Pass::BackwardInput, stage);
        self.run(Pass::BackwardWeight, stage);
    }
}

/// The order for equal times. With fewer micro-batches than fill the pipeline the order is that for just
/// enough, without those that there are not.
fn order(map: &StageMap, device: usize) -> Vec<Turn> {
    let devices = map.devices();
    let microbatches = map.microbatches().max(2 * devices as u32 - 1);
    let stage = |stage: usize| Instance { pipeline: 0, stage: stage as u16 };
    let stages = [stage(device), stage(2 * devices - 1 - device)];
    let mut passes = Passes { order: vec![], stages, counts: [[0; 2]; 3] };
    for _ in 0..2 * (devices - device) - 1 {
        passes.run(Pass::Forward, DOWN);
    }
    for _ in 0..device {
        passes.run(Pass::Forward, UP);
        passes.run(Pass::Forward, DOWN);
    }
    for _ in device..devices {
        passes.run_all(UP);
    }
    while *passes.count(Pass::Forward, UP) < microbatches {
        if *passes.count(Pass::Forward, DOWN) < microbatches {
            passes.run(Pass::Forward, DOWN);
        }
        passes.run(Pass::BackwardInput, DOWN);
        passes.run(Pass::BackwardWeight, DOWN);
        passes.run_all(UP);
    }
    for _ in 0..device {
        passes.run(Pass::BackwardInput, DOWN);
        passes.run(Pass::BackwardInput, UP);
    }
    for _ in device..devices {
        passes.run(Pass::BackwardInput, DOWN);
        passes.run(Pass::BackwardWeight, DOWN);
    }
    for stage in [UP, DOWN] {
        while *passes.count(Pass::BackwardWeight, stage) < microbatches {
            passes.run(Pass::BackwardWeight, stage);
        }
    }
    let exists = |cell: &Cell| cell.microbatch < map.microbatches();
    passes.order.into_iter().filter_map(|turn| turn.filtered(exists)).collect()
}
