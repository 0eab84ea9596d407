//! Collectives in an order that members of a group agree on while they get ready, over the groups of any engine.
//!
//! Protocol, and why nobody waits for ever: README.md, "In an order that is agreed on".

mod cycles;
mod pending;

use std::{
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use shardloom_collectives::{Algorithm, Reduction};

use crate::{Completed, Contents, FabricError, Format, Group, Handle, Lent};

use cycles::Cycles;
use pending::Pending;

/// What is lent and can be lent in part.
pub trait Fusible: Lent {
    /// From now on the first so many of its elements are lent, which it has.
    fn limit(&mut self, elements: usize);

    /// Notes from when to when it was worked on, where that is other than while it was lent.
    fn note_work(&mut self, _from: Instant, _to: Instant) {}
}

impl Fusible for Contents {
    fn limit(&mut self, elements: usize) {
        self.set_elements(elements);
    }
}

/// A reduction over all members that they make again and again, each at any time. All have the sum afterwards, so that
/// several can be carried out as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub algorithm: Algorithm,
    /// What reducing means.
    pub reduction: Reduction,
    /// How elements are stored.
    pub format: Format,
    /// How many each member lends.
    pub elements: usize,
}

impl Request {
    fn bytes(&self) -> usize {
        self.elements * self.format.bytes()
    }
}

/// What members negotiate about, the same on all.
#[derive(Debug, Clone)]
pub struct Negotiation {
    /// The collectives, by their numbers.
    pub requests: Vec<Request>,
    /// The least time from the begin of a cycle to that of the next.
    pub cycle: Duration,
    /// Up to how many bytes requests that follow each other in an answer are carried out as one.
    pub fused_bytes: usize,
    /// For how long a request may stay unanswered.
    pub timeout: Duration,
}

/// A member of a group whose collectives are requests. The first member coordinates.
///
/// A thread of its own carries them out. Drop the endpoint first: the rank is gone then, so that whatever the
/// thread waits for ends.
pub struct Negotiated<B: Fusible> {
    pending: Arc<Pending<B>>,
    thread: Option<JoinHandle<()>>,
    started: u64,
}

impl<B: Fusible> Negotiated<B> {
    /// Negotiates within `group`, which nobody else uses. In `told`, an `u32` for each request, members tell each
    /// other what they have; in one of `side_by_side`, that of their format, several requests' elements lie side
    /// by side. Without one for a format, or where it has no room, requests are carried out one by one.
    ///
    /// # Errors
    ///
    /// [`FabricError::Start`] if the system has no thread for it.
    pub fn new(
        group: Box<dyn Group<B>>,
        negotiation: Negotiation,
        told: B,
        side_by_side: Vec<B>,
    ) -> Result<Self, FabricError> {
        let rank = group.members()[group.position() as usize];
        let pending = Arc::new(Pending::new(negotiation.requests.len()));
        let mut cycles = Cycles::new(group, negotiation, told, side_by_side);
        let served = Arc::clone(&pending);
        let builder = Builder::new().name(format!("negotiation of rank {rank}"));
        let thread = builder.spawn(move || cycles.serve(&served)).map_err(|error| {
            let reason = format!("rank {rank} has no thread to negotiate: {error}");
            FabricError::Start { reason }
        })?;
        Ok(Self { pending, thread: Some(thread), started: 0 })
    }

    /// Makes a request, which is to have been waited for since it was made last.
    pub fn start(&mut self, request: usize, lent: B) -> Handle {
        let number = self.started;
        self.started += 1;
        self.pending.put(request, (number, lent));
        Handle::new(number)
    }

    /// Waits until a request has been carried out.
    ///
    /// # Errors
    ///
    /// As [`Group`]; [`FabricError::Unanswered`]. From then on nothing is carried out.
    ///
    /// # Panics
    ///
    /// If it was waited for before.
    pub fn wait(&mut self, handle: Handle) -> Completed<B> {
        self.pending.wait(handle.number())
    }

    /// The lists that were carried out since this was asked last: the numbers of requests that were carried out
    /// as one, in order.
    pub fn take_lists(&mut self) -> Vec<Vec<u32>> {
        self.pending.take_lists()
    }

    /// How many cycles there were.
    pub fn cycles(&self) -> u64 {
        self.pending.cycles()
    }

    /// Has the first member answer these lists in this order, whatever gets ready first, instead of any that are
    /// left of those before; none lets it answer by itself again. It makes no difference on others.
    pub fn repeat(&mut self, lists: Option<Vec<Vec<u32>>>) {
        self.pending.repeat(lists);
    }
}

impl<B: Fusible> Drop for Negotiated<B> {
    fn drop(&mut self) {
        self.pending.stop();
        if let Some(thread) = self.thread.take() {
            // It catches every panic.
            let _ = thread.join();
        }
    }
}
