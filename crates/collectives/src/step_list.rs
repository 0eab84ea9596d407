use std::ops::Range;

use crate::Member;

/// What the receiver does with what arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Replace the target range.
    Overwrite,
    /// Reduce into the target range: `target = target (op) arriving`.
    Reduce,
}

/// One range of one member's buffer going to one member.
///
/// `from` may equal `to`: that is a local contribution, listed to fix the order
/// of a reduction, and counts as no traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Whose buffer is read.
    pub from: Member,
    /// Whose buffer is written.
    pub to: Member,
    /// Elements read; never empty.
    pub source: Range<usize>,
    /// Where in the receiver's buffer the first of them goes.
    pub target: usize,
    /// How they are joined with what is there.
    pub combine: Combine,
}

/// A collective, spelled out.
///
/// All transfers of a step read the state from before the step; those that write
/// the same member are applied in the order listed. So a member may run step by
/// step on its own: post all its sends of a step (from a copy, where a receive of
/// the same step overlaps them), then apply its receives in order. Ranges that
/// would be empty are not listed, hence a step may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepList {
    /// Size of the group.
    pub members: u32,
    /// Length of every member's buffer.
    pub elements: usize,
    /// Steps in order.
    pub steps: Vec<Vec<Transfer>>,
}

impl StepList {
    /// Elements this member sends to others over the whole list.
    pub fn sent_elements(&self, member: Member) -> usize {
        self.traffic(|transfer| transfer.from == member)
    }

    /// Elements this member receives from others over the whole list.
    pub fn received_elements(&self, member: Member) -> usize {
        self.traffic(|transfer| transfer.to == member)
    }

    fn traffic(&self, counts: impl Fn(&Transfer) -> bool) -> usize {
        self.steps
            .iter()
            .flatten()
            .filter(|transfer| transfer.from != transfer.to && counts(transfer))
            .map(|transfer| transfer.source.len())
            .sum()
    }
}

/// Transfers of one step under construction.
#[derive(Default)]
pub(crate) struct Step(Vec<Transfer>);

impl Step {
    /// Its transfers.
    pub(crate) fn into_transfers(self) -> Vec<Transfer> {
        self.0
    }

    /// Sends `range` to the same place of the receiver's buffer; nothing if empty.
    pub(crate) fn send(&mut self, from: u32, to: u32, range: Range<usize>, combine: Combine) {
        let target = range.start;
        self.send_to(from, to, range, target, combine);
    }

    /// Sends `source` to `target` of the receiver's buffer; nothing if empty.
    pub(crate) fn send_to(
        &mut self,
        from: u32,
        to: u32,
        source: Range<usize>,
        target: usize,
        combine: Combine,
    ) {
        if !source.is_empty() {
            self.0.push(Transfer { from: Member(from), to: Member(to), source, target, combine });
        }
    }
}

/// Puts the steps of one phase into the list, from step `first` on, beside what is
/// already there: phases of disjoint groups, or of disjoint ranges, run at once.
pub(crate) fn overlay(
    steps: &mut Vec<Vec<Transfer>>,
    first: usize,
    phase: impl IntoIterator<Item = Step>,
) {
    for (offset, step) in phase.into_iter().enumerate() {
        let index = first + offset;
        if steps.len() <= index {
            steps.resize_with(index + 1, Vec::new);
        }
        steps[index].extend(step.0);
    }
}
