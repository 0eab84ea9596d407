//! Whatever reads or moves rows whose number is known only while running reads the counts of these very rows,
//! and where rows go and come back is what one routing decided.

use std::collections::BTreeMap;

use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, Value};

use super::row::{Step, instructions};
use super::violation::Violation;
use crate::{
    Action, BodyId, Class, ClassId, Collective, Copies, Entry, Run, Shape, TensorId, View,
};

/// A result of an operator, by its number among them.
type Made = (OpId, usize);

/// Checks a class.
pub(super) fn check(class: &Class, id: ClassId, found: &mut Vec<Violation>) {
    let bodies = (0..class.bodies.len() as u32).map(BodyId);
    let all: Vec<Run> = bodies.map(|body| Run::alone(Entry::new(body, None))).collect();
    let steps: Vec<Step<'_>> = instructions(class, id, &all).collect();
    let sources = Sources::of(class, &steps);
    // By operator: what its first pass that is met reads of a routing.
    let mut known: BTreeMap<OpId, Vec<Made>> = BTreeMap::new();
    for step in &steps {
        let operands = step.instruction.operands();
        let rows: Vec<TensorId> = operands
            .map(|view| view.tensor)
            .filter(|&tensor| class.tensor(tensor).counts().is_some())
            .collect();
        let Some(&first) = rows.first() else { continue };
        for &tensor in &rows {
            counted(step, tensor, found);
        }
        if !found.is_empty() {
            return;
        }
        let routing = rows.iter().map(|&it| sources.routing(class, it)).collect::<Vec<_>>();
        let reads = step.instruction.reads.iter();
        let decided = reads.filter_map(|read| sources.decided(read.tensor)).collect::<Vec<_>>();
        let by = |tensor| class.counted(tensor, 0).map(|(by, _)| by);
        let of_one = routing.iter().all(|it| it.is_some() && *it == routing[0])
            && rows.iter().all(|&it| by(it) == by(first))
            && decided.iter().all(|&(op, _)| Some(op) == routing[0]);
        let alike = match step.instruction.action {
            Action::Kernel { op, .. } => *known.entry(op).or_insert(decided.clone()) == decided,
            Action::Collective { kind, .. } => exchanges(step, kind),
            // What is added or copied lies alike in both.
            Action::Add | Action::Copy => {
                rows.iter().all(|&it| class.tensor(it).counts() == class.tensor(first).counts())
            }
            _ => false,
        };
        if !of_one || !alike {
            let tensor = step.tensor_name(first);
            found.push(Violation::Rows { at: step.site(), tensor });
        }
    }
}

/// Checks that a tensor's counts are those of its experts and samples, and are read with it.
fn counted(step: &Step<'_>, tensor: TensorId, found: &mut Vec<Violation>) {
    let class = step.class;
    let Shape::AtMost { bound, counts, .. } = &class.tensor(tensor).shape else { return };
    let of = class.tensors.get(counts.tensor.0 as usize);
    let fits = of.is_some_and(|of| {
        let leading = bound.get(..Value::COUNTED_AXES);
        of.copies == Copies::PerMicrobatch
            && leading.is_some_and(|leading| of.shape == Shape::Local(leading.to_vec()))
    });
    if !fits || !step.instruction.reads.contains(counts) {
        let (at, tensor) = (step.site(), step.tensor_name(tensor));
        found.push(Violation::Counts { at, tensor });
    }
}

/// Whether a collective exchanges experts for samples, with the counts before and after it in this order.
fn exchanges(step: &Step<'_>, kind: Collective) -> bool {
    let instruction = step.instruction;
    let counts = |view: View| step.class.tensor(view.tensor).counts();
    let own = counts(instruction.reads[0]);
    let others = instruction.writes.iter().map(|write| counts(write.to)).collect::<Vec<_>>();
    let in_order = own == instruction.reads.get(1).copied()
        && others.iter().all(|it| *it == instruction.reads.get(2).copied());
    let moves = matches!(kind, Collective::AllToAll { from, to }
        if from.max(to) < Value::COUNTED_AXES);
    in_order && moves
}

/// Where tensors of a class come from.
struct Sources {
    /// By tensor: the result of an operator's forward pass that it is, in whatever layout.
    made: BTreeMap<TensorId, Made>,
    /// The operators that decide where rows go: those whose results count rows.
    routings: Vec<OpId>,
}

impl Sources {
    fn of(class: &Class, steps: &[Step<'_>]) -> Sources {
        let mut made: BTreeMap<TensorId, Made> = BTreeMap::new();
        for step in steps {
            let instruction = step.instruction;
            match instruction.action {
                Action::Kernel { op, pass: Pass::Forward, .. } => {
                    let written = instruction.writes.iter().enumerate();
                    made.extend(written.map(|(index, write)| (write.to.tensor, (op, index))));
                }
                Action::Collective { .. } | Action::Slice { .. } => {
                    let source = instruction.reads.first().and_then(|it| made.get(&it.tensor));
                    if let (Some(&source), Some(write)) = (source, instruction.writes.first()) {
                        made.insert(write.to.tensor, source);
                    }
                }
                _ => {}
            }
        }
        let counts = class.tensors.iter().filter_map(|tensor| tensor.counts());
        let routings = counts.filter_map(|counts| Some(made.get(&counts.tensor)?.0));
        let mut routings: Vec<OpId> = routings.collect();
        routings.sort_unstable();
        routings.dedup();
        Sources { made, routings }
    }

    /// The routing that decided how many rows a tensor has.
    fn routing(&self, class: &Class, rows: TensorId) -> Option<OpId> {
        let counts = class.tensor(rows).counts()?;
        self.made.get(&counts.tensor).map(|&(op, _)| op)
    }

    /// Which result of a routing a tensor is.
    fn decided(&self, tensor: TensorId) -> Option<Made> {
        let made = self.made.get(&tensor).copied();
        made.filter(|(op, _)| self.routings.contains(op))
    }
}
