use std::{fmt, sync::Arc};

use crate::{Contents, Format, View, ViewMut};

/// What messages to one rank are sent in: buffers that the sender fills and the receiver gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// The receiving rank.
    pub to: u32,
    /// How elements of a message are stored.
    pub format: Format,
    /// How many it has, at most.
    pub elements: usize,
    /// Buffers made ahead, as far as there may be so many.
    pub ready: usize,
    /// The most there may be: who wants to send more waits until one has been received.
    pub most: usize,
    /// How urgent its messages are, if the rank sends them by priority.
    pub priority: Option<Priority>,
}

/// How urgent messages are that ranks of a process send by priority. Within a process messages are there at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// Of those that wait the lowest goes first.
    pub place: u32,
    /// One waits while so many that the process sends by priority are on their way to others: sent, and not known to have
    /// arrived.
    pub most_under_way: u32,
}

/// A pool of one endpoint, by its number among those it made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(pub usize);

/// Where the buffer of a message goes when nobody uses it any more.
pub trait Returns: Send + Sync {
    /// Takes the buffer back.
    fn take_back(&self, contents: Contents);
}

/// A message: lent to its sender to be filled, then the receiver's until it is dropped.
pub struct Message {
    from: u32,
    to: u32,
    tag: u64,
    contents: Contents,
    origin: Arc<dyn Returns>,
}

impl Message {
    /// A message in a buffer that goes back to `origin`.
    pub fn new(from: u32, to: u32, tag: u64, contents: Contents, origin: Arc<dyn Returns>) -> Self {
        Self { from, to, tag, contents, origin }
    }

    /// The sending rank.
    pub fn from(&self) -> u32 {
        self.from
    }

    /// The receiving rank.
    pub fn to(&self) -> u32 {
        self.to
    }

    /// What the receiver asks for it by.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// What is in it.
    pub fn view(&self) -> View<'_> {
        self.contents.view()
    }

    /// What is in it, to be written. Before that it holds what the message before did, or zeros.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.contents.view_mut()
    }

    /// Has the first so many of its elements only, which are what is sent.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn shorten(&mut self, elements: usize) {
        let all = self.view().elements();
        assert!(elements <= all, "{elements} of {all} elements");
        self.contents.set_elements(elements);
    }

    /// Where its buffer goes back to.
    pub(crate) fn origin(&self) -> &Arc<dyn Returns> {
        &self.origin
    }

    /// What is in it, without giving it back to where it came from.
    pub(crate) fn take(mut self) -> Contents {
        self.origin = Arc::new(Nobody);
        std::mem::take(&mut self.contents)
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.contents.bytes()
    }
}

/// Whom nothing is given back to.
pub(crate) struct Nobody;

impl Returns for Nobody {
    fn take_back(&self, _: Contents) {}
}

impl Drop for Message {
    fn drop(&mut self) {
        self.origin.take_back(std::mem::take(&mut self.contents));
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("from", &self.from)
            .field("to", &self.to)
            .field("tag", &self.tag)
            .field("contents", &self.contents.view())
            .finish_non_exhaustive()
    }
}
