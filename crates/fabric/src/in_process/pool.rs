//! Buffers for messages to one rank.

use std::sync::{Arc, Mutex, PoisonError};

use super::roster::Roster;
use crate::{Contents, Message, Pool, Returns, counters::LiveCounters};

/// A pool of the endpoint that sends from it.
pub(super) struct SendPool {
    pool: Pool,
    made: usize,
    free: Arc<Free>,
}

/// The buffers of a pool that nobody uses.
struct Free {
    /// Elements of each, also of those that come back with less.
    elements: usize,
    buffers: Mutex<Vec<Contents>>,
    sender: u32,
    roster: Arc<Roster>,
    counters: Arc<LiveCounters>,
}

impl SendPool {
    /// The pool of `sender`, with what it has ready.
    pub(super) fn new(
        pool: Pool,
        sender: u32,
        roster: &Arc<Roster>,
        counters: &Arc<LiveCounters>,
    ) -> Self {
        let ready = pool.ready.min(pool.most);
        let mut buffers = Vec::with_capacity(ready);
        buffers.resize_with(ready, || Contents::zeroed(pool.format, pool.elements));
        let (roster, counters) = (Arc::clone(roster), Arc::clone(counters));
        let (elements, buffers) = (pool.elements, Mutex::new(buffers));
        let free = Arc::new(Free { elements, buffers, sender, roster, counters });
        Self { pool, made: ready, free }
    }

    /// Buffers that were made ahead.
    pub(super) fn ready(&self) -> usize {
        self.pool.ready.min(self.pool.most)
    }

    /// The receiver.
    pub(super) fn to(&self) -> u32 {
        self.pool.to
    }

    /// A message in a free buffer, or in a new one if there may be more.
    pub(super) fn lend(&mut self, tag: u64) -> Option<Message> {
        let free = self.free.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let contents = match free {
            Some(contents) => contents,
            None if self.made < self.pool.most => {
                self.made += 1;
                self.free.counters.count_late_buffer();
                Contents::zeroed(self.pool.format, self.pool.elements)
            }
            None => return None,
        };
        self.free.counters.count_lent(contents.bytes());
        let origin: Arc<dyn Returns> = Arc::<Free>::clone(&self.free);
        Some(Message::new(self.free.sender, self.pool.to, tag, contents, origin))
    }
}

impl Returns for Free {
    fn take_back(&self, mut contents: Contents) {
        contents.set_elements(self.elements);
        self.counters.count_returned(contents.bytes());
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(contents);
        self.roster.wakeup(self.sender).wake();
    }
}
