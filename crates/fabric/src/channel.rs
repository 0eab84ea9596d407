use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// A queue of tagged messages from one sender to one receiver. What bounds it are the buffers that there
/// are for messages.
///
/// It never waits and wakes no one: the receiver polls it, and the sender wakes the receiver.
#[derive(Debug)]
pub(crate) struct Channel<T> {
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
#[derive(Debug, Clone, Default)]
pub(crate) struct Looked(Option<u64>);

impl<T> Channel<T> {
    pub(crate) fn new() -> Self {
        let [queue, aside] = [(), ()].map(|()| VecDeque::new());
        Self { accepted: AtomicU64::new(0), contents: Mutex::new(Contents { queue, aside }) }
    }

    /// Makes room for so many messages, so that nothing is allocated up to there.
    pub(crate) fn make_room(&self, messages: usize) {
        let Contents { queue, aside } = &mut *self.lock();
        for list in [queue, aside] {
            list.reserve(messages.saturating_sub(list.len()));
        }
    }

    /// For how many messages there is room.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        let Contents { queue, aside } = &*self.lock();
        queue.capacity().min(aside.capacity())
    }

    fn lock(&self) -> MutexGuard<'_, Contents<T>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in.
    pub(crate) fn put(&self, tag: u64, message: T) {
        self.lock().queue.push_back((tag, message));
        self.accepted.fetch_add(1, Ordering::Release);
    }

    /// The message in the queue that was put in last, whatever its tag: the one most likely to be in a
    /// cache, where messages are only what others are put in.
    pub(crate) fn take_newest(&self) -> Option<T> {
        self.lock().queue.pop_back().map(|(_, message)| message)
    }

    /// The oldest message of this tag. Messages of other tags before it are set aside.
    pub(crate) fn take(&self, tag: u64, looked: &mut Looked) -> Option<T> {
        if looked.0 == Some(self.accepted.load(Ordering::Acquire)) {
            return None;
        }
        let mut contents = self.lock();
        looked.0 = Some(self.accepted.load(Ordering::Relaxed));
        contents.take_aside(tag).or_else(|| contents.take_queued(tag))
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
pub(crate) struct Channels<T> {
    ends: usize,
    between: Box<[OnceLock<Box<Channel<T>>>]>,
}

impl<T> Channels<T> {
    pub(crate) fn new(ends: usize) -> Self {
        Self { ends, between: (0..ends * ends).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn between(&self, from: usize, to: usize) -> &Channel<T> {
        self.between[from * self.ends + to].get_or_init(|| Box::new(Channel::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(channel: &Channel<&'static str>, tag: u64) -> Option<&'static str> {
        channel.take(tag, &mut Looked::default())
    }

    #[test]
    fn messages_of_a_tag_stay_in_order_and_others_are_set_aside() {
        let channel = Channel::new();
        for (tag, message) in [(1, "a"), (2, "b"), (1, "c"), (2, "d")] {
            channel.put(tag, message);
        }
        assert_eq!(take(&channel, 2), Some("b"));
        assert_eq!(take(&channel, 3), None);
        assert_eq!(take(&channel, 1), Some("a"));
        assert_eq!(take(&channel, 2), Some("d"));
        assert_eq!(take(&channel, 1), Some("c"));
        assert!(channel.lock().aside.is_empty());
    }

    #[test]
    fn a_second_look_sees_what_another_thread_set_aside() {
        let channel = Channel::new();
        let mut looked = Looked::default();
        assert_eq!(channel.take(1, &mut looked), None);
        channel.put(1, "a");
        assert_eq!(take(&channel, 2), None);
        assert_eq!(channel.take(1, &mut looked), Some("a"));
    }
}
