//! Collectives on a thread of the rank's own, over any engine.

mod queue;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{Builder, JoinHandle},
};

use queue::Queue;
use shardloom_collectives::{Algorithm, Kind, Reduction};

use crate::{
    Collective, Completed, Counters, Endpoint, Engine, FabricError, Group, Handle, Lent, Message,
    Pool, PoolId, Process, Settings, Window,
};

/// Collectives for which there is room from the start: as many may be waiting without the heap being asked
/// for more, however far one thread is ahead of another.
const ROOM: usize = 64;

/// An engine that gives each rank of another a communication thread, so that collectives proceed while
/// the rank computes.
///
/// What a rank starts goes to the end of one queue for all its groups, and the thread carries it out in
/// that order. What a rank starts and waits for at once ([`Group::run`]), and barriers, it carries out
/// itself, behind what is in the queue. It also sends and receives messages itself, and fetches what others
/// publish. What nobody has waited for when an endpoint is dropped is broken off.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overlapped<E>(pub E);

impl<B: Lent, E: Engine<B>> Engine<B> for Overlapped<E> {
    fn process(&self) -> Process {
        self.0.process()
    }

    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        self.0.connect(ranks, settings)?.into_iter().map(overlapped).collect()
    }

    fn connect_in(
        &self,
        processes: &[u32],
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        self.0.connect_in(processes, settings)?.into_iter().map(overlapped).collect()
    }
}

/// The endpoint with a communication thread.
fn overlapped<B: Lent>(inner: Box<dyn Endpoint<B>>) -> Result<Box<dyn Endpoint<B>>, FabricError> {
    let queue = Arc::new(Queue::default());
    let (rank, jobs) = (inner.rank(), Arc::clone(&queue));
    let builder = Builder::new().name(format!("communication of rank {rank}"));
    let thread = builder.spawn(move || serve(&jobs)).map_err(|error| {
        let reason = format!("rank {rank} has no communication thread: {error}");
        FabricError::Start { reason }
    })?;
    Ok(Box::new(OverlappedEndpoint { inner: Some(inner), queue, thread: Some(thread) }))
}

/// A collective that was started.
struct Job<B> {
    member: Arc<Member<B>>,
    number: u64,
    collective: OwnedCollective,
    lent: B,
}

/// What a rank and its communication thread know of a group.
struct Member<B> {
    inner: Mutex<Box<dyn Group<B>>>,
    ended: Mutex<Ended<B>>,
    changed: Condvar,
}

struct Ended<B> {
    /// What has not been waited for.
    completed: VecDeque<(u64, Completed<B>)>,
    /// Whether something that was lent is lost.
    panicked: bool,
}

/// A [`Collective`] with counts of its own.
enum OwnedCollective {
    Equal { kind: Kind, algorithm: Algorithm, reduction: Reduction },
    AllToAllV { sent: Box<[usize]>, received: Box<[usize]> },
}

impl From<Collective<'_>> for OwnedCollective {
    fn from(collective: Collective<'_>) -> Self {
        match collective {
            Collective::Equal { kind, algorithm, reduction } => {
                Self::Equal { kind, algorithm, reduction }
            }
            Collective::AllToAllV { sent, received } => {
                Self::AllToAllV { sent: sent.into(), received: received.into() }
            }
        }
    }
}

