use std::{fmt, marker::PhantomData, sync::Arc, thread};

use super::{
    channel::{Channels, Looked},
    group::Group,
    registry::Registry,
    roster::Roster,
};
use crate::{Counters, FabricError, Operation, Payload, Settings, counters::LiveCounters};

/// The engine whose ranks are threads of this process.
#[derive(Debug)]
pub struct InProcess<P>(PhantomData<P>);

impl<P: Payload> InProcess<P> {
    /// The endpoints of ranks `0..ranks`, in order, each to be moved to its thread.
    ///
    /// Endpoints share nothing with those of another call, so a changed set of ranks
    /// starts with a clean slate.
    #[expect(clippy::new_ret_no_self, reason = "the engine is nothing but its endpoints")]
    pub fn new(ranks: u32, settings: Settings) -> Vec<Endpoint<P>> {
        let channels = Channels::bounded(ranks as usize, settings.channel_capacity.get());
        let shared = Arc::new(Shared {
            channels,
            roster: Arc::new(Roster::new(ranks, settings)),
            registry: Registry::default(),
        });
        (0..ranks)
            .map(|rank| Endpoint { rank, shared: Arc::clone(&shared), counters: Arc::default() })
            .collect()
    }
}

struct Shared<P> {
    channels: Channels<P>,
    roster: Arc<Roster>,
    registry: Registry,
}

/// One rank's access to all others.
///
/// Dropping it tells the others that this rank is gone; messages it sent before can
/// still be received. Keep it for as long as its groups are in use.
pub struct Endpoint<P> {
    rank: u32,
    shared: Arc<Shared<P>>,
    counters: Arc<LiveCounters>,
}

