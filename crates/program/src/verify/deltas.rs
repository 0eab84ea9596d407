//! What a worker's own update changes of weights goes to servers whole and once a step, and they add it to their
//! weights once.

use std::collections::BTreeMap;
use std::ops::Range;

use super::row::{Row, Step, entries, instructions, steps};
use super::violation::Violation;
use crate::{Action, BucketId, Class, ClassId, Content, Program, Run, TensorId, View, overlap};

/// What a tensor for such a change holds.
enum Delta {
    /// The weights as they were when something had changed them so often.
    Before(u32),
    /// By how much one update has changed them; these elements are sent.
    Change(Vec<Range<usize>>),
    /// What a worker has sent.
    Arrived,
}

/// Checks all classes in a row.
pub(super) fn check(program: &Program, row: Row, found: &mut Vec<Violation>) {
    for (id, class) in program.classes() {
        if class.tensors.iter().any(|tensor| tensor.content == Content::WeightDelta) {
            let (held, changes) = (BTreeMap::new(), BTreeMap::new());
            Deltas { program, class, held, changes, sent: BTreeMap::new() }.run(id, row, found);
        }
    }
}

/// Follows what one class changes, or adds.
struct Deltas<'p> {
    program: &'p Program,
    class: &'p Class,
    held: BTreeMap<TensorId, Delta>,
    /// How often updates have changed a bucket's weights, or servers have sent others.
    changes: BTreeMap<BucketId, u32>,
    /// By bucket, how many changes of it were sent whole.
    sent: BTreeMap<BucketId, i64>,
}

impl Deltas<'_> {
    fn run(mut self, id: ClassId, row: Row, found: &mut Vec<Violation>) {
        let runs = entries(self.program, self.class, row);
        for step in 0..i64::from(steps(self.program)) {
            let of_step: Vec<Run> = runs.iter().filter(|run| run.step == step).copied().collect();
            for step in instructions(self.class, id, &of_step) {
                let was_right = self.follow(&step) && self.frees(&step);
                if !was_right {
                    let tensor = step.instruction.operands().find(|it| self.is_delta(*it));
                    let freed = step.instruction.frees.first();
                    let tensor = tensor.map(|it| it.tensor).or(freed.copied());
                    let tensor = tensor.map_or(String::new(), |it| step.tensor_name(it));
                    found.push(Violation::Delta { at: step.site(), tensor });
                }
            }
            for (id, bucket) in self.class.buckets().filter(|(_, it)| it.apart.is_some()) {
                let times = self.sent.remove(&id).unwrap_or(0);
                if times != 1 {
                    let (place, bucket) = (self.class.place(), bucket.name.clone());
                    found.push(Violation::Deltas { place, bucket, times });
                }
            }
        }
    }

    fn is_delta(&self, view: View) -> bool {
        self.class.tensor(view.tensor).content == Content::WeightDelta
    }

    /// Whether an instruction does with such tensors what it may.
    fn follow(&mut self, step: &Step<'_>) -> bool {
        let instruction = step.instruction;
        let read = instruction.reads.first().map(|it| it.tensor);
        let write = instruction.writes.first().map(|it| it.to.tensor);
        let is_delta = |tensor: Option<TensorId>| {
            tensor.is_some_and(|it| self.class.tensor(it).content == Content::WeightDelta)
        };
        match (&instruction.action, read, write) {
            (Action::Copy, Some(weights), Some(to)) if is_delta(write) => {
                let changes = self.changes_of(weights);
                self.held.insert(to, Delta::Before(changes)).is_none()
            }
            (Action::Difference, Some(weights), Some(to)) if is_delta(write) => {
                let changes = self.changes_of(weights);
                let before = self.held.insert(to, Delta::Change(vec![]));
                matches!(before, Some(Delta::Before(before)) if before + 1 == changes)
            }
            (&Action::Send { route }, Some(from), _) if is_delta(read) => {
                let Some(Delta::Change(sent)) = self.held.get_mut(&from) else { return false };
                let ranges = self.program.route(route).messages.iter().map(|it| it.source.range(0));
                let ranges: Vec<Range<usize>> = ranges.collect();
                let is_sent = |it: &Range<usize>| sent.iter().any(|of| !overlap(of, it).is_empty());
                let is_new = !ranges.iter().any(is_sent);
                sent.extend(ranges);
                is_new
            }
            (Action::Receive { .. }, _, Some(to)) if is_delta(write) => {
                self.held.insert(to, Delta::Arrived).is_none()
            }
            (Action::Add, Some(from), _) if is_delta(read) => {
                matches!(self.held.remove(&from), Some(Delta::Arrived))
            }
            (Action::Optimizer | Action::Receive { .. }, _, Some(weights)) => {
                if let Some(bucket) = self.class.tensor(weights).bucket {
                    *self.changes.entry(bucket).or_default() += 1;
                }
                !instruction.operands().any(|it| self.is_delta(it))
            }
            _ => !instruction.operands().any(|it| self.is_delta(it)),
        }
    }

    /// Whether what an instruction frees of such tensors has been sent whole, or added.
    fn frees(&mut self, step: &Step<'_>) -> bool {
        let mut are_done = true;
        for &tensor in &step.instruction.frees {
            match self.held.remove(&tensor) {
                None => {}
                Some(Delta::Change(sent)) => {
                    let elements = self.class.elements(tensor, 0);
                    are_done &= sent.iter().map(Range::len).sum::<usize>() == elements;
                    if let Some(bucket) = self.class.tensor(tensor).bucket {
                        *self.sent.entry(bucket).or_default() += 1;
                    }
                }
                Some(Delta::Before(_) | Delta::Arrived) => are_done = false,
            }
        }
        are_done
    }

    /// How often something has changed weights.
    fn changes_of(&self, weights: TensorId) -> u32 {
        let bucket = self.class.tensor(weights).bucket;
        bucket.and_then(|bucket| self.changes.get(&bucket).copied()).unwrap_or(0)
    }
}
