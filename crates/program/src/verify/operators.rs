//! A pass of an operator has the same operands wherever it runs (forward, again, and in an evaluation), and
//! runs once for each micro-batch.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, ValueId};
use shardloom_plan::Mesh;

use super::row::{Row, entries, instructions, site, steps};
use super::violation::Violation;
use crate::{Action, BodyId, Class, ClassId, Content, Format, Program, View, Window};

/// An operand, as far as it is the same everywhere.
#[derive(PartialEq)]
struct Operand {
    shape: Vec<usize>,
    format: Format,
    /// The graph's parameter, of weights and their gradients.
    param: Option<ValueId>,
}

/// A pass of an operator on a mesh of these widths.
type Run = (OpId, Pass, Mesh);

/// An instruction: its class, its body, its number there.
type Place = (ClassId, BodyId, usize);

/// Checks all operators of a program.
pub(super) fn check(program: &Program, found: &mut Vec<Violation>) {
    let mut known: FxHashMap<Run, (Place, Vec<Operand>)> = FxHashMap::default();
    for (id, class) in program.classes() {
        // A moved weight stands for the weight, of which it does not say which it is.
        let moves = class.tensors.iter().any(|it| it.content == Content::ExtrapolatedWeight);
        for (body, instructions) in (0u32..).map(BodyId).zip(&class.bodies) {
            for (index, instruction) in instructions.instructions.iter().enumerate() {
                let Action::Kernel { op, pass, .. } = instruction.action else { continue };
                let at = (id, body, index);
                let operands: Vec<Operand> =
                    instruction.operands().map(|view| operand(class, view, moves)).collect();
                let mesh = class.mesh;
                match known.get(&(op, pass, mesh)) {
                    Some((_, first)) if *first == operands => {}
                    Some((other, _)) => {
                        let site =
                            |(id, body, index): Place| site(program.class(id), id, body, index);
                        let (at, other) = (site(at), site(*other));
                        found.push(Violation::Operator { at, other });
                    }
                    None => {
                        known.insert((op, pass, mesh), (at, operands));
                    }
                }
            }
        }
    }
}

fn operand(class: &Class, view: View, moves: bool) -> Operand {
    let tensor = class.tensor(view.tensor);
    let param = match view.window {
        Window::Param(param) if !moves => Some(class.param(param).value),
        _ => None,
    };
    Operand { shape: class.shape(view).to_vec(), format: tensor.format, param }
}

/// Checks that every micro-batch goes through each pass of each operator once, and that all go through the
/// same.
pub(super) fn check_counts(program: &Program, found: &mut Vec<Violation>) {
    let mut counts: BTreeMap<(OpId, Pass), BTreeMap<u32, usize>> = BTreeMap::new();
    for (id, class) in program.classes() {
        for step in instructions(class, id, &entries(program, class, Row::Usual)) {
            let Action::Kernel { op, pass, again: false, .. } = step.instruction.action else {
                continue;
            };
            let Some(microbatch) = step.run.microbatch else { continue };
            *counts.entry((op, pass)).or_default().entry(microbatch).or_default() += 1;
        }
    }
    let microbatches = steps(program) * program.microbatches as u32;
    for ((op, pass), counts) in counts {
        let times = |microbatch| counts.get(&microbatch).copied().unwrap_or(0);
        if let Some(microbatch) = (0..microbatches).find(|&it| times(it) != 1) {
            let (operator, times) = (op.index(), times(microbatch));
            let pass = format!("{pass:?}").to_lowercase();
            found.push(Violation::Passes { microbatch, operator, pass, times });
        }
    }
}
