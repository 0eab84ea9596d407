//! What the ranks of a process send by priority to other processes: of what waits the most urgent goes first, and only so much is on
//! its way at a time, so that what becomes ready later and is more urgent need not wait for all that came before it
//! (Peng et al. 2019, SOSP, ByteScheduler: credits).

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    sync::Arc,
};

use super::frame::Frame;
use crate::{Contents, Priority, Returns};

/// What ranks of a process send by priority.
#[derive(Default)]
pub(super) struct SendQueue {
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// How many have been put here.
    count: u64,
    /// How many are on their way: what MPI has taken may still wait for the link, behind megabytes, in its buffers and
    /// the system's.
    under_way: u32,
}

/// A message that waits for its turn.
struct Waiting {
    priority: Priority,
    /// Of equally urgent ones the first goes first.
    number: u64,
    outgoing: Outgoing,
}

/// A message, and to which process it goes.
pub(super) struct Outgoing {
    pub process: u32,
    pub frame: Frame,
    pub body: Contents,
    pub origin: Arc<dyn Returns>,
}

impl SendQueue {
    pub fn put(&mut self, priority: Priority, outgoing: Outgoing) {
        self.waiting.push(Reverse(Waiting { priority, number: self.count, outgoing }));
        self.count += 1;
    }

    /// Takes out the next that may go, which is on its way until it is said to have [arrived](Self::arrived).
    pub fn next(&mut self) -> Option<Outgoing> {
        let Reverse(first) = self.waiting.peek()?;
        let may_go = self.under_way < first.priority.most_under_way;
        may_go.then(|| self.take()).flatten()
    }

    /// Takes out the next, whatever is on its way.
    pub fn take(&mut self) -> Option<Outgoing> {
        let Reverse(Waiting { outgoing, .. }) = self.waiting.pop()?;
        self.under_way += 1;
        Some(outgoing)
    }

    /// One that was on its way has arrived.
    pub fn arrived(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |it: &Self| (it.priority.place, it.number);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, message::Nobody, message_passing::frame::What};

    fn outgoing(tag: u64) -> Outgoing {
        let format = Format::F32;
        let what = What::Message { from: 0, to: 1, pool: 0, tag, format, by_priority: true };
        let frame = Frame { connection: 0, what };
        Outgoing { process: 1, frame, body: Contents::default(), origin: Arc::new(Nobody) }
    }

    fn tag(outgoing: &Outgoing) -> u64 {
        match outgoing.frame.what {
            What::Message { tag, .. } => tag,
            _ => unreachable!("all are messages"),
        }
    }

    /// Two may be under way: the third, the most urgent, goes when one has arrived, before those that waited longer.
    #[test]
    fn the_most_urgent_goes_first_once_one_that_is_on_its_way_has_arrived() {
        let mut send_queue = SendQueue::default();
        let put = |send_queue: &mut SendQueue, place: u32, tag: u64| {
            send_queue.put(Priority { place, most_under_way: 2 }, outgoing(tag));
        };
        for (place, tag) in [(9, 0), (8, 1), (8, 2), (7, 3)] {
            put(&mut send_queue, place, tag);
        }
        let first: Vec<Outgoing> = std::iter::from_fn(|| send_queue.next()).collect();
        assert_eq!(first.iter().map(tag).collect::<Vec<_>>(), [3, 1]);
        put(&mut send_queue, 0, 4);
        assert!(send_queue.next().is_none());
        let mut sent = vec![];
        for _ in first {
            send_queue.arrived();
            let next = send_queue.next().expect("one may go");
            sent.push(tag(&next));
            assert!(send_queue.next().is_none());
        }
        assert_eq!(sent, [4, 2]);
        // At the end all go.
        assert_eq!(send_queue.take().as_ref().map(tag), Some(0));
        assert!(send_queue.take().is_none());
    }
}
