//! The norm of gradients is that of all ranks before it is used.

use std::collections::BTreeSet;

use shardloom_plan::Axis;

use super::row::{Row, Step, entries, instructions};
use super::violation::Violation;
use crate::{Action, ClassId, Content, Group, Mode, Program, TensorId};

/// What a rank's norm covers.
#[derive(Default)]
struct Norm {
    /// Mesh axes over which it is summed.
    axes: BTreeSet<Axis>,
    /// Whether it is that of all ranks.
    is_of_all: bool,
    /// Whether it was found and has not been used yet.
    is_pending: bool,
}

/// Follows the norm of a class through a row. Where updates are validated later, the norm that an update
/// reads is that of the classes before, and the one that a validation reads came from the last of them.
pub(super) fn check(program: &Program, id: ClassId, row: Row, found: &mut Vec<Violation>) {
    let class = program.class(id);
    let mut norm = Norm::default();
    for step in instructions(class, id, &entries(program, class, row)) {
        let instruction = step.instruction;
        let is_norm = |tensor| class.tensor(tensor).content == Content::Norm;
        let Some(tensor) =
            instruction.operands().map(|view| view.tensor).find(|&tensor| is_norm(tensor))
        else {
            continue;
        };
        let lost = || Violation::Lost { at: step.site(), tensor: step.tensor_name(tensor) };
        match &instruction.action {
            Action::Norm => {
                if norm.is_pending {
                    found.push(lost());
                }
                norm = Norm { is_pending: true, ..Norm::default() };
            }
            Action::Collective { group, .. } => {
                let again = match group {
                    Group::World => std::mem::replace(&mut norm.is_of_all, true),
                    Group::Mesh(axes) => {
                        let known = axes.iter().any(|axis| norm.axes.contains(axis));
                        norm.axes.extend(axes);
                        known
                    }
                    Group::Classes(_) => true,
                };
                if again || !norm.is_pending {
                    let tensor = step.tensor_name(tensor);
                    found.push(Violation::ReducedTwice { at: step.site(), tensor });
                }
            }
            Action::Receive { .. } => match instruction.writes[0].mode {
                Mode::Set if norm.is_pending => found.push(lost()),
                Mode::Set => norm = Norm { is_of_all: true, ..Norm::default() },
                _ => require(&step, &norm, false, tensor, found),
            },
            action => {
                // Where updates are validated later, only that waits for the norm of all.
                let of_all = match action {
                    Action::Validate => class.updates_early(),
                    _ => !class.ends_late(),
                };
                require(&step, &norm, of_all, tensor, found);
                norm.is_pending = false;
            }
        }
    }
}

/// Checks that a norm covers the class's ranks, or all.
fn require(
    step: &Step<'_>,
    norm: &Norm,
    of_all: bool,
    tensor: TensorId,
    found: &mut Vec<Violation>,
) {
    let mesh = &step.class.mesh;
    let wide = |axis: &&Axis| mesh.width(**axis) > 1;
    let covers = norm.is_of_all || Axis::ALL.iter().filter(wide).all(|it| norm.axes.contains(it));
    if !covers || (of_all && !norm.is_of_all) {
        let tensor = step.tensor_name(tensor);
        found.push(Violation::Unreduced { at: step.site(), tensor });
    }
}
