//! A stage's bodies before anything is synchronised: forward, evaluation, and backward whole or in
//! halves.

use std::collections::BTreeSet;

use shardloom_plan::Recompute;

use super::forward::{self, Kept};
use super::stage::{Context, awaited};
use super::{backward, halves, liveness};
use crate::{Instruction, ProgramError, Tensor, TensorId};
use shardloom_schedule::PassKind;

/// The bodies of one stage.
pub(super) struct StageBodies {
    usual: Passes,
    /// Those of a micro-batch that is spared recomputation, where they differ.
    spared: Option<Passes>,
    pub evaluation: Vec<Instruction>,
}

/// The passes of one micro-batch.
struct Passes {
    forward: Vec<Instruction>,
    backward: Vec<Instruction>,
    halves: Option<(Vec<Instruction>, Vec<Instruction>)>,
}

impl StageBodies {
    /// The bodies of the stage of `context`, with the backward pass also in halves if `in_halves`.
    pub fn of(
        context: &Context<'_>,
        tensors: &mut Vec<Tensor>,
        in_halves: bool,
    ) -> Result<StageBodies, ProgramError> {
        let plan = context.plan;
        let place = context.model.place;
        let stage = &plan.pipeline[usize::from(place.pipeline)].stage[usize::from(place.stage)];
        let policy = plan.recompute_of(stage);
        let usual = Passes::of(context, tensors, policy, in_halves)?;
        let spared = match !plan.recompute_last && policy != Recompute::None {
            true => Some(Passes::of(context, tensors, Recompute::None, in_halves)?),
            false => None,
        };
        let mut evaluation = forward::body(context, tensors, &Kept::new())?;
        liveness::mark(&mut evaluation, tensors, &handed_on(context));
        Ok(StageBodies { usual, spared, evaluation })
    }

    /// Whether some micro-batches are spared recomputation.
    pub fn spares(&self) -> bool {
        self.spared.is_some()
    }

    /// The body of a pass of a micro-batch that `is_spared` recomputation or not.
    pub fn pass(&self, kind: PassKind, is_spared: bool) -> &[Instruction] {
        let passes = self.spared.as_ref().filter(|_| is_spared).unwrap_or(&self.usual);
        let halves = || passes.halves.as_ref().expect("halves are made where a schedule has them");
        match kind {
            PassKind::Forward => &passes.forward,
            PassKind::Backward => &passes.backward,
            PassKind::BackwardInput => &halves().0,
            PassKind::BackwardWeight => &halves().1,
        }
    }
}

impl Passes {
    fn of(
        context: &Context<'_>,
        tensors: &mut Vec<Tensor>,
        policy: Recompute,
        in_halves: bool,
    ) -> Result<Passes, ProgramError> {
        let backward = backward::body(context, tensors, policy, in_halves)?;
        let mut forward = forward::body(context, tensors, &backward.kept)?;
        let mut backward = backward.instructions;

        let handed_back: BTreeSet<TensorId> = context
            .boundaries
            .into(context.stage)
            .filter_map(|(id, _)| context.handovers.get(&id)?.gradient)
            .collect();
        let kept = awaited(&backward, tensors).union(&handed_on(context)).copied().collect();
        liveness::mark(&mut forward, tensors, &kept);
        let halves = in_halves.then(|| {
            let (mut input, mut weight) = halves::split(context.graph, backward.clone());
            let kept = awaited(&weight, tensors).union(&handed_back).copied().collect();
            liveness::mark(&mut input, tensors, &kept);
            liveness::mark(&mut weight, tensors, &BTreeSet::new());
            (input, weight)
        });
        liveness::mark(&mut backward, tensors, &handed_back);
        Ok(Passes { forward, backward, halves })
    }
}

/// The values that the stage's forward pass leaves to other stages of its class.
fn handed_on(context: &Context<'_>) -> BTreeSet<TensorId> {
    let handovers = context.boundaries.out_of(context.stage);
    handovers.filter_map(|(id, _)| Some(context.handovers.get(&id)?.value)).collect()
}
