//! Inserts what moves weights along their velocity before delayed passes read them: PipeMare's discrepancy
//! correction for backward passes (Yang et al. 2021, arXiv 1910.05124, section 3.2), linear weight
//! prediction for forward passes (Kosson et al. 2021, arXiv 2003.11666, section 3.2).

use shardloom_graph::work::Pass;

use super::buckets::Parameters;
use crate::{Action, Instruction, View};

/// Has operators read moved weights where the plan's corrections say so.
pub(super) fn insert(instructions: &mut Vec<Instruction>, parameters: &Parameters<'_>) {
    for mut instruction in std::mem::take(instructions) {
        if let Action::Kernel { pass, again, .. } = instruction.action {
            let forward = pass == Pass::Forward && !again;
            for read in &mut instruction.reads {
                let Some(param) = parameters.read_weight(*read) else { continue };
                let Some((moved, along)) = parameters.extrapolated(param, forward) else {
                    continue;
                };
                let action = Action::Extrapolate { forward };
                instructions.push(Instruction::new(action, [*read, along], [View::whole(moved)]));
                *read = View::whole(moved);
                instruction.frees.push(moved);
            }
        }
        instructions.push(instruction);
    }
}
