use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    thread,
};

use super::{
    connection::Connection,
    frame::{Frame, MemberId, What},
    group::Member,
    pool::SendPool,
    router::Router,
    send_queue::Outgoing,
    window::MessagePassingWindow,
};
use crate::{
    Counters, Endpoint, FabricError, Group, Lent, Message, Operation, Pool, PoolId, Window,
    by_messages::Scripts,
    channel::Looked,
    counters::LiveCounters,
    in_line::InLine,
    members::{check, place_among},
};

pub(super) struct MessagePassingEndpoint {
    rank: u32,
    router: Arc<Router>,
    connection: Arc<Connection>,
    counters: Arc<LiveCounters>,
    pools: Vec<SendPool>,
    /// How many groups of each list of members it has built.
    built: HashMap<Box<[u32]>, u64>,
    /// The rank whose message a receive from any rank brought last.
    served: u32,
}

impl MessagePassingEndpoint {
    pub fn new(rank: u32, router: &Arc<Router>, connection: &Arc<Connection>) -> Self {
        Self {
            rank,
            router: Arc::clone(router),
            connection: Arc::clone(connection),
            counters: Arc::default(),
            pools: vec![],
            built: HashMap::new(),
            served: rank,
        }
    }

    fn check(&self, rank: u32) -> Result<(), FabricError> {
        check(rank, self.connection.ranks)
    }

    /// A message of this tag from a rank, if there is one; why there will be none, if the rank is gone.
    fn look(&self, from: u32, tag: u64) -> Result<Option<Message>, &str> {
        // Asked first: what a rank sent before it left is then there.
        let gone = self.connection.gone(from);
        let message = self.connection.messages(from, self.rank).take(tag, &mut Looked::default());
        match (message, gone) {
            (None, Some(reason)) => Err(reason),
            (message, _) => Ok(message),
        }
    }

    fn peer_gone(&self, operation: Operation, peer: u32, reason: &str) -> FabricError {
        FabricError::PeerGone { rank: self.rank, operation, peer, reason: reason.to_owned() }
    }

    fn timeout(&self, operation: Operation, waiting_for: Vec<u32>) -> FabricError {
        let after = self.connection.timeout;
        FabricError::Timeout { rank: self.rank, operation, waiting_for, after }
    }
}

