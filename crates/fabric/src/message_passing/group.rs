//! Collectives of one member, by messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    connection::{Connection, GroupState, lock},
    frame::{Frame, MemberId, What},
    router::Router,
};
use crate::{
    Call, Collective, Contents, FabricError, Format, Operation, Returns,
    by_messages::{Counts, Exchange, Script, Scripts, Stock},
    contents::Storage,
    counters::LiveCounters,
    in_line::Communicator,
    operation::disagreement,
    view::Element,
};

/// How long a member that gives up waits to hear why the group is broken.
const GRACE: Duration = Duration::from_secs(5);

/// What carries out the collectives of one member of a group: all follow their step lists.
///
/// Members first tell each other what they call, so that no part of a collective is sent before all have
/// called the same. A member is thus never more than one collective ahead of another.
pub(super) struct Member {
    pub router: Arc<Router>,
    pub connection: Arc<Connection>,
    pub members: Box<[u32]>,
    pub position: usize,
    pub at: MemberId,
    pub state: Arc<Mutex<GroupState>>,
    pub counters: Arc<LiveCounters>,
    pub scripts: Scripts,
    pub parts: Arc<Parts>,
}

/// What parts of collectives, or of what is published, are sent in, while nobody uses it.
#[derive(Debug, Default)]
pub(super) struct Parts(Mutex<Vec<Contents>>);

impl Parts {
    /// What nobody uses, or something new.
    pub fn unused(&self) -> Storage {
        lock(&self.0).pop().unwrap_or_default().into_storage()
    }
}

impl Returns for Parts {
    fn take_back(&self, contents: Contents) {
        lock(&self.0).push(contents);
    }
}

impl Member {
    fn tell(&self, position: usize, what: What, carried: Option<(Contents, Arc<dyn Returns>)>) {
        let process = self.connection.process_of(self.members[position]);
        let frame = Frame { connection: self.connection.number, what };
        match carried {
            None => self.router.tell(process, &frame),
            Some(carried) => self.router.send(process, &frame, carried),
        }
    }

    /// The same group on another member.
    fn at(&self, position: usize) -> MemberId {
        MemberId { rank: self.members[position], ..self.at }
    }

    /// Tells all members what is called, and waits until they all have called the same.
    fn agree(&mut self, call: Call) -> Result<(), FabricError> {
        self.router.progress();
        if let Some(error) = &lock(&self.state).broken {
            return Err(error.clone());
        }
        let own = self.members[self.position];
        for position in (0..self.members.len()).filter(|&position| position != self.position) {
            let at = self.at(position);
            self.tell(position, What::Called { from: own, at, call }, None);
        }
        let absent = |state: &GroupState| -> Vec<u32> {
            let others = self.members.iter().copied().filter(|&rank| rank != own);
            others.filter(|rank| state.called.get(rank).is_none_or(|it| it.is_empty())).collect()
        };
        let agreed = self.router.wait((&self.connection, own), self.connection.timeout, || {
            // Asked first: what a rank called before it left is then there.
            let gone = self.members.iter().copied().find_map(|rank| self.gone(call, rank));
            let gone_itself = self.gone(call, own);
            let mut state = lock(&self.state);
            let absent = absent(&state);
            if absent.is_empty() {
                return Some(Ok(self.called(&mut state, call)));
            }
            if let Some(error) = &state.broken {
                return Some(Err((error.clone(), true)));
            }
            let gone =
                gone.filter(|_| absent.iter().any(|&rank| self.connection.gone(rank).is_some()));
            gone.and_then(|_| absent.iter().find_map(|&rank| self.gone(call, rank)))
                .or(gone_itself)
                .map(|error| Err((error, false)))
        });
        match agreed {
            Some(Ok(calls)) => match disagreement(&self.members, calls) {
                // All have heard the same calls, and come to the same.
                Some(mismatch) => Err(lock(&self.state).break_off(mismatch)),
                None => Ok(()),
            },
            Some(Err((error, true))) => Err(error),
            Some(Err((error, false))) => Err(self.break_off(error)),
            None => {
                let waiting_for = absent(&lock(&self.state));
                Err(self.break_off(self.timeout(call, waiting_for)))
            }
        }
    }

    /// What all members called, by position; it is forgotten.
    fn called(&self, state: &mut GroupState, own: Call) -> Vec<Call> {
        let of_rank = |&rank: &u32| match state.called.get_mut(&rank) {
            Some(calls) if rank != self.members[self.position] => calls.pop_front(),
            _ => Some(own),
        };
        self.members.iter().filter_map(of_rank).collect()
    }

