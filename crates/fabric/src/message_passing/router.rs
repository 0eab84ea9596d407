use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    connection::{Connection, lock},
    frame::{Frame, MemberId, What},
    send_queue::Outgoing,
    transport::{Arrived, Packet, Transport},
    window::{self, Arrival, Ask},
};
use crate::{Contents, FabricError, Message, Process, Returns, Settings, message::Nobody};

/// Polls of who waits that only give the core to others, where each rank may have one; then it sleeps between polls.
const YIELDING: Duration = Duration::from_micros(500);
/// How long it sleeps then: at least so long, and at most the share of what it has waited that a step may get longer by.
/// It is woken when something comes for it that another thread hands out. Ranks that compute have the core meanwhile.
const NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(1);
const NAP_SHARE: u32 = 64;
/// Why a process is gone whose packets are not understood.
const ANOTHER_PROGRAM: &str = "it does not run the same program";

/// Takes packets to where ranks of this process look for them.
pub(super) struct Router {
    transport: Box<dyn Transport>,
    connections: Mutex<Connections>,
    /// Held while packets that arrived are handed out, so that those of one process stay in order.
    handing_out: Mutex<()>,
    next: AtomicU32,
    /// Whether some rank sends by priority.
    prioritises: AtomicBool,
    own: Weak<Router>,
}

#[derive(Default)]
struct Connections {
    /// By number, as long as somebody uses them.
    made: HashMap<u32, Weak<Connection>>,
    /// How many there were.
    count: u32,
    /// What came for those that this process has not made yet, and from which process.
    early: HashMap<u32, Vec<(u32, Frame, Contents)>>,
    /// Processes that are gone, and why.
    left: HashMap<u32, String>,
}