impl<B: Lent> Endpoint<B> for MessagePassingEndpoint {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.connection.ranks
    }

    fn counters(&self) -> Counters {
        // What was given back meanwhile counts.
        self.router.progress();
        self.counters.read()
    }

    fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError> {
        self.check(pool.to)?;
        if pool.priority.is_some() {
            self.router.prioritise();
        }
        let pool = SendPool::new(pool, self.rank, &self.counters);
        self.connection.pools(self.rank).push(Arc::clone(pool.credits()));
        self.pools.push(pool);
        Ok(PoolId(self.pools.len() - 1))
    }

    fn message(&mut self, PoolId(number): PoolId, tag: u64) -> Result<Message, FabricError> {
        let pool = &mut self.pools[number];
        let (to, connection) = (pool.pool().to, &self.connection);
        let lent = self.router.wait((connection, self.rank), connection.timeout, || {
            // Asked before: what a rank gave back before it left counts.
            let gone = connection.gone(to);
            pool.lend(tag).map(Ok).or_else(|| gone.map(Err))
        });
        match lent {
            Some(Ok(message)) => Ok(message),
            Some(Err(reason)) => Err(self.peer_gone(Operation::Send { to, tag }, to, reason)),
            None => Err(self.timeout(Operation::Send { to, tag }, vec![to])),
        }
    }

    fn try_message(&mut self, PoolId(pool): PoolId, tag: u64) -> Option<Message> {
        self.router.progress();
        self.pools[pool].lend(tag)
    }

    fn send(&mut self, message: Message) -> Result<(), FabricError> {
        self.router.progress();
        let (to, tag) = (message.to(), message.tag());
        // Whoever is gone receives nothing more.
        if let Some(reason) = self.connection.gone(to) {
            return Err(self.peer_gone(Operation::Send { to, tag }, to, reason));
        }
        let bytes = if to == self.rank { 0 } else { message.bytes() };
        let format = message.view().format();
        let number = self.pools.iter().position(|pool| pool.lent(&message));
        let number = number.expect("a message is sent by the endpoint that lent it");
        let process = self.connection.process_of(to);
        // What stays in the process takes no link, so that nothing waits for it.
        let own = self.router.transport().process();
        let priority = self.pools[number].pool().priority.filter(|_| process != own);
        let (from, pool, by_priority) = (self.rank, number as u32, priority.is_some());
        let what = What::Message { from, to, pool, tag, format, by_priority };
        let frame = Frame { connection: self.connection.number, what };
        let origin = self.pools[number].credits().sent();
        let body = message.take();
        match priority {
            Some(priority) => {
                let outgoing = Outgoing { process, frame, body, origin };
                self.connection.send_queue().put(priority, outgoing);
                self.router.send_waiting(&self.connection);
            }
            None => self.router.send(process, &frame, (body, origin)),
        }
        self.counters.count_message(bytes);
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError> {
        self.receive_any_as(&[(from, tag)], || Operation::Receive { from, tag })
    }

    fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError> {
        self.check(from)?;
        self.router.progress();
        self.look(from, tag)
            .map_err(|reason| self.peer_gone(Operation::Receive { from, tag }, from, reason))
    }

    fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError> {
        let message =
            self.receive_any_as(from, || Operation::ReceiveAny { from: from.to_vec() })?;
        self.served = message.from();
        Ok(message)
    }

    fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        let position = place_among(members, self.rank, self.connection.ranks)?;
        let built = self.built.entry(members.into()).or_default();
        // All processes run the same program, and so hash alike.
        let mut hasher = DefaultHasher::new();
        (members, *built).hash(&mut hasher);
        *built += 1;
        let at = MemberId { rank: self.rank, group: hasher.finish() };
        Ok(Box::new(InLine::new(Member {
            router: Arc::clone(&self.router),
            state: self.connection.group(at),
            connection: Arc::clone(&self.connection),
            members: members.into(),
            position,
            at,
            counters: Arc::clone(&self.counters),
            scripts: Scripts::default(),
            parts: Arc::default(),
        })))
    }

    fn window(&mut self, lent: Vec<B>) -> Box<dyn Window<B>> {
        let (router, connection) = (Arc::clone(&self.router), Arc::clone(&self.connection));
        let counters = Arc::clone(&self.counters);
        Box::new(MessagePassingWindow::new(self.rank, router, connection, counters, lent))
    }

    fn fail(&self, reason: &str) {
        self.router.leave(&self.connection, self.rank, reason);
        // Those of this process hear at once.
        self.router.progress();
    }
}

impl MessagePassingEndpoint {
    /// Waits for a message of some ranks and tags, the next after the one served last first.
    fn receive_any_as(
        &self,
        from: &[(u32, u64)],
        operation: impl FnOnce() -> Operation,
    ) -> Result<Message, FabricError> {
        from.iter().try_for_each(|&(rank, _)| self.check(rank))?;
        let first = from.iter().rposition(|&(rank, _)| rank == self.served).map_or(0, |at| at + 1);
        let found =
            self.router.wait((&self.connection, self.rank), self.connection.timeout, || {
                let mut gone = None;
                for &(rank, tag) in from[first..].iter().chain(&from[..first]) {
                    match self.look(rank, tag) {
                        Ok(None) => {}
                        Ok(Some(message)) => return Some(Ok(message)),
                        Err(reason) => gone = Some((rank, reason)),
                    }
                }
                gone.map(Err)
            });
        match found {
            Some(Ok(message)) => Ok(message),
            Some(Err((peer, reason))) => Err(self.peer_gone(operation(), peer, reason)),
            None => Err(self.timeout(operation(), from.iter().map(|&(rank, _)| rank).collect())),
        }
    }
}

impl Drop for MessagePassingEndpoint {
    fn drop(&mut self) {
        let reason =
            if thread::panicking() { "its thread panicked" } else { "its endpoint was dropped" };
        self.router.send_rest(&self.connection);
        self.router.leave(&self.connection, self.rank, reason);
    }
}
