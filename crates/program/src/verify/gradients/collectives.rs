//! Sums of gradients among ranks, compressed or not.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Over, Reductions, Sum, place};
use crate::verify::row::Step;
use crate::verify::violation::Violation;
use crate::{Content, Group, Mode, TensorId, View};

impl Reductions<'_> {
    /// A collective reduces gradients.
    pub(super) fn reduce(&mut self, step: &Step<'_>, group: &Group, found: &mut Vec<Violation>) {
        let (read, write) = (step.instruction.reads[0], step.instruction.writes[0]);
        let twice = |tensor: TensorId| Violation::ReducedTwice {
            at: step.site(),
            tensor: step.tensor_name(tensor),
        };
        let over = over(group);
        let (from, to) = (place(read), self.kept(step, write.to, &over));
        let mut sum = match self.sums.get_mut(&from) {
            Some(sum) if sum.is_pending() => {
                let taken = sum.clone();
                if from != to {
                    *sum = Sum { is_used: true, ..Sum::default() };
                }
                taken
            }
            _ => return found.push(twice(read.tensor)),
        };
        if !sum.over.is_disjoint(&over) || !sum.sent_to_sum.is_empty() || !sum.summed.is_empty() {
            found.push(twice(read.tensor));
        }
        sum.over.extend(over);
        // What is gathered of several members may have a row of each.
        let tensor = step.class.tensor(write.to.tensor);
        if !tensor.local_shape().is_empty()
            && matches!(tensor.content, Content::Gradient | Content::Rows)
            && std::mem::replace(&mut sum.has_equal_rows, true)
        {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::EqualRows { at: step.site(), tensor });
        }
        let known = self.sums.get(&to).filter(|known| from != to && known.is_pending());
        match (known, write.mode) {
            (Some(_), Mode::Set) => {
                let tensor = step.tensor_name(write.to.tensor);
                found.push(Violation::Lost { at: step.site(), tensor });
            }
            (Some(known), _) => {
                if known.over != sum.over {
                    found.push(twice(write.to.tensor));
                }
                for (&param, parts) in &known.parts {
                    sum.parts.entry(param).or_default().extend(parts);
                }
            }
            (None, _) => {}
        }
        self.sums.insert(to, sum);
    }

    /// Where sums are from now on that a collective over these writes to `to`: of whole gradients that all sharers have
    /// summed up, each goes on with its share.
    fn kept(&self, step: &Step<'_>, to: View, over: &BTreeSet<Over>) -> (TensorId, bool) {
        let bucket = self.bucket(step, to).filter(|bucket| !bucket.shards.is_empty());
        let shared = bucket.filter(|it| it.shards.iter().all(|&at| over.contains(&Over::Axis(at))));
        let reduced = shared.and_then(|it| it.held.replicated.gradients).map(|it| it.reduced);
        place(reduced.filter(|it| it.tensor == to.tensor).unwrap_or(to))
    }

    /// Gradients are compressed to what is exchanged, or what was exchanged is to what is exchanged next.
    pub(super) fn compress(&mut self, step: &Step<'_>, round: u8, found: &mut Vec<Violation>) {
        let (read, write) = (step.instruction.reads[0], step.instruction.writes[0].to);
        if round > 0 {
            self.require_exchanged(step, read, found);
        }
        let Some(mut sum) = self.take_pending(step, read, found) else { return };
        let replicas = self.bucket(step, read).map_or(&[][..], |bucket| &bucket.replicas);
        sum.over.retain(|over| !replicas.iter().any(|&axis| *over == Over::Axis(axis)));
        self.sums.insert(place(write), sum);
    }

    /// Gradients become the sum of what was exchanged.
    pub(super) fn decompress(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let (read, write) = (step.instruction.reads[0], step.instruction.writes[0].to);
        self.require_exchanged(step, read, found);
        if let Some(sum) = self.take_pending(step, read, found) {
            self.sums.insert(place(write), sum);
        }
    }

    /// What becomes of a sum that nobody has used yet.
    fn take_pending(
        &mut self,
        step: &Step<'_>,
        read: View,
        found: &mut Vec<Violation>,
    ) -> Option<Sum> {
        let sum = self.sums.get_mut(&place(read)).filter(|sum| sum.is_pending());
        if sum.is_none() {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::ReducedTwice { at: step.site(), tensor });
        }
        sum.map(|sum| std::mem::replace(sum, Sum { is_used: true, ..Sum::default() }))
    }

    /// Something needs what all replicas have exchanged.
    fn require_exchanged(&self, step: &Step<'_>, read: View, found: &mut Vec<Violation>) {
        let Some(bucket) = self.bucket(step, read) else { return };
        let sum = self.sums.get(&place(read));
        let is_over = |axis| sum.is_some_and(|sum| sum.over.contains(&Over::Axis(axis)));
        if !bucket.replicas.iter().all(|&axis| is_over(axis)) {
            let tensor = step.tensor_name(read.tensor);
            found.push(Violation::Unreduced { at: step.site(), tensor });
        }
    }

    /// A collective sums a range of gradients over the classes that hold them.
    pub(super) fn reduce_range(
        &mut self,
        step: &Step<'_>,
        group: &Group,
        range: Range<usize>,
        found: &mut Vec<Violation>,
    ) {
        let read = step.instruction.reads[0];
        let tensor = step.tensor_name(read.tensor);
        let classes = self.bucket(step, read).map(|bucket| &bucket.classes);
        let is_over_all = matches!(group, Group::Classes(all) if Some(all) == classes);
        if !is_over_all || step.instruction.writes[0].to != read {
            found.push(Violation::Unreduced { at: step.site(), tensor: tensor.clone() });
        }
        let sum = self.sums.entry(place(read)).or_default();
        if !sum.is_pending() || sum.is_begun(&range) {
            found.push(Violation::ReducedTwice { at: step.site(), tensor });
        }
        sum.sum(range, step.class.elements(read.tensor, 0));
    }

    /// A collective sums statistics up.
    pub(super) fn sum_up(&mut self, step: &Step<'_>, group: &Group, found: &mut Vec<Violation>) {
        let tensor = step.instruction.reads[0].tensor;
        let known = self.statistics.entry(tensor).or_default();
        let over = over(group);
        if !known.is_disjoint(&over) {
            let tensor = step.tensor_name(tensor);
            found.push(Violation::ReducedTwice { at: step.site(), tensor });
        }
        known.extend(over);
    }
}

/// What a collective is over.
fn over(group: &Group) -> BTreeSet<Over> {
    match group {
        Group::Mesh(axes) => axes.iter().map(|&axis| Over::Axis(axis)).collect(),
        Group::Classes(_) => [Over::Classes].into(),
        Group::World => [Over::World].into(),
    }
}
