//! Transient tensors are written before they are read, and freed once after they are.

use std::collections::BTreeMap;
use std::ops::Range;

use super::row::{Row, Step, entries, instructions};
use super::violation::Violation;
use crate::{
    Action, Allocation, Class, ClassId, Content, Copies, Mode, Program, TensorId, View, Window,
};

/// A transient tensor that is there.
#[derive(Clone, Default)]
struct Live {
    /// What is written of it, disjoint and in order.
    written: Vec<Range<usize>>,
    is_read: bool,
}

/// Follows every tensor of a class through a row. Shares are those of the first position; that those of
/// others are like them is for [operands](super::operands) to say.
pub(super) fn check(program: &Program, id: ClassId, row: Row, found: &mut Vec<Violation>) {
    let class = program.class(id);
    let mut lives = Lives::default();
    for step in instructions(class, id, &entries(program, class, row)) {
        lives.step(&step, found);
    }
    for it in lives.0.into_keys() {
        let tensor = class.tensor(it.tensor).name.clone();
        found.push(Violation::Left { place: class.place(), tensor });
    }
}

/// The transient tensors that are there.
#[derive(Clone, Default)]
pub(super) struct Lives(BTreeMap<Allocation, Live>);

impl Lives {
    /// Which are there.
    pub fn allocations(&self) -> impl Iterator<Item = Allocation> {
        self.0.keys().copied()
    }

    /// Whether all of a tensor without micro-batch is written, and not freed yet.
    pub fn holds(&self, class: &Class, view: View) -> bool {
        let live = class.allocation(view.tensor, None).and_then(|it| self.0.get(&it));
        live.is_some_and(|live| covers(&live.written, &class.view_range(view, 0)))
    }

    /// Runs an instruction.
    pub fn step(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let Lives(live) = self;
        let (class, instruction) = (step.class, step.instruction);
        for &read in &instruction.reads {
            used(step, read, live, found);
        }
        for write in &instruction.writes {
            let view = write.to;
            if write.mode == Mode::Add {
                used(step, view, live, found);
            }
            let Some(it) = allocation(step, view, found) else { continue };
            let name = || step.tensor_name(view.tensor);
            let in_place = instruction.reads.iter().any(|read| read.tensor == view.tensor);
            let whole = view.window == Window::Whole;
            let replaces = match write.mode {
                Mode::Set => whole && !in_place && live.contains_key(&it),
                Mode::Add => false,
                // A sum that was read is done with.
                Mode::AddUnlessFirst => live.get(&it).is_some_and(|now| now.is_read),
            };
            if replaces {
                found.push(Violation::Overwritten { at: step.site(), tensor: name() });
            }
            let now = live.entry(it).or_default();
            insert(&mut now.written, class.view_range(view, 0));
        }
        for &tensor in &instruction.frees {
            let at = class.allocation(tensor, step.run.microbatch);
            let Some(was) = at.and_then(|it| live.remove(&it)) else {
                let tensor = step.tensor_name(tensor);
                found.push(Violation::FreedTwice { at: step.site(), tensor });
                continue;
            };
            if !was.is_read && !may_stay_unread(step, tensor) {
                let tensor = step.tensor_name(tensor);
                found.push(Violation::Unread { at: step.site(), tensor });
            }
        }
    }
}

/// The copy of a tensor that an instruction touches; none of what is there for the whole run.
fn allocation(step: &Step<'_>, view: View, found: &mut Vec<Violation>) -> Option<Allocation> {
    let tensor = step.class.tensor(view.tensor);
    if tensor.copies == Copies::PerMicrobatch && step.run.microbatch.is_none() {
        let fault = format!("{} has a copy for each micro-batch, and this is none's", tensor.name);
        found.push(Violation::Operands { at: step.site(), fault });
        return None;
    }
    step.class.allocation(view.tensor, step.run.microbatch)
}

/// Notes that an instruction needs what is in a view.
fn used(
    step: &Step<'_>,
    view: View,
    live: &mut BTreeMap<Allocation, Live>,
    found: &mut Vec<Violation>,
) {
    let Some(it) = allocation(step, view, found) else { return };
    let wanted = step.class.view_range(view, 0);
    // In a sum of gradients what nobody has added to counts as zero.
    let is_sum =
        matches!(step.class.tensor(view.tensor).content, Content::Gradient | Content::Rows);
    match live.get_mut(&it) {
        Some(now) if is_sum || covers(&now.written, &wanted) => now.is_read = true,
        _ => {
            let tensor = step.tensor_name(view.tensor);
            found.push(Violation::Unwritten { at: step.site(), tensor });
        }
    }
}

/// Whether a tensor is rightly freed without a read: parts that collectives leave side by side, what an arm
/// of a guard drops that is there for the other, what an operator writes besides what it is run for, such as
/// a mask where no backward pass follows, and what is computed again: a plan may have all of a block run again.
fn may_stay_unread(step: &Step<'_>, tensor: TensorId) -> bool {
    let instruction = step.instruction;
    let is_staging = step.class.tensor(tensor).content == Content::Staging;
    let drops = matches!(instruction.action, Action::Receive { .. } | Action::Free);
    let is_dropped = step.run.arm.is_some() && drops;
    let writes = &instruction.writes;
    let is_besides = writes.len() > 1 && writes.iter().any(|write| write.to.tensor == tensor);
    let is_again = matches!(instruction.action, Action::Kernel { again: true, .. });
    is_staging || is_dropped || is_besides || is_again
}

/// Adds a range to disjoint ones in order.
fn insert(ranges: &mut Vec<Range<usize>>, new: Range<usize>) {
    if ranges.first() == Some(&new) {
        return;
    }
    ranges.push(new);
    ranges.sort_by_key(|it| it.start);
    let mut joined: Vec<Range<usize>> = vec![];
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}

/// Whether a range lies within one of some.
fn covers(ranges: &[Range<usize>], wanted: &Range<usize>) -> bool {
    wanted.is_empty() || ranges.iter().any(|it| it.start <= wanted.start && wanted.end <= it.end)
}
