use super::{
    channel::{Channels, Looked},
    rendezvous::Participant,
    stock::Stock,
};
use crate::{Call, FabricError, contents::Storage, view::Element};

/// How one member exchanges the messages of one collective.
pub(super) struct Messaging<'a> {
    pub(super) participant: &'a Participant,
    pub(super) channels: &'a Channels<Storage>,
    /// What received messages were in, on its way back to who sent them.
    pub(super) empties: &'a Channels<Storage>,
    pub(super) call: Call,
}

/// Messages of a group need no tags: both ends take them in the same order.
const UNTAGGED: u64 = 0;

impl Messaging<'_> {
    /// Has so much, at least, to send messages to one member in, all of which are back; `stocked` says how
    /// much there was. Who calls the same collectives again and again allocates nothing, whoever is ahead of
    /// whom.
    pub(super) fn stock(&self, to: usize, needed: Stock, stocked: &mut [Stock]) {
        let enough = stocked[to].or(needed);
        if enough == stocked[to] {
            return;
        }
        stocked[to] = enough;
        let own = self.participant.position();
        let empties = self.empties.between(to, own);
        let mut messages: Vec<Storage> = std::iter::from_fn(|| empties.take_newest()).collect();
        messages.resize_with(enough.messages, Storage::default);
        empties.make_room(enough.messages);
        self.channels.between(own, to).make_room(enough.messages);
        for mut message in messages {
            message.reserve(enough.bytes);
            empties.put(UNTAGGED, message);
        }
    }

    /// Sends a copy of `values`, in a buffer that the receiver gave back.
    pub(super) fn send<T: Element>(&self, to: usize, values: &[T]) {
        let own = self.participant.position();
        let empty = self.empties.between(to, own).take_newest();
        let mut message = empty.expect("there are as many as can be under way");
        message.set(values);
        self.channels.between(own, to).put(UNTAGGED, message);
        if to != own {
            self.participant.roster().bell(self.participant.members()[to]).ring();
        }
    }

    /// Gives back what a message was in.
    pub(super) fn give_back(&self, from: usize, message: Storage) {
        self.empties.between(self.participant.position(), from).put(UNTAGGED, message);
    }

    /// The next message of a member.
    pub(super) fn receive(&self, from: usize) -> Result<Storage, FabricError> {
        let participant = self.participant;
        let roster = participant.roster();
        let peer = participant.members()[from];
        let channel = self.channels.between(from, participant.position());
        let mut looked = Looked::default();
        let arrived = roster.bell(participant.rank()).wait(Some(roster.timeout()), || {
            // Asked before the channel: what a rank sent before it left is in there. Nor does a rank that
            // has left itself go on.
            let mut needed = [peer, participant.rank()].into_iter();
            let gone = needed.find_map(|rank| Some((rank, roster.gone(rank)?)));
            if let Some(message) = channel.take(UNTAGGED, &mut looked) {
                return Some(Ok(message));
            }
            let gone = gone.map(|(rank, reason)| participant.peer_gone(self.call, rank, reason));
            gone.map(|gone| participant.break_off(gone)).or_else(|| participant.broken()).map(Err)
        });
        arrived.unwrap_or_else(|| {
            Err(participant.break_off(participant.timeout(self.call, vec![peer])))
        })
    }

    /// Breaks the group, as members count differently.
    pub(super) fn counts_differ(&self, reason: String) -> FabricError {
        let (members, rank) = (self.participant.members().to_vec(), self.participant.rank());
        self.participant.break_off(FabricError::Counts { members, rank, reason })
    }
}
