use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Messages that a channel has room for from the start, however many more it may hold.
const MOST_EXPECTED: usize = 1024;

/// A bounded queue of tagged messages from one sender to one receiver.
///
/// It never waits and wakes no one: both ends poll it and ring each other's bell.
#[derive(Debug)]
pub(super) struct Channel<T> {
    capacity: usize,
    /// Messages ever accepted; lets a waiting receiver poll without the lock.
    accepted: AtomicU64,
    contents: Mutex<Contents<T>>,
}

#[derive(Debug)]
struct Contents<T> {
    queue: VecDeque<(u64, T)>,
    /// Taken from the queue while looking for another tag, in the order sent. As many as the sender sends
    /// before a message that is waited for: in training those under way between two ranks, a handful for
    /// each micro-batch in flight. So it is one list, looked through from the start, which allocates
    /// nothing once it has its size.
    aside: VecDeque<(u64, T)>,
}

/// What a receiver remembers between two polls: the messages it has looked at.
#[derive(Debug, Default)]
pub(super) struct Looked(Option<u64>);

/// What a look at a channel brought.
pub(super) struct Taken<T> {
    pub(super) message: Option<T>,
    /// Whether a full queue has room again, so that the sender has to be told.
    pub(super) made_room: bool,
}

impl<T> Channel<T> {
    /// A queue of at most `capacity` messages, with room for `expected` of them from the start.
    fn new(capacity: usize, expected: usize) -> Self {
        let [queue, aside] = [(), ()].map(|()| VecDeque::with_capacity(expected));
        Self {
            capacity,
            accepted: AtomicU64::new(0),
            contents: Mutex::new(Contents { queue, aside }),
        }
    }

    /// Makes room for so many messages in the queue.
    pub(super) fn make_room(&self, messages: usize) {
        let queue = &mut self.lock().queue;
        queue.reserve(messages.saturating_sub(queue.len()));
    }

    fn lock(&self) -> MutexGuard<'_, Contents<T>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in, or gives it back if the queue is full.
    pub(super) fn offer(&self, tag: u64, message: T) -> Result<(), T> {
        let mut contents = self.lock();
        if contents.queue.len() >= self.capacity {
            return Err(message);
        }
        contents.queue.push_back((tag, message));
        self.accepted.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The message in the queue that was put in last, whatever its tag: the one most likely to be in a
    /// cache, where messages are only what others are put in.
    pub(super) fn take_newest(&self) -> Option<T> {
        self.lock().queue.pop_back().map(|(_, message)| message)
    }

    /// The oldest message of this tag. Messages of other tags before it are set
    /// aside and free their places in the queue.
    pub(super) fn take(&self, tag: u64, looked: &mut Looked) -> Taken<T> {
        if looked.0 == Some(self.accepted.load(Ordering::Acquire)) {
            return Taken { message: None, made_room: false };
        }
        let mut contents = self.lock();
        looked.0 = Some(self.accepted.load(Ordering::Relaxed));
        if let Some(message) = contents.take_aside(tag) {
            return Taken { message: Some(message), made_room: false };
        }
        let before = contents.queue.len();
        let message = contents.take_queued(tag);
        let made_room = before >= self.capacity && contents.queue.len() < before;
        Taken { message, made_room }
    }
}

impl<T> Contents<T> {
    fn take_aside(&mut self, tag: u64) -> Option<T> {
        let first = self.aside.iter().position(|&(found, _)| found == tag)?;
        self.aside.remove(first).map(|(_, message)| message)
    }

    fn take_queued(&mut self, tag: u64) -> Option<T> {
        while let Some((found, message)) = self.queue.pop_front() {
            if found == tag {
                return Some(message);
            }
            self.aside.push_back((found, message));
        }
        None
    }
}

/// The channels between all pairs, each made when first used.
#[derive(Debug)]
pub(super) struct Channels<T> {
    ends: usize,
    capacity: usize,
    expected: usize,
    between: Box<[OnceLock<Box<Channel<T>>>]>,
}

impl<T> Channels<T> {
    /// Channels that hold up to `capacity` messages each, and allocate nothing once they are made unless
    /// they hold very many.
    pub(super) fn bounded(ends: usize, capacity: usize) -> Self {
        Self::new(ends, capacity, capacity.min(MOST_EXPECTED))
    }

    /// Channels that hold any number of messages, and allocate as they grow.
    pub(super) fn unbounded(ends: usize) -> Self {
        Self::new(ends, usize::MAX, 0)
    }

    fn new(ends: usize, capacity: usize, expected: usize) -> Self {
        let between = (0..ends * ends).map(|_| OnceLock::new()).collect();
        Self { ends, capacity, expected, between }
    }

    pub(super) fn between(&self, from: usize, to: usize) -> &Channel<T> {
        let channel = || Box::new(Channel::new(self.capacity, self.expected));
        self.between[from * self.ends + to].get_or_init(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(channel: &Channel<&'static str>, tag: u64) -> Option<&'static str> {
        channel.take(tag, &mut Looked::default()).message
    }

    #[test]
    fn messages_of_a_tag_stay_in_order_and_others_are_set_aside() {
        let channel = Channel::new(4, 0);
        for (tag, message) in [(1, "a"), (2, "b"), (1, "c"), (2, "d")] {
            channel.offer(tag, message).unwrap();
        }
        assert_eq!(take(&channel, 2), Some("b"));
        assert_eq!(take(&channel, 3), None);
        assert_eq!(take(&channel, 1), Some("a"));
        assert_eq!(take(&channel, 2), Some("d"));
        assert_eq!(take(&channel, 1), Some("c"));
        assert!(channel.lock().aside.is_empty());
    }

    #[test]
    fn a_full_queue_gives_the_message_back_until_a_look_makes_room() {
        let channel = Channel::new(2, 2);
        channel.offer(1, "a").unwrap();
        channel.offer(1, "b").unwrap();
        assert_eq!(channel.offer(2, "c"), Err("c"));
        let taken = channel.take(2, &mut Looked::default());
        assert_eq!((taken.message, taken.made_room), (None, true));
        channel.offer(2, "c").unwrap();
        assert_eq!(take(&channel, 2), Some("c"));
    }

    #[test]
    fn a_second_look_sees_what_another_thread_set_aside() {
        let channel = Channel::new(2, 2);
        let mut looked = Looked::default();
        assert_eq!(channel.take(1, &mut looked).message, None);
        channel.offer(1, "a").unwrap();
        assert_eq!(take(&channel, 2), None);
        assert_eq!(channel.take(1, &mut looked).message, Some("a"));
    }
}
