//! When everything in a program happens: the longest paths through a graph of what waits for what.
//!
//! The rules, as the engine's documentation has them:
//!
//! - An instruction starts when the one before it in its queue is over and everything that it reads, adds
//!   to or overwrites is ready, and of what it changes or frees all reads since are over. Computation,
//!   sends, receives and each group of ranks are a queue.
//! - Gathers of weights and reductions of gradients also wait for all computation before them.
//! - On a device whose lanes do not overlap an instruction waits for all instructions before it.
//! - A rank's messages go one after another. A receive is over no earlier than its last message is there, and no
//!   earlier than what it takes of the way in after what the receive before took in was there.
//! - A rank's host launches its instructions one after another, and none starts before it is launched. A host
//!   may wait for messages, and for the ends of steps, before it launches more.
//! - A collective starts when its last member can.
//! - On a device whose lanes overlap, computation that runs beside collectives of its rank that were launched before it
//!   goes on at a fraction of its speed meanwhile.
//! - Of entries that are run only where an update was right, or only where it was wrong, the others are not.
//!
//! There is no clock and no order of events here, only edges: so that a mistake in how an engine follows
//! time is not made twice.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_program::timeline::Picos;
use shardloom_program::{BodyId, Group, Rank, RouteId};

use super::reading::{At, Entry, Kind, Operation, Reading, Thing};

/// Who says how long everything takes.
pub trait Times {
    /// A rank's own work.
    fn own(&self, at: At) -> Picos;
    /// One message of a route, by its number.
    fn message(&self, at: At, route: RouteId, number: usize) -> Picos;
    /// What a receive takes of the way into its rank.
    fn inflow(&self, at: At) -> Picos;
    /// Taking in what has arrived.
    fn receive(&self, at: At) -> Picos;
    /// A collective of all these.
    fn collective(&self, members: &[At]) -> Picos;
    /// What the host takes to launch an instruction.
    fn launch(&self, at: At) -> Picos;
    /// Whether the update before this step was right, or the step one that averages.
    fn is_right(&self, step: u32) -> bool;
}

/// What one part of an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Own,
    Sends,
    Receive,
    Collective,
}

/// One part of an instruction, in the order of its rank's control.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub at: At,
    pub part: Part,
    pub start: Picos,
    /// Of each message, or of the part.
    pub durations: Vec<Picos>,
}

/// Computation of one entry: its micro-batch, from when, until when.
pub type Computed = (Option<u32>, Picos, Picos);

/// What one rank does.
#[derive(Clone, Debug, Default)]
pub struct Track {
    pub events: Vec<Event>,
    /// When each step's last instruction was over.
    pub step_ends: Vec<Picos>,
    /// Computation, apart where entries change or the rank waits.
    pub computing: Vec<Computed>,
    /// When messages leave.
    pub sending: Vec<(Picos, Picos)>,
    /// When messages or collectives are under way to the rank.
    pub incoming: Vec<(Picos, Picos)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node(usize);

/// A queue of a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    Compute,
    Sends,
    Receives,
    Collectives((Group, bool)),
}

/// A value of a micro-batch, of an entry without one (by its number), or something that lasts.
type Key = (Thing, Option<u32>, usize);

/// What is known of a rank while its control is read.
#[derive(Default)]
struct State {
    /// The last launch, and what the host waits for before the next.
    launched: Option<Node>,
    awaited: BTreeSet<Node>,
    /// What it waited for last.
    held: BTreeSet<Node>,
    /// What the last receive took in is there.
    there: Option<Node>,
    /// The last of each queue.
    last: BTreeMap<Queue, Node>,
    /// What the rank's own thread has to have behind it, where it does one thing after another.
    before: BTreeSet<Node>,
    /// Collectives that the rank's communication thread was given and that it has not waited for.
    given: Vec<Given>,
    /// Where each instruction was run last.
    ran: BTreeMap<(BodyId, usize), Node>,
    /// What makes each thing ready.
    made: BTreeMap<Key, Node>,
    /// Collectives of the rank so far.
    collectives: Vec<Node>,
    /// What has read it since.
    read: BTreeMap<Key, Vec<Node>>,
    /// How often each message has been sent and received, and each group has met.
    sent: BTreeMap<(RouteId, Option<u32>), usize>,
    received: BTreeMap<(RouteId, Option<u32>), usize>,
    met: BTreeMap<Vec<Rank>, usize>,
}

/// A collective that a communication thread was given.
struct Given {
    queue: Queue,
    place: (BodyId, usize),
    needs: Vec<Key>,
    changes: Vec<Key>,
    node: Node,
}

