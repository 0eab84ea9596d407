use std::ops::Range;

use crate::{Combine, Member, StepList, step_list::Step};

/// How many elements each member of a group sends to each, itself included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    members: usize,
    elements: Vec<usize>,
}

impl Counts {
    /// The counts of `members` members, by sender and receiver.
    pub fn new(members: u32, elements: impl Fn(Member, Member) -> usize) -> Counts {
        let all = |from| (0..members).map(move |to| (Member(from), Member(to)));
        let elements = (0..members).flat_map(all).map(|(from, to)| elements(from, to)).collect();
        Counts { members: members as usize, elements }
    }

    /// Size of the group.
    pub fn members(&self) -> u32 {
        self.members as u32
    }

    /// Elements that `from` sends to `to`.
    pub fn between(&self, from: Member, to: Member) -> usize {
        self.elements[from.index() * self.members + to.index()]
    }

    /// What each member gets from `from`, in order.
    pub fn sends(&self, from: Member) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.members()).map(move |to| self.between(from, Member(to)))
    }

    /// What each member gives to `to`, in order.
    pub fn receives(&self, to: Member) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.members()).map(move |from| self.between(Member(from), to))
    }

    /// Where in what a member sends the part for `to` lies.
    fn sent_at(&self, from: Member, to: Member) -> Range<usize> {
        let first = self.sends(from).take(to.index()).sum();
        first..first + self.between(from, to)
    }
}

/// The step list of an all-to-all whose parts have as many elements as `counts` says: everyone talks to
/// everyone at once.
///
/// A member's buffer begins with what it sends, in the order of receivers, and after that has room for what
/// it receives, in the order of senders. All buffers are as long as the longest needs to be.
pub fn all_to_all_v(counts: &Counts) -> StepList {
    let members = || (0..counts.members()).map(Member);
    let sent = |member| counts.sends(member).sum::<usize>();
    let elements = members().map(|it| sent(it) + counts.receives(it).sum::<usize>()).max();
    let mut step = Step::default();
    for to in members() {
        let mut target = sent(to);
        for from in members() {
            let source = counts.sent_at(from, to);
            let next = target + source.len();
            step.send_to(from.0, to.0, source, target, Combine::Overwrite);
            target = next;
        }
    }
    StepList {
        members: counts.members(),
        elements: elements.unwrap_or(0),
        steps: vec![step.into_transfers()],
    }
}