    /// Breaks the group with this error, or the one that another member had first.
    fn break_off(&self, error: FabricError) -> FabricError {
        let Self { router, connection, at, members, .. } = self;
        let mut asked = None;
        let heard = router.wait((connection, at.rank), GRACE, || {
            // Whoever was asked may be gone since, and another decides.
            let decides = router.decides(connection, *at, members);
            if asked != Some(decides) {
                asked = Some(decides);
                return router.settle(connection, *at, members, error.clone());
            }
            lock(&self.state).broken.clone()
        });
        // Where nobody answers, the member's own error is all it knows.
        heard.unwrap_or_else(|| lock(&self.state).break_off(error))
    }

    fn gone(&self, call: Call, peer: u32) -> Option<FabricError> {
        let reason = self.connection.gone(peer)?.to_owned();
        let (rank, operation) = (self.at.rank, self.operation(call));
        Some(FabricError::PeerGone { rank, operation, peer, reason })
    }

    fn timeout(&self, call: Call, waiting_for: Vec<u32>) -> FabricError {
        let (rank, operation) = (self.at.rank, self.operation(call));
        FabricError::Timeout { rank, operation, waiting_for, after: self.connection.timeout }
    }

    fn operation(&self, call: Call) -> Operation {
        Operation::Collective { call, members: self.members.to_vec() }
    }
}

impl Communicator for Member {
    fn members(&self) -> &[u32] {
        &self.members
    }

    fn position(&self) -> usize {
        self.position
    }

    fn carry_out<T: Element>(
        &mut self,
        collective: Collective<'_>,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let no_stock = &mut [];
        let sent = match collective {
            Collective::AllToAllV { sent, received } => {
                let call = Call::AllToAllV { format };
                self.agree(call)?;
                let counts = Counts { sent, received };
                counts.exchange(&Messaging { member: self, call }, no_stock, buffer)?;
                counts.sent_to_others(self.position)
            }
            Collective::Equal { kind, algorithm, reduction } => {
                let call = Call::exchange(kind, algorithm, reduction, (buffer.len(), format));
                let key = (kind, algorithm, buffer.len(), size_of::<T>());
                let (members, position) = (self.members.len(), self.position);
                let script = self.scripts.get(key, members, |list| Script::new(list, position));
                self.agree(call)?;
                // Members that made equal calls fail alike, so none of them goes on.
                let script = script?;
                let arithmetic = (&*self.connection.arithmetic, reduction);
                let messaging = Messaging { member: self, call };
                script.follow(&messaging, no_stock, arithmetic, (format, buffer))?;
                script.sent_elements
            }
        };
        self.counters.count_collective((sent * size_of::<T>()) as u64);
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), FabricError> {
        self.agree(Call::Barrier)?;
        self.counters.count_collective(0);
        Ok(())
    }
}

/// How a member exchanges the messages of one collective.
struct Messaging<'a> {
    member: &'a Member,
    call: Call,
}

impl Exchange for Messaging<'_> {
    fn members(&self) -> &[u32] {
        &self.member.members
    }

    /// Buffers are taken as they are needed, and used again.
    fn stock(&self, _: usize, _: Stock, _: &mut [Stock]) {}

    fn send<T: Element>(&self, to: usize, values: &[T]) {
        let Member { parts, members, position, .. } = self.member;
        let mut storage = parts.unused();
        storage.set(values);
        let what = What::Part { from: members[*position], at: self.member.at(to) };
        let origin: Arc<dyn Returns> = Arc::<Parts>::clone(parts);
        self.member.tell(to, what, Some((storage.into(), origin)));
    }

    fn receive(&self, from: usize) -> Result<Storage, FabricError> {
        let Member { router, connection, members, state, at, .. } = self.member;
        let peer = members[from];
        let arrived = router.wait((connection, at.rank), connection.timeout, || {
            // Asked first: what a rank sent before it left is then there. Nor does a rank that has left itself
            // go on.
            let mut needed = [peer, at.rank].into_iter();
            let gone = needed.find_map(|rank| self.member.gone(self.call, rank));
            let mut state = lock(state);
            if let Some(part) = state.parts.get_mut(&peer).and_then(|parts| parts.pop_front()) {
                return Some(Ok(part.into_storage()));
            }
            let broken = state.broken.clone().map(|error| Err((error, true)));
            broken.or_else(|| gone.map(|error| Err((error, false))))
        });
        match arrived {
            Some(Ok(part)) => Ok(part),
            Some(Err((error, true))) => Err(error),
            Some(Err((error, false))) => Err(self.member.break_off(error)),
            None => Err(self.member.break_off(self.member.timeout(self.call, vec![peer]))),
        }
    }

    fn give_back(&self, _: usize, message: Storage) {
        self.member.router.transport().reuse(message.into());
    }

    fn counts_differ(&self, reason: String) -> FabricError {
        let (members, rank) = (self.member.members.to_vec(), self.member.at.rank);
        self.member.break_off(FabricError::Counts { members, rank, reason })
    }
}