/// Where a part of an instruction is in the graph.
struct Placed {
    round: i64,
    entry: usize,
    at: At,
    part: Part,
    /// Its start is that of the first.
    nodes: Vec<Node>,
    /// Its launch by the host, and what the host waited for last before that.
    launch: Node,
    held: BTreeSet<Node>,
    /// What its queue waits for before it.
    queued_after: BTreeSet<Node>,
}

/// A message: its route, its number there, the micro-batch, and how often it has been sent before.
type MessageName = (RouteId, usize, Option<u32>, usize);

#[derive(Default)]
struct Graph {
    durations: Vec<Picos>,
    /// Of each node those that have to be over.
    after: Vec<BTreeSet<Node>>,
    /// Each message's node.
    messages: BTreeMap<MessageName, Node>,
    /// Each collective's node, and who has come to it.
    collectives: BTreeMap<(Vec<Rank>, usize), (Node, Vec<At>)>,
    /// Receives, when what they take in is there, and the messages that make it up.
    awaited: BTreeMap<Node, (Node, Vec<MessageName>)>,
    /// Of a computation the collectives that its rank launched before, and how many times as long it takes beside them.
    beside: BTreeMap<Node, (Vec<Node>, f64)>,
}

impl Graph {
    fn node(&mut self, duration: Picos, after: BTreeSet<Node>) -> Node {
        self.durations.push(duration);
        self.after.push(after);
        Node(self.durations.len() - 1)
    }
}

/// Times the ranks of a program over so many steps.
///
/// # Panics
/// If ranks wait for each other.
pub fn time(readings: &[Reading], steps: u32, times: &dyn Times) -> Vec<Track> {
    let mut graph = Graph::default();
    let placed: Vec<Vec<Placed>> =
        readings.iter().map(|reading| place(&mut graph, reading, times)).collect();
    for (members, (node, who)) in &graph.collectives {
        assert_eq!(who.len(), members.0.len(), "{:?} meet", members.0);
        let in_order = |rank: &Rank| *who.iter().find(|at| at.rank == *rank).expect("it came");
        let who: Vec<At> = members.0.iter().map(in_order).collect();
        graph.durations[node.0] = times.collective(&who);
    }
    for (there, messages) in graph.awaited.values() {
        let nodes = messages.iter().map(|it| *graph.messages.get(it).expect("it is sent"));
        graph.after[there.0].extend(nodes);
    }
    let (starts, ends) = longest_paths(&graph);
    let times = (&starts[..], &ends[..]);
    placed.iter().map(|placed| track(&graph, times, placed, steps)).collect()
}

