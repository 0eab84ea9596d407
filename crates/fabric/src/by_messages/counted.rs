//! All-to-all with counts of each member's own.

use super::{Exchange, Stock};
use crate::{FabricError, view::Element};

/// What one member counts: elements that go to each member and come from each.
#[derive(Clone, Copy)]
pub(crate) struct Counts<'a> {
    pub(crate) sent: &'a [usize],
    pub(crate) received: &'a [usize],
}

impl Counts<'_> {
    /// Why these counts do not fit a buffer of `elements`.
    fn misfit(self, members: usize, elements: usize) -> Option<String> {
        let Self { sent, received } = self;
        if sent.len() != members || received.len() != members {
            let (sent, received) = (sent.len(), received.len());
            return Some(format!("{sent} and {received} counts for {members} members"));
        }
        let sums = [sent, received].map(|counts| counts.iter().sum::<usize>());
        let [sent, received] = sums;
        (sent.max(received) > elements)
            .then(|| format!("{sent} elements to send and {received} to receive in {elements}"))
    }

    /// Elements that go to other members.
    pub(crate) fn sent_to_others(self, own: usize) -> usize {
        let others = self.sent.iter().enumerate().filter(|&(member, _)| member != own);
        others.map(|(_, count)| count).sum()
    }

    /// Sends and receives all parts, once all members are through with what they did before.
    pub(crate) fn exchange<T: Element>(
        self,
        members: &impl Exchange,
        stocked: &mut [Stock],
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let count = members.members().len();
        if let Some(reason) = self.misfit(count, buffer.len()) {
            return Err(members.counts_differ(reason));
        }
        let mut rest = &*buffer;
        for (to, &elements) in self.sent.iter().enumerate() {
            let (part, behind) = rest.split_at(elements);
            rest = behind;
            let needed = Stock { messages: 1, bytes: size_of_val(part) };
            members.stock(to, needed, stocked);
            members.send(to, part);
        }
        let mut rest = buffer;
        for (from, &elements) in self.received.iter().enumerate() {
            let (part, behind) = rest.split_at_mut(elements);
            rest = behind;
            let message = members.receive(from)?;
            let arrived = message.elements::<T>();
            if arrived.len() != elements {
                let peer = members.members()[from];
                let arrived = arrived.len();
                return Err(members.counts_differ(format!(
                    "rank {peer} sends {arrived} elements where {elements} are expected"
                )));
            }
            part.copy_from_slice(arrived);
            members.give_back(from, message);
        }
        Ok(())
    }
}