impl Router {
    pub fn new(transport: Box<dyn Transport>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            transport,
            connections: Mutex::default(),
            handing_out: Mutex::default(),
            next: AtomicU32::new(0),
            prioritises: AtomicBool::new(false),
            own: own.clone(),
        })
    }

    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// The next connection of this process.
    pub fn connect(&self, ranks: u32, settings: &Settings) -> Result<Arc<Connection>, FabricError> {
        let (process, processes) = (self.transport.process(), self.transport.processes());
        let each = Process { number: process, of: processes }.ranks_each(ranks);
        let Some(each) = each else {
            let reason = format!(
                "{ranks} ranks do not spread evenly over {processes} processes; start as many processes \
                 as there are ranks, or a number that divides it"
            );
            return Err(FabricError::Start { reason });
        };
        self.connect_in(&(0..ranks).map(|rank| rank / each).collect::<Vec<_>>(), settings)
    }

    /// The same with ranks where `processes` says, by rank.
    pub fn connect_in(
        &self,
        processes: &[u32],
        settings: &Settings,
    ) -> Result<Arc<Connection>, FabricError> {
        let of = self.transport.processes();
        if let Some(missing) = processes.iter().find(|&&process| process >= of) {
            let reason = format!("there is no process {missing}: processes are below {of}");
            return Err(FabricError::Start { reason });
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let process = self.transport.process();
        let connection = Arc::new(Connection::new(number, processes, process, settings));
        // Nothing is handed out meanwhile, so that what came early stays before what comes now.
        let handing_out = lock(&self.handing_out);
        let (early, left) = {
            let mut connections = lock(&self.connections);
            connections.made.retain(|_, it| it.strong_count() > 0);
            connections.made.insert(number, Arc::downgrade(&connection));
            connections.count = connections.count.max(number + 1);
            (connections.early.remove(&number), connections.left.clone())
        };
        for (from, frame, body) in early.into_iter().flatten() {
            self.deliver(&connection, from, frame.what, body);
        }
        for (process, reason) in left {
            leave(&connection, process, &reason);
        }
        drop(handing_out);
        Ok(connection)
    }

    /// Sends a frame without a body.
    pub fn tell(&self, process: u32, frame: &Frame) {
        self.send(process, frame, (Contents::default(), Arc::new(Nobody)));
    }

    /// Sends a frame with what it carries and whom that goes back to.
    pub fn send(&self, process: u32, frame: &Frame, carried: (Contents, Arc<dyn Returns>)) {
        let (body, origin) = carried;
        self.transport.send(process, Packet { header: frame.header(), body, origin });
    }

    /// Tells all processes that a rank is gone; this one, too, behind what the rank sent before.
    pub fn leave(&self, connection: &Connection, rank: u32, reason: &str) {
        let what = What::Gone { rank, reason: reason.to_owned() };
        let frame = Frame { connection: connection.number, what };
        (0..self.transport.processes()).for_each(|process| self.tell(process, &frame));
    }

    /// Tells all other processes that this one is gone.
    pub fn leave_all(&self, reason: &str) {
        let frame = Frame { connection: 0, what: What::Left { reason: reason.to_owned() } };
        let own = self.transport.process();
        let others = (0..self.transport.processes()).filter(|&process| process != own);
        others.for_each(|process| self.tell(process, &frame));
    }

    /// Has a rank poll, with all that has arrived handed out before each time, until there is something or the
    /// timeout has passed.
    pub fn wait<T>(
        &self,
        (connection, rank): (&Connection, u32),
        timeout: Duration,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let (began, signal) = (Instant::now(), connection.signal(rank));
        let (yielding, least) = match connection.has_cores {
            true => (YIELDING, NAP),
            false => (Duration::ZERO, LONGEST_NAP),
        };
        loop {
            let heard = signal.heard();
            self.progress();
            if let Some(found) = poll() {
                return Some(found);
            }
            match began.elapsed() {
                waited if waited >= timeout => return None,
                waited if waited < yielding => thread::yield_now(),
                waited => signal.sleep(heard, (waited / NAP_SHARE).clamp(least, LONGEST_NAP)),
            }
        }
    }

    /// The member that decides why a group is broken: the first that is not gone.
    pub fn decides(&self, connection: &Connection, at: MemberId, members: &[u32]) -> u32 {
        let mut alive = members.iter().filter(|&&rank| connection.gone(rank).is_none());
        alive.next().copied().unwrap_or(at.rank)
    }

    /// Breaks a group with an error, on behalf of one of its members: the first of them that is not gone
    /// decides which of several errors it is, so that all have the same. What it is, if this process decides
    /// or has heard already; otherwise it will be heard.
    pub fn settle(
        &self,
        connection: &Connection,
        at: MemberId,
        members: &[u32],
        error: FabricError,
    ) -> Option<FabricError> {
        let tell = |rank: u32, what| {
            let frame = Frame { connection: connection.number, what };
            self.tell(connection.process_of(rank), &frame);
        };
        let decides = self.decides(connection, at, members);
        let state = connection.group(at);
        let mut state = lock(&state);
        if state.broken.is_some() {
            return state.broken.clone();
        }
        if decides != at.rank {
            let at = MemberId { rank: decides, ..at };
            tell(decides, What::Complaint { at, members: members.to_vec(), error });
            return None;
        }
        let error = state.break_off(error);
        for &rank in members.iter().filter(|&&rank| rank != at.rank) {
            let at = MemberId { rank, ..at };
            tell(rank, What::Broken { at, error: error.clone() });
        }
        Some(error)
    }

    /// Some rank sends by priority from now on.
    pub fn prioritise(&self) {
        self.prioritises.store(true, Ordering::Relaxed);
    }

    /// Sends what ranks send by priority as far as it may go.
    pub fn send_waiting(&self, connection: &Connection) {
        let mut send_queue = connection.send_queue();
        while let Some(outgoing) = send_queue.next() {
            self.post(outgoing);
        }
    }

    /// Sends all that ranks send by priority.
    pub fn send_rest(&self, connection: &Connection) {
        let mut send_queue = connection.send_queue();
        while let Some(outgoing) = send_queue.take() {
            self.post(outgoing);
        }
    }

    fn post(&self, Outgoing { process, frame, body, origin }: Outgoing) {
        self.send(process, &frame, (body, origin));
    }

    /// Hands out all that has arrived, and sends what has come to its turn.
    pub fn progress(&self) {
        self.hand_out();
        if self.prioritises.load(Ordering::Relaxed) {
            let made: Vec<_> = {
                let connections = lock(&self.connections);
                connections.made.values().filter_map(Weak::upgrade).collect()
            };
            made.iter().for_each(|connection| self.send_waiting(connection));
        }
    }

    fn hand_out(&self) {
        let _handing_out = lock(&self.handing_out);
        while let Some(Arrived { from, header, body }) = self.transport.receive() {
            let frame = Frame::parse(&header).unwrap_or_else(|| Frame {
                connection: 0,
                what: What::Left { reason: ANOTHER_PROGRAM.to_owned() },
            });
            self.take(from, frame, body);
        }
    }

    fn take(&self, from: u32, frame: Frame, body: Contents) {
        let connection = {
            let mut connections = lock(&self.connections);
            if let What::Left { reason } = &frame.what {
                let made: Vec<_> = connections.made.values().filter_map(Weak::upgrade).collect();
                connections.left.entry(from).or_insert_with(|| reason.clone());
                drop(connections);
                made.iter().for_each(|connection| leave(connection, from, reason));
                return;
            }
            if frame.connection >= connections.count {
                connections.early.entry(frame.connection).or_default().push((from, frame, body));
                return;
            }
            connections.made.get(&frame.connection).and_then(Weak::upgrade)
        };
        // Of a connection that nobody here uses any more nothing is missed.
        if let Some(connection) = connection {
            self.deliver(&connection, from, frame.what, body);
        }
    }

    fn deliver(&self, connection: &Arc<Connection>, from: u32, what: What, body: Contents) {
        if !what.fits(connection.ranks, &connection.own) {
            return leave(connection, from, ANOTHER_PROGRAM);
        }
        let whose = what.whose();
        match what {
            What::Message { from, to, pool, tag, format, by_priority } => {
                let what = What::Credit { to: from, pool };
                let credit = Frame { connection: connection.number, what };
                let origin = Received {
                    router: self.own.clone(),
                    connection: Arc::downgrade(connection),
                    process: connection.process_of(from),
                    credit,
                };
                let contents = body.relabelled(format);
                let message = Message::new(from, to, tag, contents, Arc::new(origin));
                connection.messages(from, to).put(tag, message);
                if by_priority {
                    let what = What::Arrived { sender: from };
                    let frame = Frame { connection: connection.number, what };
                    self.tell(connection.process_of(from), &frame);
                }
            }
            // Nobody waits for that.
            What::Arrived { .. } => return connection.send_queue().arrived(),
            What::Credit { to, pool } => {
                let credits = connection.pools(to).get(pool as usize).cloned();
                credits.iter().for_each(|credits| credits.restore());
            }
            What::Gone { rank, reason } => connection.leave(rank, reason),
            What::Called { from, at, call } => {
                let group = connection.group(at);
                lock(&group).called.entry(from).or_default().push_back(call);
            }
            What::Part { from, at } => {
                let group = connection.group(at);
                lock(&group).parts.entry(from).or_default().push_back(body);
            }
            What::Fetch { from, of, ask, least } => {
                window::asked(self, connection, of, Ask { from, number: ask, least });
            }
            What::Published { to, ask, number, parts, format, .. } => {
                let body = body.relabelled(format);
                connection.window(to).arrive(Arrival { ask, number, parts, body });
            }
            What::Complaint { at, members, error } => {
                // Whoever complains hears of it.
                let _ = self.settle(connection, at, &members, error);
            }
            What::Broken { at, error } => {
                lock(&connection.group(at)).break_off(error);
            }
            What::Left { .. } => unreachable!("it is of no connection"),
        }
        match whose {
            Some(rank) => connection.signal(rank).raise(),
            None => connection.raise_all(),
        }
    }
}

/// Notes that all ranks of a process are gone.
fn leave(connection: &Connection, process: u32, reason: &str) {
    let ranks = (0..connection.ranks).filter(|&rank| connection.process_of(rank) == process);
    ranks.for_each(|rank| connection.leave(rank, reason.to_owned()));
    connection.raise_all();
}

/// A message that was received: once dropped, its sender may send one more.
struct Received {
    router: Weak<Router>,
    connection: Weak<Connection>,
    /// The sender's.
    process: u32,
    credit: Frame,
}

impl Returns for Received {
    fn take_back(&self, contents: Contents) {
        let Some(router) = self.router.upgrade() else { return };
        router.transport.reuse(contents);
        // What nobody has received when the receiver is gone stays under way.
        if self.connection.strong_count() > 0 {
            router.tell(self.process, &self.credit);
        }
    }
}