/// Adds a rank's instructions to the graph.
fn place(graph: &mut Graph, reading: &Reading, times: &dyn Times) -> Vec<Placed> {
    let mut state = State::default();
    let mut placed = vec![];
    let mut was_right = None;
    let mut now = None;
    for (number, entry) in reading.entries.iter().enumerate() {
        if let Some(pause) = reading.pause
            && reading.ends_before(entry.round) > reading.ends_before(now)
        {
            let over = graph.node(pause, state.last.values().copied().collect());
            state.awaited.insert(over);
        }
        if now.replace(entry.round).is_some_and(|before| before != entry.round) && reading.flushes {
            let given = state.given.drain(..).map(|given| given.node);
            state.before.extend(given);
        }
        if entry.only.is_some() && entry.only != was_right {
            continue;
        }
        for (index, operation) in reading.bodies[entry.body.0 as usize].iter().enumerate() {
            let at = At { index, ..entry.at };
            let round = entry.round;
            let mut step =
                Step { graph, state: &mut state, reading, entry, number, index, operation };
            step.arrives();
            let launch = step.launches(times.launch(at));
            let held = step.state.held.clone();
            let mut add = |part, nodes: Vec<Node>, queued_after| {
                let held = held.clone();
                placed.push(Placed {
                    round,
                    entry: number,
                    at,
                    part,
                    nodes,
                    launch,
                    held,
                    queued_after,
                });
            };
            match &operation.kind {
                Kind::Own | Kind::Test | Kind::Due => {
                    let (after, queued) = step.waits(&Queue::Compute);
                    let node = step.graph.node(times.own(at), after);
                    if reading.overlaps && reading.beside_collectives > 1.0 {
                        let beside = (step.state.collectives.clone(), reading.beside_collectives);
                        step.graph.beside.insert(node, beside);
                    }
                    step.ends(Queue::Compute, node);
                    add(Part::Own, vec![node], queued);
                    if matches!(operation.kind, Kind::Test | Kind::Due) {
                        was_right = Some(times.is_right(at.step));
                    }
                }
                Kind::Send { route, messages, of_microbatch } => {
                    let microbatch = at.microbatch.filter(|_| *of_microbatch);
                    let (after, queued) = step.waits(&Queue::Sends);
                    // Where it starts, even if it has nothing to send.
                    let mut nodes = vec![step.graph.node(Picos::ZERO, after)];
                    let key = (*route, microbatch);
                    let times_before = *step.state.sent.entry(key).or_default();
                    *step.state.sent.entry(key).or_default() += 1;
                    for &message in messages {
                        let before = *nodes.last().expect("it starts");
                        let duration = times.message(at, *route, message);
                        let node = step.graph.node(duration, [before].into());
                        let name = (*route, message, microbatch, times_before);
                        step.graph.messages.insert(name, node);
                        nodes.push(node);
                    }
                    let last = *nodes.last().expect("it starts");
                    step.ends(Queue::Sends, last);
                    add(Part::Sends, nodes, queued);
                }
                Kind::Receive { route, messages, of_microbatch } => {
                    let microbatch = at.microbatch.filter(|_| *of_microbatch);
                    let (after, queued) = step.waits(&Queue::Receives);
                    let before = step.state.there.into_iter().collect();
                    let inflow = step.graph.node(times.inflow(at), before);
                    let there = step.graph.node(Picos::ZERO, [inflow].into());
                    step.state.there = Some(there);
                    let node = step.graph.node(times.receive(at), after);
                    step.graph.after[node.0].insert(there);
                    let key = (*route, microbatch);
                    let times_before = *step.state.received.entry(key).or_default();
                    *step.state.received.entry(key).or_default() += 1;
                    let name = |&it: &usize| (*route, it, microbatch, times_before);
                    let names = messages.iter().map(name).collect();
                    step.graph.awaited.insert(node, (there, names));
                    step.ends(Queue::Receives, node);
                    if step.reading.waits_for_messages {
                        step.state.awaited.insert(node);
                    }
                    add(Part::Receive, vec![node], queued);
                }
                Kind::Collective { queue, members } => {
                    let queue = Queue::Collectives(queue.clone());
                    let (after, queued) = step.waits(&queue);
                    let met = step.state.met.entry(members.clone()).or_default();
                    let name = (members.clone(), *met);
                    *met += 1;
                    let node = match step.graph.collectives.get_mut(&name) {
                        Some((node, who)) => {
                            who.push(at);
                            *node
                        }
                        None => {
                            let node = step.graph.node(Picos::ZERO, BTreeSet::new());
                            step.graph.collectives.insert(name, (node, vec![at]));
                            node
                        }
                    };
                    step.graph.after[node.0].extend(after);
                    step.state.collectives.push(node);
                    step.ends(queue, node);
                    add(Part::Collective, vec![node], queued);
                }
            }
        }
    }
    placed
}

/// One instruction on its way into the graph.
struct Step<'a> {
    graph: &'a mut Graph,
    state: &'a mut State,
    reading: &'a Reading,
    entry: &'a Entry,
    number: usize,
    index: usize,
    operation: &'a Operation,
}

