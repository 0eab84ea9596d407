//! Endpoints of an engine with something done at their calls.

use shardloom_fabric::{
    Counters, Endpoint, FabricError, Group, Lent, Message, Pool, PoolId, Window,
};

/// What is done at the calls of a rank's endpoint.
pub trait Watcher<B: Lent>: Send {
    /// Before the rank sends a message, or waits for one.
    fn message(&mut self) {}

    /// Before the rank sends this message.
    fn sends(&mut self, _: &Message) {
        self.message();
    }

    /// The group that the rank is given for one of its engine's.
    fn group(&mut self, inner: Box<dyn Group<B>>) -> Box<dyn Group<B>> {
        inner
    }
}

/// An endpoint whose calls somebody watches.
pub struct Watched<B, W> {
    pub inner: Box<dyn Endpoint<B>>,
    pub watcher: W,
}

impl<B: Lent, W: Watcher<B>> Endpoint<B> for Watched<B, W> {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError> {
        self.inner.pool(pool)
    }

    fn message(&mut self, pool: PoolId, tag: u64) -> Result<Message, FabricError> {
        self.inner.message(pool, tag)
    }

    fn try_message(&mut self, pool: PoolId, tag: u64) -> Option<Message> {
        self.inner.try_message(pool, tag)
    }

    fn send(&mut self, message: Message) -> Result<(), FabricError> {
        self.watcher.sends(&message);
        self.inner.send(message)
    }

    fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError> {
        self.watcher.message();
        self.inner.receive(from, tag)
    }

    fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError> {
        self.inner.try_receive(from, tag)
    }

    fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError> {
        self.watcher.message();
        self.inner.receive_any(from)
    }

    fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        let inner = self.inner.group(members)?;
        Ok(self.watcher.group(inner))
    }

    fn window(&mut self, lent: Vec<B>) -> Box<dyn Window<B>> {
        self.inner.window(lent)
    }

    fn fail(&self, reason: &str) {
        self.inner.fail(reason);
    }
}
