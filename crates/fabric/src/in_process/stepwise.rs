use std::ops::Range;

use shardloom_collectives::{Combine, Member, Reduction, StepList};

use super::{
    messaging::Messaging,
    stock::{Stock, stock},
};
use crate::{FabricError, Format, Reduce, view::Element};

/// One member's part of a step list.
#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<OwnStep>,
    /// What the messages to each member are sent in.
    needed: Vec<(usize, Stock)>,
    /// Elements this member sends to others.
    pub(super) sent_elements: usize,
}

/// What a member does in one step.
#[derive(Debug, Default)]
struct OwnStep {
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
            let mut own_step = OwnStep::default();
            for transfer in step {
                if transfer.from == own {
                    let to = transfer.to.0 as usize;
                    own_step.sends.push(Send { to, source: transfer.source.clone() });
                }
                if transfer.to == own {
                    let target = transfer.target..transfer.target + transfer.source.len();
                    let from = transfer.from.0 as usize;
                    own_step.receives.push(Receive { from, target, combine: transfer.combine });
                }
            }
            own_step
        });
        Self { steps: steps.collect(), needed: vec![], sent_elements: list.sent_elements(own) }
    }

    /// The part of `position`, to be [followed](Script::follow).
    pub(super) fn for_messages(list: &StepList, position: usize, element_bytes: usize) -> Self {
        let needed = stock(list, Member(position as u32), element_bytes).into_iter().collect();
        Self { needed, ..Self::new(list, position) }
    }

    /// Carries the script out over messages, once all members are through with what they did before.
    /// `stocked` says what there is to send messages in, by receiver.
    ///
    /// All sends of a step are copied out before any of its receives is applied, local
    /// contributions included: they are messages to oneself. So every transfer reads
    /// the state from before the step, and receives are combined in the list's order.
    pub(super) fn follow<T: Element>(
        &self,
        members: &Messaging<'_>,
        stocked: &mut [Stock],
        (arithmetic, reduction): (&dyn Reduce, Reduction),
        (format, buffer): (Format, &mut [T]),
    ) -> Result<(), FabricError> {
        for &(to, needed) in &self.needed {
            members.stock(to, needed, stocked);
        }
        for own_step in &self.steps {
            for send in &own_step.sends {
                members.send(send.to, &buffer[send.source.clone()]);
            }
            for receive in &own_step.receives {
                let message = members.receive(receive.from)?;
                let target = &mut buffer[receive.target.clone()];
                let part = message.elements();
                match receive.combine {
                    Combine::Overwrite => target.copy_from_slice(part),
                    Combine::Reduce => {
                        let (into, part) = (T::view_mut(format, target), T::view(format, part));
                        arithmetic.reduce(reduction, into, part);
                    }
                }
                members.give_back(receive.from, message);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

    use shardloom_collectives::{Algorithm, Kind, plan};

    use super::*;
    use crate::{
        Call, View, ViewMut,
        contents::Storage,
        in_process::{
            channel::Channels,
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
        let steps = vec![OwnStep {
            sends: (0..9).map(|_| Send { to: 0, source: 0..4 }).collect(),
            receives: (0..9)
                .map(|_| Receive { from: 0, target: 0..4, combine: Combine::Overwrite })
                .collect(),
        }];
        let stock = Stock { messages: 9, bytes: 16 };
        let script = Script { steps, needed: vec![(0, stock)], sent_elements: 0 };
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
