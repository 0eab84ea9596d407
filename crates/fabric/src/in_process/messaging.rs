use super::rendezvous::Participant;
use crate::{
    Call, FabricError,
    by_messages::{Exchange, Stock},
    channel::{Channels, Looked},
    contents::Storage,
    view::Element,
};

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

impl Exchange for Messaging<'_> {
    fn members(&self) -> &[u32] {
        self.participant.members()
    }

    /// All of it is back. Who calls the same collectives again and again allocates nothing, whoever is ahead
    /// of whom.
    fn stock(&self, to: usize, needed: Stock, stocked: &mut [Stock]) {
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

    /// In a buffer that the receiver gave back.
    fn send<T: Element>(&self, to: usize, values: &[T]) {
        let own = self.participant.position();
        let empty = self.empties.between(to, own).take_newest();
        let mut message = empty.expect("there are as many as can be under way");
        message.set(values);
        self.channels.between(own, to).put(UNTAGGED, message);
        if to != own {
            self.participant.roster().wakeup(self.participant.members()[to]).wake();
        }
    }

    fn give_back(&self, from: usize, message: Storage) {
        self.empties.between(self.participant.position(), from).put(UNTAGGED, message);
    }

    fn receive(&self, from: usize) -> Result<Storage, FabricError> {
        let participant = self.participant;
        let roster = participant.roster();
        let peer = participant.members()[from];
        let channel = self.channels.between(from, participant.position());
        let mut looked = Looked::default();
        let arrived = roster.wakeup(participant.rank()).wait(Some(roster.timeout()), || {
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

    fn counts_differ(&self, reason: String) -> FabricError {
        let (members, rank) = (self.participant.members().to_vec(), self.participant.rank());
        self.participant.break_off(FabricError::Counts { members, rank, reason })
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

    use shardloom_collectives::{
        Algorithm, Combine, Kind, Member, Reduction, StepList, Transfer, plan,
    };

    use super::*;
    use crate::{
        Format, Reduce, View, ViewMut,
        by_messages::Script,
        in_process::{
            rendezvous::{Published, rendezvous},
            roster::Roster,
        },
    };

    const CALL: Call = Call::Exchange {
        kind: Kind::AllReduce,
        algorithm: Algorithm::Ring,
        reduction: Reduction::Sum,
        elements: 4,
        format: Format::F32,
    };
    const PATIENCE: Duration = Duration::from_secs(120);

    struct Nothing;

    impl Reduce for Nothing {
        fn reduce(&self, _: Reduction, _: ViewMut<'_>, _: View<'_>) {}
    }

    const REDUCTION: (&dyn Reduce, Reduction) = (&Nothing, Reduction::Sum);

    /// Rank 0 follows a ring over two ranks, while rank 1 does only what `instead` says.
    /// The error of rank 0, and that of rank 1's next meeting.
    fn deserted(timeout: Duration, instead: impl Fn(&Roster) + Sync) -> (FabricError, FabricError) {
        let roster = Arc::new(Roster::new(2, timeout));
        let mut both = rendezvous(&roster, &[0, 1]);
        let messaging = Messaging {
            participant: &both[0],
            channels: &Channels::new(2),
            empties: &Channels::new(2),
            call: CALL,
        };
        let ring = plan(Kind::AllReduce, Algorithm::Ring, 2, 4).unwrap();
        let script = Script::for_messages(&ring, 0, 4);
        let error = thread::scope(|scope| {
            scope.spawn(|| instead(&roster));
            let (stocked, mut buffer) = (&mut [Stock::default(); 2], [1.0_f32; 4]);
            let buffer = (Format::F32, &mut buffer[..]);
            script.follow(&messaging, stocked, REDUCTION, buffer).unwrap_err()
        });
        let later = both[1].meet(Published { call: CALL, buffer: std::ptr::null_mut() });
        (error, later.unwrap_err())
    }

    #[test]
    fn a_peer_that_leaves_in_the_middle_breaks_the_group_by_name() {
        let leave = |roster: &Roster| roster.leave(1, "out of memory".to_owned());
        let (error, later) = deserted(PATIENCE, leave);
        assert_eq!(
            error.to_string(),
            "all-reduce of 4 f32 (ring, sum) in group [0, 1] on rank 0 cannot finish: rank 1 is \
             gone (out of memory)"
        );
        assert_eq!(later, error);
    }

    #[test]
    fn a_peer_that_stays_silent_in_the_middle_breaks_the_group_by_timeout() {
        let (error, later) = deserted(Duration::from_millis(5), |_| ());
        assert_eq!(
            error.to_string(),
            "all-reduce of 4 f32 (ring, sum) in group [0, 1] timed out on rank 0 after 5ms, \
             still waiting for rank 1"
        );
        assert_eq!(later, error);
    }

    #[test]
    fn what_messages_were_in_is_used_again() {
        let roster = Arc::new(Roster::new(1, PATIENCE));
        let participant = &rendezvous(&roster, &[0])[0];
        let [channels, empties] = &[(), ()].map(|()| Channels::new(1));
        let messaging = Messaging { participant, channels, empties, call: CALL };
        let to_itself = Transfer {
            from: Member(0),
            to: Member(0),
            source: 0..4,
            target: 0,
            combine: Combine::Overwrite,
        };
        let list = StepList { members: 1, elements: 4, steps: vec![vec![to_itself; 9]] };
        let script = Script::for_messages(&list, 0, 4);
        let stocked = &mut [Stock::default()];
        let mut follow = || {
            let mut buffer = [1.0_f32; 4];
            script.follow(&messaging, stocked, REDUCTION, (Format::F32, &mut buffer)).unwrap();
        };
        let addresses = || {
            let channel = empties.between(0, 0);
            let all: Vec<Storage> = std::iter::from_fn(|| channel.take_newest()).collect();
            let address = |it: &Storage| it.elements::<f32>().as_ptr().addr();
            let addresses: BTreeSet<usize> = all.iter().map(address).collect();
            all.into_iter().for_each(|it| messaging.give_back(0, it));
            addresses
        };
        follow();
        let first = addresses();
        assert_eq!(first.len(), 9);
        follow();
        assert_eq!(addresses(), first);
    }
}
