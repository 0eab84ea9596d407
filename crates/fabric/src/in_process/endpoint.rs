use std::{sync::Arc, thread};

use super::{
    communicator::Communicator,
    pool::SendPool,
    registry::Registry,
    roster::Roster,
    window::{InProcessWindow, Published},
};
use crate::{
    Counters, Endpoint, Engine, FabricError, Group, Lent, Message, Operation, Pool, PoolId, Reduce,
    Settings, Window,
    channel::{Channels, Looked},
    counters::LiveCounters,
    in_line::InLine,
    members::{check, place_among},
};

/// The engine whose ranks are threads of this process: messages are moved, collectives done by the
/// threads that start them, in each other's buffers or over messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

impl<B: Lent> Engine<B> for InProcess {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        let shared = Arc::new(Shared {
            channels: Channels::new(ranks as usize),
            roster: Arc::new(Roster::new(ranks, settings.timeout)),
            registry: Registry::default(),
            windows: (0..ranks).map(|_| Published::default()).collect(),
            arithmetic: Arc::clone(&settings.arithmetic),
        });
        let endpoint = |rank| -> Box<dyn Endpoint<B>> {
            Box::new(InProcessEndpoint {
                rank,
                shared: Arc::clone(&shared),
                counters: Arc::default(),
                pools: vec![],
                looked: vec![],
                served: rank,
            })
        };
        Ok((0..ranks).map(endpoint).collect())
    }
}

pub(super) struct Shared<B> {
    channels: Channels<Message>,
    pub(super) roster: Arc<Roster>,
    registry: Registry,
    /// By rank.
    pub(super) windows: Box<[Published<B>]>,
    arithmetic: Arc<dyn Reduce>,
}

struct InProcessEndpoint<B> {
    rank: u32,
    shared: Arc<Shared<B>>,
    counters: Arc<LiveCounters>,
    pools: Vec<SendPool>,
    /// Kept from one receive from any rank to the next, for its room.
    looked: Vec<Looked>,
    /// The rank whose message such a receive brought last.
    served: u32,
}

impl<B: Lent> Endpoint<B> for InProcessEndpoint<B> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.shared.roster.ranks()
    }

    fn counters(&self) -> Counters {
        self.counters.read()
    }

    fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError> {
        self.check(pool.to)?;
        let Shared { channels, roster, .. } = &*self.shared;
        // All of what several pools have for a rank may be on its way there at once.
        let ready = self.pools.iter().filter(|it| it.to() == pool.to).map(SendPool::ready);
        let room = ready.sum::<usize>() + pool.ready.min(pool.most);
        channels.between(self.rank as usize, pool.to as usize).make_room(room);
        self.pools.push(SendPool::new(pool, self.rank, roster, &self.counters));
        Ok(PoolId(self.pools.len() - 1))
    }

    fn message(&mut self, PoolId(pool): PoolId, tag: u64) -> Result<Message, FabricError> {
        let pool = &mut self.pools[pool];
        let (to, roster) = (pool.to(), &self.shared.roster);
        let lent = roster.wakeup(self.rank).wait(Some(roster.timeout()), || {
            // Asked before: what a rank gave back before it left counts.
            let gone = roster.gone(to);
            let lent = pool.lend(tag).map(Ok);
            lent.or_else(|| gone.map(Err))
        });
        match lent {
            Some(Ok(message)) => Ok(message),
            Some(Err(reason)) => Err(self.peer_gone(Operation::Send { to, tag }, to, reason)),
            None => Err(self.timeout(Operation::Send { to, tag }, vec![to])),
        }
    }

    fn try_message(&mut self, PoolId(pool): PoolId, tag: u64) -> Option<Message> {
        self.pools[pool].lend(tag)
    }

    fn send(&mut self, message: Message) -> Result<(), FabricError> {
        let (to, tag) = (message.to(), message.tag());
        let Shared { channels, roster, .. } = &*self.shared;
        // Whoever is gone receives nothing more.
        if let Some(reason) = roster.gone(to) {
            return Err(self.peer_gone(Operation::Send { to, tag }, to, reason));
        }
        let bytes = if to == self.rank { 0 } else { message.bytes() };
        channels.between(self.rank as usize, to as usize).put(tag, message);
        roster.wakeup(to).wake();
        self.counters.count_message(bytes);
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError> {
        self.check(from)?;
        let roster = &self.shared.roster;
        let mut looked = Looked::default();
        let found = roster.wakeup(self.rank).wait(Some(roster.timeout()), || {
            self.look(from, tag, &mut looked).map_err(|gone| (from, gone)).transpose()
        });
        self.received(found, || Operation::Receive { from, tag }, &[(from, tag)])
    }

    fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError> {
        self.check(from)?;
        self.look(from, tag, &mut Looked::default())
            .map_err(|reason| self.peer_gone(Operation::Receive { from, tag }, from, reason))
    }

    fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError> {
        from.iter().try_for_each(|&(rank, _)| self.check(rank))?;
        let mut looked = std::mem::take(&mut self.looked);
        looked.clear();
        looked.resize(from.len(), Looked::default());
        let first = from.iter().rposition(|&(rank, _)| rank == self.served).map_or(0, |at| at + 1);
        let roster = &self.shared.roster;
        let found = roster.wakeup(self.rank).wait(Some(roster.timeout()), || {
            let mut gone = None;
            for at in (first..from.len()).chain(0..first) {
                let (rank, tag) = from[at];
                match self.look(rank, tag, &mut looked[at]) {
                    Ok(None) => {}
                    Ok(Some(message)) => return Some(Ok(message)),
                    Err(reason) => gone = Some((rank, reason)),
                }
            }
            gone.map(Err)
        });
        let operation = || Operation::ReceiveAny { from: from.to_vec() };
        let received = self.received(found, operation, from);
        self.looked = looked;
        if let Ok(message) = &received {
            self.served = message.from();
        }
        received
    }

    fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        let position = place_among(members, self.rank, self.shared.roster.ranks())?;
        let Shared { registry, roster, arithmetic, .. } = &*self.shared;
        let membership = registry.membership(roster, members, position);
        let (counters, arithmetic) = (Arc::clone(&self.counters), Arc::clone(arithmetic));
        Ok(Box::new(InLine::new(Communicator::new(membership, counters, arithmetic))))
    }

    fn window(&mut self, lent: Vec<B>) -> Box<dyn Window<B>> {
        self.shared.windows[self.rank as usize].lend(lent);
        let (shared, counters) = (Arc::clone(&self.shared), Arc::clone(&self.counters));
        Box::new(InProcessWindow { rank: self.rank, shared, counters })
    }

    fn fail(&self, reason: &str) {
        self.shared.roster.leave(self.rank, reason.to_owned());
    }
}