impl<P: Payload> Endpoint<P> {
    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.shared.roster.ranks()
    }

    /// What this rank has sent so far.
    pub fn counters(&self) -> Counters {
        self.counters.read()
    }

    /// Moves a message to rank `to`, waiting while the channel there is full.
    ///
    /// Messages to oneself count as messages but not as bytes.
    ///
    /// # Errors
    ///
    /// [`FabricError::NoSuchRank`], [`FabricError::PeerGone`], [`FabricError::Timeout`];
    /// the message is then dropped.
    pub fn send(&self, to: u32, tag: u64, payload: P) -> Result<(), FabricError> {
        let bytes = if to == self.rank { 0 } else { payload.bytes() };
        let roster = &self.shared.roster;
        let mut unsent = Some(payload);
        self.wait_before_send(to, tag, || {
            // Whoever is gone receives nothing more.
            let payload = unsent.take_if(|_| roster.gone(to).is_none())?;
            let channel = self.shared.channels.between(self.rank as usize, to as usize);
            channel.offer(tag, payload).map_err(|refused| unsent = Some(refused)).ok()
        })?;
        roster.bell(to).ring();
        self.counters.count_message(bytes);
        Ok(())
    }

    /// What `poll` gives, waiting until rank `to` does something that makes it give something and then
    /// [nudges](Self::nudge) this one: before a message of this tag is sent there.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn wait_before_send<T>(
        &self,
        to: u32,
        tag: u64,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, FabricError> {
        self.check(to)?;
        let operation = || Operation::Send { to, tag };
        let roster = &self.shared.roster;
        let outcome = roster.bell(self.rank).wait(Some(roster.settings().timeout), || {
            // Asked before: what a rank did before it left counts.
            let gone = roster.gone(to);
            let found = poll().map(Ok);
            found.or_else(|| gone.map(|reason| Err(self.peer_gone(operation(), to, reason))))
        });
        outcome.unwrap_or_else(|| Err(self.timeout(operation(), to)))
    }

    /// Has rank `peer` look again, if it [waits before a send](Self::wait_before_send) to this one.
    ///
    /// # Errors
    ///
    /// [`FabricError::NoSuchRank`].
    pub fn nudge(&self, peer: u32) -> Result<(), FabricError> {
        self.check(peer)?;
        self.shared.roster.bell(peer).ring();
        Ok(())
    }

    /// The next message of this tag from rank `from`, waiting for it.
    ///
    /// Messages of one tag arrive in the order sent. Messages of other tags that come
    /// first are set aside, in memory without bound, until they are asked for.
    ///
    /// # Errors
    ///
    /// [`FabricError::NoSuchRank`]; [`FabricError::PeerGone`] once everything the peer
    /// sent under this tag has been received; [`FabricError::Timeout`].
    pub fn receive(&self, from: u32, tag: u64) -> Result<P, FabricError> {
        self.check(from)?;
        let roster = &self.shared.roster;
        let mut looked = Looked::default();
        roster
            .bell(self.rank)
            .wait(Some(roster.settings().timeout), || self.look(from, tag, &mut looked).transpose())
            .unwrap_or_else(|| Err(self.timeout(Operation::Receive { from, tag }, from)))
    }

    /// The next message of one of these ranks and tags, waiting for any of them: its place in the list, and
    /// the message. Of several that are there the one that stands first.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive), once any of these peers is gone and none of their messages is there.
    pub fn receive_any(&self, from: &[(u32, u64)]) -> Result<(usize, P), FabricError> {
        from.iter().try_for_each(|&(rank, _)| self.check(rank))?;
        let roster = &self.shared.roster;
        let mut looked: Vec<Looked> = from.iter().map(|_| Looked::default()).collect();
        let mut look = || {
            let mut failed = None;
            for (place, (&(rank, tag), looked)) in from.iter().zip(&mut looked).enumerate() {
                match self.look(rank, tag, looked) {
                    Ok(None) => {}
                    Ok(Some(message)) => return Some(Ok((place, message))),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            failed.map(Err)
        };
        let outcome = roster.bell(self.rank).wait(Some(roster.settings().timeout), &mut look);
        outcome.unwrap_or_else(|| {
            let (from, tag) = from.first().copied().unwrap_or((self.rank, 0));
            Err(self.timeout(Operation::Receive { from, tag }, from))
        })
    }

    /// As [`receive`](Self::receive), but `None` instead of waiting.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive), save for the timeout.
    pub fn try_receive(&self, from: u32, tag: u64) -> Result<Option<P>, FabricError> {
        self.check(from)?;
        self.look(from, tag, &mut Looked::default())
    }

    fn look(&self, from: u32, tag: u64, looked: &mut Looked) -> Result<Option<P>, FabricError> {
        let roster = &self.shared.roster;
        // Asked before the channel: what a rank sent before it left is then in there.
        let gone = roster.gone(from);
        let channel = self.shared.channels.between(from as usize, self.rank as usize);
        let taken = channel.take(tag, looked);
        if taken.made_room {
            roster.bell(from).ring();
        }
        match (taken.message, gone) {
            (None, Some(reason)) => {
                Err(self.peer_gone(Operation::Receive { from, tag }, from, reason))
            }
            (message, _) => Ok(message),
        }
    }

    /// The communicator of these ranks, in this order: position i is `members[i]`.
    ///
    /// Every member builds it with the same list, at any time; the first collective
    /// waits for the others. The k-th use of a list on one rank is matched with its
    /// k-th use on the others.
    ///
    /// # Errors
    ///
    /// [`FabricError::NoSuchRank`], [`FabricError::RepeatedMember`], or
    /// [`FabricError::NotAMember`] if this rank is not listed.
    pub fn group(&self, members: &[u32]) -> Result<Group, FabricError> {
        for (position, &rank) in members.iter().enumerate() {
            self.check(rank)?;
            if members[..position].contains(&rank) {
                return Err(FabricError::RepeatedMember { members: members.to_vec(), rank });
            }
        }
        let Some(position) = members.iter().position(|&rank| rank == self.rank) else {
            return Err(FabricError::NotAMember { members: members.to_vec(), rank: self.rank });
        };
        let seat = self.shared.registry.seat(&self.shared.roster, members, position);
        Ok(Group::new(seat, Arc::clone(&self.counters)))
    }

    /// Reports that this rank has failed and will do its part no more.
    ///
    /// All who wait for it, or will, get [`FabricError::PeerGone`] with this reason.
    /// The first report stays, so call it with the root cause before the endpoint is
    /// dropped.
    pub fn fail(&self, reason: impl fmt::Display) {
        self.shared.roster.leave(self.rank, reason.to_string());
    }

    fn check(&self, rank: u32) -> Result<(), FabricError> {
        let ranks = self.ranks();
        if rank < ranks { Ok(()) } else { Err(FabricError::NoSuchRank { rank, ranks }) }
    }

    fn peer_gone(&self, operation: Operation, peer: u32, reason: &str) -> FabricError {
        FabricError::PeerGone { rank: self.rank, operation, peer, reason: reason.to_owned() }
    }

    fn timeout(&self, operation: Operation, peer: u32) -> FabricError {
        FabricError::Timeout {
            rank: self.rank,
            operation,
            waiting_for: vec![peer],
            after: self.shared.roster.settings().timeout,
        }
    }
}

impl<P> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl<P> Drop for Endpoint<P> {
    fn drop(&mut self) {
        let reason =
            if thread::panicking() { "its thread panicked" } else { "its endpoint was dropped" };
        self.shared.roster.leave(self.rank, reason.to_owned());
    }
}
