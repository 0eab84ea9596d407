//! A stage's bodies before anything is synchronised: forward, evaluation, and backward whole or in
//! halves.

use std::collections::BTreeSet;

use super::forward::{self, Kept};
use super::stage::{Context, awaited};
use super::{backward, halves, liveness};
use crate::class::Slot;
use crate::schedule::Pass;
use crate::{Instruction, ProgramError, SlotId};

/// The bodies of one stage.
pub(super) struct StageBodies {
    pub forward: Vec<Instruction>,
    pub evaluation: Vec<Instruction>,
    backward: Vec<Instruction>,
    halves: Option<(Vec<Instruction>, Vec<Instruction>)>,
}

impl StageBodies {
    /// The bodies of the stage of `context`, with the backward pass also in halves if `in_halves`.
    pub fn of(
        context: &Context<'_>,
        slots: &mut Vec<Slot>,
        in_halves: bool,
    ) -> Result<StageBodies, ProgramError> {
        let backward = backward::body(context, slots, in_halves)?;
        let mut forward = forward::body(context, slots, &backward.kept)?;
        let mut evaluation = forward::body(context, slots, &Kept::new())?;
        let mut backward = backward.instructions;

        let boundaries = context.boundaries;
        let handover = |id| context.handovers.get(&id);
        let handed_on: BTreeSet<SlotId> = boundaries
            .out_of(context.stage)
            .filter_map(|(id, _)| Some(handover(id)?.value))
            .collect();
        let handed_back: BTreeSet<SlotId> = boundaries
            .into(context.stage)
            .filter_map(|(id, _)| Some(handover(id)?.gradient))
            .collect();
        let kept = awaited(&backward).union(&handed_on).copied().collect();
        liveness::mark(&mut forward, slots, &kept);
        liveness::mark(&mut evaluation, slots, &handed_on);
        let halves = in_halves.then(|| {
            let (mut input, mut weight) = halves::split(context.graph, backward.clone());
            let kept = awaited(&weight).union(&handed_back).copied().collect();
            liveness::mark(&mut input, slots, &kept);
            liveness::mark(&mut weight, slots, &BTreeSet::new());
            (input, weight)
        });
        liveness::mark(&mut backward, slots, &handed_back);
        Ok(StageBodies { forward, evaluation, backward, halves })
    }

    /// The body of a pass.
    pub fn pass(&self, pass: Pass) -> &[Instruction] {
        let halves = || self.halves.as_ref().expect("halves are made where a schedule has them");
        match pass {
            Pass::Forward => &self.forward,
            Pass::Backward => &self.backward,
            Pass::BackwardInput => &halves().0,
            Pass::BackwardWeight => &halves().1,
        }
    }
}