impl<B> InProcessEndpoint<B> {
    /// A message of this tag from a rank, if there is one; why there will be none, if the rank is gone.
    fn look(&self, from: u32, tag: u64, looked: &mut Looked) -> Result<Option<Message>, &str> {
        // Asked before the channel: what a rank sent before it left is then in there.
        let gone = self.shared.roster.gone(from);
        let channel = self.shared.channels.between(from as usize, self.rank as usize);
        match (channel.take(tag, looked), gone) {
            (None, Some(reason)) => Err(reason),
            (message, _) => Ok(message),
        }
    }

    /// What a receive comes to that found a message, or a rank that is gone, or nothing for too long.
    fn received(
        &self,
        found: Option<Result<Message, (u32, &str)>>,
        operation: impl FnOnce() -> Operation,
        from: &[(u32, u64)],
    ) -> Result<Message, FabricError> {
        match found {
            Some(Ok(message)) => Ok(message),
            Some(Err((peer, reason))) => Err(self.peer_gone(operation(), peer, reason)),
            None => Err(self.timeout(operation(), from.iter().map(|&(rank, _)| rank).collect())),
        }
    }

    fn check(&self, rank: u32) -> Result<(), FabricError> {
        check(rank, self.shared.roster.ranks())
    }

    fn peer_gone(&self, operation: Operation, peer: u32, reason: &str) -> FabricError {
        FabricError::PeerGone { rank: self.rank, operation, peer, reason: reason.to_owned() }
    }

    fn timeout(&self, operation: Operation, waiting_for: Vec<u32>) -> FabricError {
        let after = self.shared.roster.timeout();
        FabricError::Timeout { rank: self.rank, operation, waiting_for, after }
    }
}

impl<B> Drop for InProcessEndpoint<B> {
    fn drop(&mut self) {
        let reason =
            if thread::panicking() { "its thread panicked" } else { "its endpoint was dropped" };
        self.shared.roster.leave(self.rank, reason.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Contents, Format, View, ViewMut};

    struct Nothing;

    impl Reduce for Nothing {
        fn reduce(&self, _: shardloom_collectives::Reduction, _: ViewMut<'_>, _: View<'_>) {}
    }

    #[test]
    fn there_is_room_for_what_all_pools_to_a_rank_have_ready() {
        let shared = Arc::new(Shared {
            channels: Channels::new(2),
            roster: Arc::new(Roster::new(2, Duration::from_secs(1))),
            registry: Registry::default(),
            windows: [(), ()].map(|()| Published::default()).into(),
            arithmetic: Arc::new(Nothing),
        });
        let mut endpoint: InProcessEndpoint<Contents> = InProcessEndpoint {
            rank: 0,
            shared: Arc::clone(&shared),
            counters: Arc::default(),
            pools: vec![],
            looked: vec![],
            served: 0,
        };
        let pool = |ready, most| Pool {
            to: 1,
            format: Format::F32,
            elements: 1,
            ready,
            most,
            priority: None,
        };
        for pool in [pool(40, 100), pool(100, 50)] {
            let made = endpoint.pool(pool);
            made.expect("there is a rank 1");
        }
        // More than a list would have room for if it grew by itself to what either of the two needs.
        assert!(shared.channels.between(0, 1).room() >= 40 + 50);
    }
}
