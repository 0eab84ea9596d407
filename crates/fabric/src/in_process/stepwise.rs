use std::ops::Range;

use shardloom_collectives::{Combine, Member, Reduction, StepList};

use super::{
    channel::{Channel, Channels, Looked},
    reduce::reduce_into,
    rendezvous::Participant,
    stock::{Stock, stock},
};
use crate::{Call, FabricError};

/// One member's part of a step list.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Turn>,
    /// What the messages to each member are sent in.
    needed: Vec<(usize, Stock)>,
    /// Elements this member sends to others.
    pub(super) sent_elements: usize,
}

#[derive(Debug, Default)]
struct Turn {
    sends: Vec<Send>,
    receives: Vec<Receive>,
}

#[derive(Debug)]
struct Send {
    to: usize,
    source: Range<usize>,
}

#[derive(Debug)]
struct Receive {
    from: usize,
    target: Range<usize>,
    combine: Combine,
}

impl Script {
    /// The part of `position`, without what messages are sent in: for members that send none.
    pub(super) fn new(list: &StepList, position: usize) -> Self {
        let own = Member(position as u32);
        let steps = list.steps.iter().map(|step| {
            let mut turn = Turn::default();
            for transfer in step {
                if transfer.from == own {
                    let to = transfer.to.0 as usize;
                    turn.sends.push(Send { to, source: transfer.source.clone() });
                }
                if transfer.to == own {
                    let target = transfer.target..transfer.target + transfer.source.len();
                    let from = transfer.from.0 as usize;
                    turn.receives.push(Receive { from, target, combine: transfer.combine });
                }
            }
            turn
        });
        Self { steps: steps.collect(), needed: vec![], sent_elements: list.sent_elements(own) }
    }

    /// The part of `position`, to be [followed](Script::follow).
    pub(super) fn for_messages(list: &StepList, position: usize) -> Self {
        let needed = stock(list, Member(position as u32)).into_iter().collect();
        Self { needed, ..Self::new(list, position) }
    }

    /// Carries the script out over messages, once all members are through with what they did before.
    /// `stocked` says what there is to send messages in, by receiver.
    ///
    /// All sends of a step are copied out before any of its receives is applied, local
    /// contributions included: they are messages to oneself. So every transfer reads
    /// the state from before the step, and receives are combined in the list's order.
    pub(super) fn follow(
        &self,
        members: &Messaging<'_>,
        stocked: &mut [Stock],
        buffer: &mut [f32],
    ) -> Result<(), FabricError> {
        for &(to, needed) in &self.needed {
            let enough = stocked[to].or(needed);
            if enough != stocked[to] {
                members.stock(to, enough);
                stocked[to] = enough;
            }
        }
        for turn in &self.steps {
            for send in &turn.sends {
                members.send(send.to, &buffer[send.source.clone()]);
            }
            for receive in &turn.receives {
                let message = members.receive(receive.from)?;
                let target = &mut buffer[receive.target.clone()];
                match receive.combine {
                    Combine::Overwrite => target.copy_from_slice(&message),
                    Combine::Reduce => reduce_into(target, &message, members.reduction),
                }
                members.give_back(receive.from, message);
            }
        }
        Ok(())
    }
}

/// How one member exchanges the messages of one collective.
pub(super) struct Messaging<'a> {
    pub(super) participant: &'a Participant,
    pub(super) channels: &'a Channels<Vec<f32>>,
    /// What received messages were in, on its way back to who sent them.
    pub(super) empties: &'a Channels<Vec<f32>>,
    pub(super) call: Call,
    pub(super) reduction: Reduction,
}

/// Messages of a group need no tags: both ends take them in the list's order.
const UNTAGGED: u64 = 0;

