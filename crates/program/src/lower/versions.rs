//! Which version of the weights each pass runs with.
//!
//! The weights are updated once a step. A pass that runs ahead, or whose forward did, may need them as
//! they were some updates ago; how many is the same in every step.

use shardloom_plan::Weights;

use crate::ProgramError;
use crate::schedule::{Cell, Instance, Pass, Schedule};

/// The plan's rule on the schedule's order.
#[derive(Clone, Copy)]
pub(super) struct Versions<'a> {
    pub rule: Weights,
    pub schedule: &'a Schedule,
}

impl Versions<'_> {
    /// How many updates old the weights are that `cell` runs with.
    ///
    /// # Errors
    /// If the rule has no version for it.
    pub fn lag(&self, cell: Cell) -> Result<u32, ProgramError> {
        let map = &self.schedule.map;
        let own = self.ahead(cell.instance, cell.microbatch);
        let forward = cell.pass == Pass::Forward;
        Ok(match self.rule {
            Weights::Flush | Weights::Newest { .. } => 0,
            Weights::Stash if forward => 0,
            Weights::Stash => own,
            Weights::VerticalSync => {
                let input = self.ahead(Instance { stage: 0, ..cell.instance }, cell.microbatch);
                let passed = if forward { own } else { 0 };
                input.checked_sub(passed).ok_or_else(|| {
                    let device = map.device(cell.instance);
                    ProgramError::Schedule(format!(
                        "device {device} runs {} before the first stage does",
                        map.cell_text(device, cell)
                    ))
                })?
            }
            Weights::DoubleBuffer if !forward => 1,
            Weights::DoubleBuffer => 1u32.checked_sub(own).ok_or_else(|| {
                ProgramError::Schedule(format!(
                    "two versions of weights do not suffice: some stage runs {own} steps ahead; give a \
                     step at least as many micro-batches as there are stages"
                ))
            })?,
        })
    }

    /// How many updates there are, on average, between the forward passes of `instance` and the updates
    /// with their gradients.
    pub fn delay(&self, instance: Instance) -> f64 {
        let microbatches = self.schedule.map.microbatches_of(instance);
        let ahead = microbatches.iter().map(|&it| f64::from(self.ahead(instance, it)));
        ahead.sum::<f64>() / microbatches.len() as f64
    }

    /// How many steps before a micro-batch's own `instance` runs its forward pass.
    fn ahead(&self, instance: Instance, microbatch: u32) -> u32 {
        let microbatches = self.schedule.map.microbatches();
        let order = &self.schedule.orders[self.schedule.map.device(instance)];
        let same = |cell: &Cell| {
            cell.pass == Pass::Forward
                && cell.instance == instance
                && cell.microbatch % microbatches == microbatch % microbatches
        };
        let forward = order.iter().flat_map(|turn| turn.cells()).find(same);
        forward.map_or(0, |cell| cell.microbatch / microbatches)
    }
}