impl OwnedCollective {
    fn borrowed(&self) -> Collective<'_> {
        match self {
            &Self::Equal { kind, algorithm, reduction } => {
                Collective::Equal { kind, algorithm, reduction }
            }
            Self::AllToAllV { sent, received } => Collective::AllToAllV { sent, received },
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a communication thread does.
fn serve<B: Lent>(queue: &Queue<Job<B>>) {
    while let Some(Job { member, number, collective, lent }) = queue.next() {
        let run = || lock(&member.inner).run(collective.borrowed(), lent);
        let completed = catch_unwind(AssertUnwindSafe(run));
        let mut ended = lock(&member.ended);
        match completed {
            Ok(completed) => ended.completed.push_back((number, completed)),
            Err(_) => ended.panicked = true,
        }
        drop(ended);
        member.changed.notify_all();
        queue.finished();
    }
}

struct OverlappedEndpoint<B: Lent> {
    /// None once it is being dropped.
    inner: Option<Box<dyn Endpoint<B>>>,
    queue: Arc<Queue<Job<B>>>,
    thread: Option<JoinHandle<()>>,
}

impl<B: Lent> OverlappedEndpoint<B> {
    fn inner(&self) -> &dyn Endpoint<B> {
        self.inner.as_deref().expect("it is there until it is dropped")
    }

    fn inner_mut(&mut self) -> &mut dyn Endpoint<B> {
        self.inner.as_deref_mut().expect("it is there until it is dropped")
    }
}

impl<B: Lent> Drop for OverlappedEndpoint<B> {
    fn drop(&mut self) {
        self.queue.stop();
        // The rank is gone now, so that what its thread waits for ends.
        drop(self.inner.take());
        if let Some(thread) = self.thread.take() {
            // It catches every panic.
            let _ = thread.join();
        }
    }
}

impl<B: Lent> Endpoint<B> for OverlappedEndpoint<B> {
    fn rank(&self) -> u32 {
        self.inner().rank()
    }

    fn ranks(&self) -> u32 {
        self.inner().ranks()
    }

    fn counters(&self) -> Counters {
        self.inner().counters()
    }

    fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError> {
        self.inner_mut().pool(pool)
    }

    fn message(&mut self, pool: PoolId, tag: u64) -> Result<Message, FabricError> {
        self.inner_mut().message(pool, tag)
    }

    fn try_message(&mut self, pool: PoolId, tag: u64) -> Option<Message> {
        self.inner_mut().try_message(pool, tag)
    }

    fn send(&mut self, message: Message) -> Result<(), FabricError> {
        self.inner_mut().send(message)
    }

    fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError> {
        self.inner_mut().receive(from, tag)
    }

    fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError> {
        self.inner_mut().try_receive(from, tag)
    }

    fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError> {
        self.inner_mut().receive_any(from)
    }

    fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        let inner = self.inner_mut().group(members)?;
        let (members, position) = (members.into(), inner.position());
        let ended = Ended { completed: VecDeque::with_capacity(ROOM), panicked: false };
        let member =
            Member { inner: Mutex::new(inner), ended: Mutex::new(ended), changed: Condvar::new() };
        Ok(Box::new(OverlappedGroup {
            members,
            position,
            member: Arc::new(member),
            queue: Arc::clone(&self.queue),
            started: 0,
            outstanding: VecDeque::with_capacity(ROOM),
        }))
    }

    fn group_apart(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        self.inner_mut().group_apart(members)
    }

    fn window(&mut self, lent: Vec<B>) -> Box<dyn Window<B>> {
        self.inner_mut().window(lent)
    }

    fn fail(&self, reason: &str) {
        self.inner().fail(reason);
    }
}

struct OverlappedGroup<B: Lent> {
    members: Box<[u32]>,
    position: u32,
    member: Arc<Member<B>>,
    queue: Arc<Queue<Job<B>>>,
    started: u64,
    /// What was started and not waited for.
    outstanding: VecDeque<u64>,
}

impl<B: Lent> Group<B> for OverlappedGroup<B> {
    fn members(&self) -> &[u32] {
        &self.members
    }

    fn position(&self) -> u32 {
        self.position
    }

    fn start(&mut self, collective: Collective<'_>, lent: B) -> Handle {
        let (member, number) = (Arc::clone(&self.member), self.started);
        self.started += 1;
        self.outstanding.push_back(number);
        let refused =
            self.queue.put(Job { member, number, collective: collective.into(), lent }).err();
        if let Some(Job { collective, lent, .. }) = refused {
            // The endpoint was dropped, and its thread with it: this fails at once.
            let completed = lock(&self.member.inner).run(collective.borrowed(), lent);
            lock(&self.member.ended).completed.push_back((number, completed));
        }
        Handle::new(number)
    }

    fn test(&mut self, handle: &Handle) -> bool {
        let ended = lock(&self.member.ended);
        ended.panicked || ended.completed.iter().any(|&(number, _)| number == handle.number())
    }

    fn wait(&mut self, handle: Handle) -> Completed<B> {
        let outstanding = self.outstanding.iter().position(|&number| number == handle.number());
        let known = outstanding.expect("a handle is waited for once, with the group that gave it");
        self.outstanding.remove(known);
        let mut ended = lock(&self.member.ended);
        loop {
            let found = ended.completed.iter().position(|&(number, _)| number == handle.number());
            if let Some((_, completed)) = found.and_then(|found| ended.completed.remove(found)) {
                return completed;
            }
            assert!(!ended.panicked, "a collective panicked on the communication thread");
            ended = self.member.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn barrier(&mut self) -> Result<(), FabricError> {
        self.queue.drain();
        lock(&self.member.inner).barrier()
    }

    fn run(&mut self, collective: Collective<'_>, lent: B) -> Completed<B> {
        self.queue.drain();
        lock(&self.member.inner).run(collective, lent)
    }
}