impl Messaging<'_> {
    /// Has so much to send messages to one member in, all of which are back. Who calls the same
    /// collectives again and again allocates nothing, whoever is ahead of whom.
    fn stock(&self, to: usize, enough: Stock) {
        let own = self.participant.position();
        let empties = self.empties.between(to, own);
        let mut messages: Vec<Vec<f32>> = std::iter::from_fn(|| empties.take_newest()).collect();
        messages.resize_with(enough.messages, Vec::new);
        empties.make_room(enough.messages);
        self.channels.between(own, to).make_room(enough.messages);
        for mut message in messages {
            message.clear();
            message.reserve_exact(enough.elements);
            put(empties, message);
        }
    }

    /// Sends a copy of `values`, in a buffer that the receiver gave back.
    fn send(&self, to: usize, values: &[f32]) {
        let own = self.participant.position();
        let empty = self.empties.between(to, own).take_newest();
        let mut message = empty.expect("there are as many as can be under way");
        message.clear();
        message.extend_from_slice(values);
        put(self.channels.between(own, to), message);
        if to != own {
            self.participant.roster().bell(self.participant.members()[to]).ring();
        }
    }

    fn give_back(&self, from: usize, message: Vec<f32>) {
        put(self.empties.between(self.participant.position(), from), message);
    }

    fn receive(&self, from: usize) -> Result<Vec<f32>, FabricError> {
        let participant = self.participant;
        let roster = participant.roster();
        let peer = participant.members()[from];
        let channel = self.channels.between(from, participant.position());
        let mut looked = Looked::default();
        let arrived = roster.bell(participant.rank()).wait(Some(roster.settings().timeout), || {
            // Asked before the channel: what a rank sent before it left is in there.
            let gone = roster.gone(peer);
            if let Some(message) = channel.take(UNTAGGED, &mut looked).message {
                return Some(Ok(message));
            }
            let gone = gone.map(|reason| participant.peer_gone(self.call, peer, reason));
            gone.map(|gone| participant.break_off(gone)).or_else(|| participant.broken()).map(Err)
        });
        arrived.unwrap_or_else(|| {
            Err(participant.break_off(participant.timeout(self.call, vec![peer])))
        })
    }
}

fn put(channel: &Channel<Vec<f32>>, message: Vec<f32>) {
    let put = channel.offer(UNTAGGED, message);
    assert!(put.is_ok(), "the channels of a group have no bound");
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

    use shardloom_collectives::{Algorithm, Kind, plan};

    use super::*;
    use crate::{
        Settings,
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
        element_bits: 32,
    };

    /// Rank 0 follows a ring over two ranks, while rank 1 does only what `instead` says.
    /// The error of rank 0, and that of rank 1's next meeting.
    fn deserted(timeout: Duration, instead: impl Fn(&Roster) + Sync) -> (FabricError, FabricError) {
        let roster = Arc::new(Roster::new(2, Settings { timeout, ..Settings::default() }));
        let mut both = rendezvous(&roster, &[0, 1]);
        let messaging = Messaging {
            participant: &both[0],
            channels: &Channels::unbounded(2),
            empties: &Channels::unbounded(2),
            call: CALL,
            reduction: Reduction::Sum,
        };
        let ring = plan(Kind::AllReduce, Algorithm::Ring, 2, 4).unwrap();
        let script = Script::for_messages(&ring, 0);
        let error = thread::scope(|scope| {
            scope.spawn(|| instead(&roster));
            script.follow(&messaging, &mut [Stock::default(); 2], &mut [1.0; 4]).unwrap_err()
        });
        let later = both[1].meet(Published { call: CALL, buffer: std::ptr::null_mut() });
        (error, later.unwrap_err())
    }

    #[test]
    fn a_peer_that_leaves_in_the_middle_breaks_the_group_by_name() {
        let leave = |roster: &Roster| roster.leave(1, "out of memory".to_owned());
        let (error, later) = deserted(Duration::from_secs(120), leave);
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
        let roster = Arc::new(Roster::new(1, Settings::default()));
        let participant = &rendezvous(&roster, &[0])[0];
        let [channels, empties] = &[(), ()].map(|()| Channels::unbounded(1));
        let (call, reduction) = (CALL, Reduction::Sum);
        let messaging = Messaging { participant, channels, empties, call, reduction };
        let steps = vec![Turn {
            sends: (0..9).map(|_| Send { to: 0, source: 0..4 }).collect(),
            receives: (0..9)
                .map(|_| Receive { from: 0, target: 0..4, combine: Combine::Overwrite })
                .collect(),
        }];
        let stock = Stock { messages: 9, elements: 4 };
        let script = Script { steps, needed: vec![(0, stock)], sent_elements: 0 };
        let stocked = &mut [Stock::default()];
        let addresses = || {
            let channel = empties.between(0, 0);
            let all: Vec<Vec<f32>> = std::iter::from_fn(|| channel.take_newest()).collect();
            let addresses: BTreeSet<usize> = all.iter().map(|it| it.as_ptr().addr()).collect();
            all.into_iter().for_each(|it| messaging.give_back(0, it));
            addresses
        };
        script.follow(&messaging, stocked, &mut [1.0; 4]).unwrap();
        let first = addresses();
        assert_eq!(first.len(), 9);
        script.follow(&messaging, stocked, &mut [1.0; 4]).unwrap();
        assert_eq!(addresses(), first);
    }
}
