use std::sync::Arc;

use crate::{
    Collective, Completed, Counters, FabricError, Handle, Lent, Message, Pool, PoolId, Settings,
    Window,
};

/// One of the processes that the ranks of an engine live in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// From 0.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl Process {
    /// Ranks in each process that has some: all have as many, or as many processes as there are ranks have one
    /// and the rest none. Nothing where they cannot be shared out so.
    pub fn ranks_each(self, ranks: u32) -> Option<u32> {
        match ranks {
            0 => None,
            few if few < self.of => Some(1),
            many => many.is_multiple_of(self.of).then(|| many / self.of),
        }
    }
}

/// A way for ranks to communicate. `B` is what they lend to collectives.
///
/// Whatever the engine, ranks see the same: what is sent arrives in order, collectives reduce in the
/// order of their step lists, nothing waits for ever, and counters count what was sent.
pub trait Engine<B: Lent>: Send + Sync {
    /// This process, among those that the ranks live in.
    fn process(&self) -> Process {
        Process { number: 0, of: 1 }
    }

    /// The endpoints of those of ranks `0..ranks` that live in this process, in order, each to be moved to
    /// where its rank lives.
    ///
    /// Endpoints share nothing with those of another call, so a changed set of ranks starts with a
    /// clean slate.
    ///
    /// # Errors
    ///
    /// [`FabricError::Start`].
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError>;

    /// The same with ranks in processes of choice: `processes` says by rank which. Where there is one process, all are in
    /// it.
    ///
    /// # Errors
    ///
    /// [`FabricError::Start`].
    fn connect_in(
        &self,
        processes: &[u32],
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        self.connect(processes.len() as u32, settings)
    }
}

impl<B: Lent, E: Engine<B> + ?Sized> Engine<B> for Arc<E> {
    fn process(&self) -> Process {
        E::process(self)
    }

    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        E::connect(self, ranks, settings)
    }

    fn connect_in(
        &self,
        processes: &[u32],
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        E::connect_in(self, processes, settings)
    }
}

/// One rank's access to all others.
///
/// Dropping it tells the others that this rank is gone; messages it sent before can still be received.
/// Keep it for as long as its groups are in use.
///
/// # Errors
///
/// Whatever waits for another rank may fail with [`FabricError::PeerGone`] or [`FabricError::Timeout`],
/// and whatever names a rank with [`FabricError::NoSuchRank`].
pub trait Endpoint<B: Lent>: Send {
    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn ranks(&self) -> u32;

    /// What this rank has done so far.
    fn counters(&self) -> Counters;

    /// Makes buffers for messages to a rank.
    ///
    /// # Errors
    ///
    /// See [`Endpoint`].
    fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError>;

    /// A message to be filled and [sent](Endpoint::send) under a tag, waiting until the pool has a free
    /// buffer.
    ///
    /// # Errors
    ///
    /// See [`Endpoint`]. A free buffer needs nobody.
    fn message(&mut self, pool: PoolId, tag: u64) -> Result<Message, FabricError>;

    /// As [`message`](Endpoint::message), but `None` instead of waiting.
    fn try_message(&mut self, pool: PoolId, tag: u64) -> Option<Message>;

    /// Sends a message to the rank that its pool is for, without waiting.
    ///
    /// Messages to oneself count as messages but not as bytes.
    ///
    /// # Errors
    ///
    /// [`FabricError::PeerGone`]; the message is then dropped.
    fn send(&mut self, message: Message) -> Result<(), FabricError>;

    /// The next message of this tag from rank `from`, waiting for it.
    ///
    /// Messages of one tag arrive in the order sent. Messages of other tags that come first are set
    /// aside until they are asked for.
    ///
    /// # Errors
    ///
    /// See [`Endpoint`]; [`FabricError::PeerGone`] once everything that the peer sent under this tag has
    /// been received.
    fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError>;

    /// As [`receive`](Endpoint::receive), but `None` instead of waiting.
    ///
    /// # Errors
    ///
    /// As [`receive`](Endpoint::receive), save for the timeout.
    fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError>;

    /// The next message from any of some ranks, of the tag that stands beside it, waiting for one. Of several
    /// that have something it is the next after the one served last, in the order given, so that none is
    /// kept waiting for ever.
    ///
    /// # Errors
    ///
    /// See [`Endpoint`]; [`FabricError::PeerGone`] if there is no message, and one of the ranks will send
    /// no more.
    fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError>;

    /// The communicator of these ranks, in this order: position i is `members[i]`.
    ///
    /// Every member builds it with the same list, at any time; the first collective waits for the
    /// others. The k-th use of a list on one rank is matched with its k-th use on the others.
    ///
    /// # Errors
    ///
    /// [`FabricError::NoSuchRank`], [`FabricError::RepeatedMember`], or [`FabricError::NotAMember`] if
    /// this rank is not listed.
    fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError>;

    /// A communicator for a thread of its own: nothing that other groups of this rank have under way holds it up.
    /// All members make it so.
    ///
    /// # Errors
    ///
    /// As [`group`](Endpoint::group).
    fn group_apart(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        self.group(members)
    }

    /// The window of this rank, which it makes once, with a buffer for each part of what it publishes. Others may
    /// wait for what it publishes before it does.
    ///
    /// # Panics
    ///
    /// If it has no parts, or there is a window.
    fn window(&mut self, lent: Vec<B>) -> Box<dyn Window<B>>;

    /// Reports that this rank has failed and will do its part no more.
    ///
    /// All who wait for it, or will, get [`FabricError::PeerGone`] with this reason. The first report
    /// stays, so call it with the root cause before the endpoint is dropped.
    fn fail(&self, reason: &str);
}

/// A communicator: some ranks that carry out collectives together.
///
/// All members start the same collectives in the same order, and a rank that is in several groups starts
/// those of all of them in an order in which ranks that do one after the other would come through: an
/// engine may carry a collective out as it is started. It is complete when it has been waited for, at the
/// latest. Each is deterministic, and an all-reduce leaves bitwise the same on every member.
///
/// # Errors
///
/// Every collective may fail with [`FabricError::Timeout`], [`FabricError::PeerGone`],
/// [`FabricError::Mismatch`] or [`FabricError::Counts`], and the group is then of no further use: all
/// members get the same error, now or at their next call. It fails with [`FabricError::Collective`] where
/// no such collective exists. What the buffer holds after the former is not defined; after the latter, and
/// after a mismatch, it is untouched.
pub trait Group<B: Lent>: Send {
    /// Ranks of the group, by position.
    fn members(&self) -> &[u32];

    /// This rank's position among the members.
    fn position(&self) -> u32;

    /// Starts a collective on what each member lends.
    fn start(&mut self, collective: Collective<'_>, lent: B) -> Handle;

    /// Whether a collective that was started has ended, so that waiting for it would not wait.
    fn test(&mut self, handle: &Handle) -> bool;

    /// Waits until a collective that was started has ended.
    ///
    /// # Panics
    ///
    /// If the handle is another group's.
    fn wait(&mut self, handle: Handle) -> Completed<B>;

    /// Waits until all members have called it.
    ///
    /// # Errors
    ///
    /// See [`Group`].
    fn barrier(&mut self) -> Result<(), FabricError>;

    /// Starts a collective and waits for it.
    fn run(&mut self, collective: Collective<'_>, lent: B) -> Completed<B> {
        let started = self.start(collective, lent);
        self.wait(started)
    }
}