impl Step<'_> {
    fn key(&self, thing: Thing) -> Key {
        match (thing, self.entry.at.microbatch) {
            (Thing::Value(_), Some(microbatch)) => (thing, Some(microbatch), 0),
            // What belongs to no micro-batch ends with its entry.
            (Thing::Value(_), None) => (thing, None, self.number),
            _ => (thing, None, 0),
        }
    }

    fn keys(&self, things: &[Thing]) -> Vec<Key> {
        things.iter().map(|&thing| self.key(thing)).collect()
    }

    /// The queue of the instruction.
    fn queue(&self) -> Queue {
        match &self.operation.kind {
            Kind::Own | Kind::Test | Kind::Due => Queue::Compute,
            Kind::Send { .. } => Queue::Sends,
            Kind::Receive { .. } => Queue::Receives,
            Kind::Collective { queue, .. } => Queue::Collectives(queue.clone()),
        }
    }

    /// The rank waits for what its communication thread must be through with: whatever changes something that
    /// the instruction touches, or touches something that it changes; in the queue of the instruction whatever
    /// touches the same; reductions of which it waits for one; and all that was given to the thread before.
    fn arrives(&mut self) {
        let (needs, changes) =
            (self.keys(&self.operation.needs), self.keys(&self.operation.changes));
        let queue = self.queue();
        let share = |one: &[Key], other: &[Key]| one.iter().any(|key| other.contains(key));
        let must_be_over = |given: &Given| {
            let crosses = share(&needs, &given.changes)
                || share(&changes, &given.needs)
                || share(&changes, &given.changes);
            let follows = given.queue == queue && share(&needs, &given.needs);
            crosses || follows || self.operation.reductions.contains(&given.place)
        };
        let all = self.state.given.len();
        let over = match self.operation.kind {
            Kind::Test => all,
            _ => self.state.given.iter().rposition(must_be_over).map_or(0, |last| last + 1),
        };
        let over = self.state.given.drain(..over).map(|given| given.node);
        self.state.before.extend(over);
    }

    /// The host launches it.
    fn launches(&mut self, takes: Picos) -> Node {
        let mut before = std::mem::take(&mut self.state.awaited);
        if !before.is_empty() {
            self.state.held.clone_from(&before);
        }
        before.extend(self.state.launched);
        let launch = self.graph.node(takes, before);
        self.state.launched = Some(launch);
        launch
    }

    /// What has to be over before the instruction, and of that what its queue waits for.
    fn waits(&self, queue: &Queue) -> (BTreeSet<Node>, BTreeSet<Node>) {
        let is_collective = |queue: &Queue| matches!(queue, Queue::Collectives(_));
        let queued: BTreeSet<Node> = match (self.reading.overlaps, self.reading.has_thread) {
            (true, _) => self.state.last.get(queue).copied().into_iter().collect(),
            (false, true) if is_collective(queue) => {
                let thread = self.state.last.iter().filter(|(queue, _)| is_collective(queue));
                thread.map(|(_, &node)| node).chain(self.state.before.iter().copied()).collect()
            }
            (false, _) => self.state.before.clone(),
        };
        let ready = self.operation.needs.iter().chain(&self.operation.changes);
        let ready = ready.filter_map(|&it| self.state.made.get(&self.key(it)).copied());
        let mut after: BTreeSet<Node> = ready.chain(queued.iter().copied()).collect();
        after.extend(self.state.launched);
        let reductions = self.operation.reductions.iter();
        after.extend(reductions.filter_map(|place| self.state.ran.get(place)));
        let changed = self.operation.changes.iter();
        after.extend(changed.filter_map(|&it| self.state.read.get(&self.key(it))).flatten());
        if self.operation.in_step {
            after.extend(self.state.last.get(&Queue::Compute));
        }
        (after, queued)
    }

    /// The queue is taken until `node` is over, and what is read is read until then.
    fn takes(&mut self, queue: Queue, node: Node) {
        for &thing in &self.operation.needs {
            let key = self.key(thing);
            self.state.read.entry(key).or_default().push(node);
        }
        let place = (self.entry.body, self.index);
        self.state.ran.insert(place, node);
        match &queue {
            Queue::Collectives(_) if self.reading.has_thread => {
                let needs = self.keys(&self.operation.needs);
                let changes = self.keys(&self.operation.changes);
                self.state.given.push(Given { queue: queue.clone(), place, needs, changes, node });
            }
            _ => self.state.before = [node].into(),
        }
        self.state.last.insert(queue, node);
    }

    /// Likewise, and what the instruction makes is ready then.
    fn ends(&mut self, queue: Queue, node: Node) {
        self.takes(queue, node);
        for &thing in &self.operation.makes {
            let key = self.key(thing);
            self.state.made.insert(key, node);
            self.state.read.remove(&key);
        }
    }
}

/// When each node starts, at the latest end of those before it, and when it ends. Computation takes longer than it
/// would alone where collectives are beside it.
fn longest_paths(graph: &Graph) -> (Vec<Picos>, Vec<Picos>) {
    let nodes = graph.durations.len();
    let mut followers = vec![vec![]; nodes];
    let mut known_before = vec![vec![]; nodes];
    let mut missing = vec![0; nodes];
    for (node, after) in graph.after.iter().enumerate() {
        missing[node] = after.len();
        after.iter().for_each(|before| followers[before.0].push(node));
    }
    for (node, (collectives, _)) in &graph.beside {
        missing[node.0] += collectives.len();
        collectives.iter().for_each(|it| known_before[it.0].push(node.0));
    }
    let mut starts = vec![Picos::ZERO; nodes];
    let mut ends = vec![Picos::ZERO; nodes];
    let mut free: Vec<usize> = (0..nodes).filter(|&node| missing[node] == 0).collect();
    let mut done = 0;
    while let Some(node) = free.pop() {
        done += 1;
        let mut takes = graph.durations[node];
        if let Some((collectives, times)) = graph.beside.get(&Node(node)) {
            let spans = collectives.iter().map(|it| (starts[it.0], ends[it.0])).collect();
            takes = slowed(starts[node], takes, &occupied(spans), *times);
        }
        let end = starts[node] + takes;
        ends[node] = end;
        for &next in &known_before[node] {
            missing[next] -= 1;
            if missing[next] == 0 {
                free.push(next);
            }
        }
        for &next in &followers[node] {
            starts[next] = starts[next].max(end);
            missing[next] -= 1;
            if missing[next] == 0 {
                free.push(next);
            }
        }
    }
    assert_eq!(done, nodes, "ranks wait for each other");
    (starts, ends)
}

