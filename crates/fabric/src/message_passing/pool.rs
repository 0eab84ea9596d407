//! Buffers for messages to one rank, and how many of them may be under way.

use std::sync::{Arc, Mutex, Weak};

use super::connection::lock;
use crate::{Contents, Message, Pool, Returns, counters::LiveCounters};

/// A pool of the endpoint that sends from it.
pub(super) struct SendPool {
    pool: Pool,
    made: usize,
    sender: u32,
    credits: Arc<Credits>,
}

/// What of a pool nobody uses.
pub(super) struct Credits {
    state: Mutex<State>,
    message_bytes: u64,
    counters: Arc<LiveCounters>,
    own: Weak<Credits>,
}

struct State {
    /// Messages that may be lent beside those that are under way.
    free: usize,
    buffers: Vec<Contents>,
}

impl SendPool {
    /// The pool of `sender`, with what it has ready.
    pub fn new(pool: Pool, sender: u32, counters: &Arc<LiveCounters>) -> Self {
        let ready = pool.ready.min(pool.most);
        let buffers = || Contents::zeroed(pool.format, pool.elements);
        let state = State {
            free: pool.most,
            buffers: std::iter::repeat_with(buffers).take(ready).collect(),
        };
        let credits = Arc::new_cyclic(|own| Credits {
            state: Mutex::new(state),
            message_bytes: (pool.elements * pool.format.bytes()) as u64,
            counters: Arc::clone(counters),
            own: own.clone(),
        });
        Self { pool, made: ready, sender, credits }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn credits(&self) -> &Arc<Credits> {
        &self.credits
    }

    /// Whether a message was lent from here.
    pub fn lent(&self, message: &Message) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(message.origin()), Arc::as_ptr(&self.credits))
    }

    /// A message in a buffer that nobody uses, or in a new one if there may be more.
    pub fn lend(&mut self, tag: u64) -> Option<Message> {
        let mut state = lock(&self.credits.state);
        if state.free == 0 {
            return None;
        }
        let contents = match state.buffers.pop() {
            Some(mut contents) => {
                contents.set_elements(self.pool.elements);
                contents
            }
            None if self.made < self.pool.most => {
                self.made += 1;
                self.credits.counters.count_late_buffer();
                Contents::zeroed(self.pool.format, self.pool.elements)
            }
            // Received already, and still being read here.
            None => return None,
        };
        state.free -= 1;
        drop(state);
        self.credits.counters.count_lent(self.credits.message_bytes);
        let origin: Arc<dyn Returns> = Arc::<Credits>::clone(&self.credits);
        Some(Message::new(self.sender, self.pool.to, tag, contents, origin))
    }
}

impl Credits {
    /// One message less is under way.
    pub fn restore(&self) {
        lock(&self.state).free += 1;
        self.counters.count_returned(self.message_bytes);
    }

    /// To whom the buffer of a message goes back once it has been sent.
    pub fn sent(&self) -> Arc<dyn Returns> {
        Arc::new(Sent(self.own.clone()))
    }
}

/// A message that was lent and not sent: nothing of it is under way.
impl Returns for Credits {
    fn take_back(&self, contents: Contents) {
        lock(&self.state).buffers.push(contents);
        self.restore();
    }
}

/// The buffer of a message that was sent; the message itself is under way until its receiver says so.
struct Sent(Weak<Credits>);

impl Returns for Sent {
    fn take_back(&self, contents: Contents) {
        if let Some(credits) = self.0.upgrade() {
            lock(&credits.state).buffers.push(contents);
        }
    }
}