/// How long computation takes that starts at `start` and takes `alone` by itself, where it takes so many times as long
/// within `spans`: the first time by which it is done, found by halving.
fn slowed(start: Picos, alone: Picos, spans: &[(Picos, Picos)], times: f64) -> Picos {
    let done = |takes: u64| {
        let until = start.0 + takes;
        let within = |&(begin, end): &(Picos, Picos)| {
            end.0.min(until).saturating_sub(begin.0.max(start.0).min(until))
        };
        let beside: u64 = spans.iter().map(within).sum();
        (takes - beside) as f64 + beside as f64 / times
    };
    let (mut least, mut most) = (alone.0, (alone.0 as f64 * times).ceil() as u64 + 1);
    while least < most {
        let middle = least + (most - least) / 2;
        match done(middle) + 1e-3 >= alone.0 as f64 {
            true => most = middle,
            false => least = middle + 1,
        }
    }
    Picos(least)
}

fn track(
    graph: &Graph,
    (starts, ends): (&[Picos], &[Picos]),
    placed: &[Placed],
    steps: u32,
) -> Track {
    let end = |node: Node| ends[node.0];
    let mut track = Track::default();
    let mut open: Option<(usize, Computed)> = None;
    for it in placed {
        let (first, last) = (it.nodes[0], *it.nodes.last().expect("it has one"));
        let (start, over) = (starts[first.0], end(last));
        let durations: Vec<Picos> = match it.part {
            Part::Sends => it.nodes[1..].iter().map(|node| graph.durations[node.0]).collect(),
            _ => vec![graph.durations[first.0]],
        };
        track.events.push(Event { at: it.at, part: it.part, start, durations });
        match it.part {
            Part::Own if over > start => match &mut open {
                // An entry keeps the device while that waits for its host, and the host for nobody.
                Some((entry, (_, _, until)))
                    if *entry == it.entry
                        && (*until == start
                            || (end(it.launch) == start
                                && it.held.iter().all(|&node| end(node) <= *until))) =>
                {
                    *until = over;
                }
                _ => {
                    track.computing.extend(open.take().map(|(_, computed)| computed));
                    open = Some((it.entry, (it.at.microbatch, start, over)));
                }
            },
            Part::Own => {}
            Part::Sends => track.sending.push((start, over)),
            Part::Collective => track.incoming.push((start, over)),
            Part::Receive => {
                // From when the first message set out, or the queue was free to look for it.
                let (_, messages) = &graph.awaited[&first];
                let messages = messages.iter().map(|name| graph.messages[name]);
                let set_out = messages.map(|node| starts[node.0]).min().unwrap_or_default();
                let free = it.queued_after.iter().map(|&node| end(node)).max().unwrap_or_default();
                track.incoming.push((set_out.max(free), over));
            }
        }
    }
    track.computing.extend(open.take().map(|(_, computed)| computed));
    for step in 0..i64::from(steps) {
        let until = placed.iter().filter(|it| it.round <= step);
        let last = until.flat_map(|it| &it.nodes).map(|&node| end(node)).max();
        track.step_ends.push(last.unwrap_or_default());
    }
    track.sending = occupied(track.sending);
    track.incoming = occupied(track.incoming);
    track
}

/// The time that is covered by any of these, as intervals apart from each other.
pub fn occupied(mut intervals: Vec<(Picos, Picos)>) -> Vec<(Picos, Picos)> {
    intervals.retain(|(start, end)| start < end);
    intervals.sort_unstable();
    let mut apart: Vec<(Picos, Picos)> = vec![];
    for (start, end) in intervals {
        match apart.last_mut() {
            Some((_, until)) if start <= *until => *until = (*until).max(end),
            _ => apart.push((start, end)),
        }
    }
    apart
}
