//! How many buffers the messages of a route need, so that a sender never waits for one.
//!
//! A message takes a buffer when it is sent and gives it back when it has been received. In some
//! execution everything that need not have happened before a send has not: so the most that can be under
//! way at a send are the messages sent so far less those whose receive happens before it, by the order
//! of each rank's instructions and by other messages (Lamport 1978; vector clocks: Mattern 1989). Where
//! that is not enough, as between stages of unlike meshes, by collectives within a replica, too, from when all
//! have come to one until a rank has waited for it; what collectives between replicas order is not counted.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use rustc_hash::FxHashMap;
use shardloom_plan::Axis;

use crate::outstanding::{Follower, Moment};
use crate::{Action, Class, ClassId, Group, Instruction, Issued, Program, Rank, Route, RouteId};

/// For every message of every route, how many can be under way at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePlan {
    most: Vec<Vec<Option<u32>>>,
}

/// Who sends a message to whom, for every micro-batch.
#[derive(Clone, Copy, Debug)]
struct Channel {
    route: RouteId,
    message: usize,
    from: usize,
    to: usize,
}

/// Ranks that exchange messages, directly or through others, and their channels. Ranks are numbered
/// within it.
struct Web {
    classes: Vec<ClassId>,
    channels: Vec<Channel>,
    /// With whom each rank meets in collectives along some mesh axes; itself included.
    groups: BTreeMap<(usize, Vec<Axis>), Vec<usize>>,
}

/// What webs have in common that differ in the names of ranks only: the classes of ranks, who sends what
/// to whom, and who meets.
type Shape = (Vec<ClassId>, Vec<(RouteId, usize, usize)>, Vec<((usize, Vec<Axis>), Vec<usize>)>);

impl MessagePlan {
    /// The plan of all routes of `program`.
    pub fn new(program: &Program) -> MessagePlan {
        let of_route = |route: &Route| vec![None; route.messages.len()];
        let mut most: Vec<Vec<Option<u32>>> = program.routes.iter().map(of_route).collect();
        // Webs are smaller without collectives.
        for with_collectives in [false, true] {
            let events = Events::new(program, with_collectives);
            // Replicas have equal webs.
            let mut known: FxHashMap<Shape, Vec<Option<u32>>> = FxHashMap::default();
            for web in webs(program, with_collectives) {
                let shape = web.channels.iter().map(|it| (it.route, it.from, it.to)).collect();
                let groups = web.groups.clone().into_iter().collect();
                let found = known
                    .entry((web.classes.clone(), shape, groups))
                    .or_insert_with(|| events.most_under_way(&web));
                for (channel, found) in web.channels.iter().zip(found) {
                    most[channel.route.0 as usize][channel.message] = *found;
                }
            }
            if most.iter().flatten().all(Option::is_some) {
                break;
            }
        }
        // Where passes are run once more, what they sent at first may still be under way.
        for route in repeated(program) {
            most[route.0 as usize].iter_mut().flatten().for_each(|most| *most *= 2);
        }
        // One at least, for what is sent only in evaluation.
        most.iter_mut().flatten().flatten().for_each(|most| *most = (*most).max(1));
        MessagePlan { most }
    }

    /// The most of the n-th message of a route that can be under way at once, over micro-batches and
    /// steps; none if nothing that the receiver does holds the sender back.
    pub fn most_under_way(&self, route: RouteId, message: usize) -> Option<u32> {
        self.most[route.0 as usize][message]
    }

    /// Bytes of all buffers, of messages that have a most.
    pub fn bytes(&self, program: &Program) -> u64 {
        let of_route = |(route, most): (&Route, &Vec<Option<u32>>)| -> u64 {
            let messages = route.messages.iter().zip(most);
            let bytes = messages
                .map(|(message, most)| u64::from(most.unwrap_or(0)) * route.message_bytes(message));
            bytes.sum()
        };
        program.routes.iter().zip(&self.most).map(of_route).sum()
    }
}

/// The ways of what is sent again where the flag of a guard does not hold.
fn repeated(program: &Program) -> BTreeSet<RouteId> {
    let of_class = |class: &Class| -> Vec<RouteId> {
        let arms = class.guards().flat_map(|guard| &guard.otherwise);
        let again = arms.filter(|entry| class.repeats(entry));
        let instructions = again.flat_map(|entry| &class.body_of(entry).instructions);
        let sends = instructions.filter_map(|it| match it.action {
            Action::Send { route } => Some(route),
            _ => None,
        });
        sends.collect()
    };
    program.classes.iter().flat_map(of_class).collect()
}

/// The axes of an instruction's collective within a replica.
fn meeting<'a>(
    program: &Program,
    class: &Class,
    instruction: &'a Instruction,
) -> Option<&'a [Axis]> {
    let Action::Collective { group: Group::Mesh(axes), .. } = &instruction.action else {
        return None;
    };
    // Nobody waits for anybody where there is nothing to exchange.
    let exchanges = || class.elements(instruction.reads[0].tensor, 0) > 0;
    let within = !axes.iter().any(|axis| program.batch_axes.contains(axis));
    (within && class.mesh.span(axes) > 1 && exchanges()).then_some(axes)
}

/// The groups of a class's collectives within a replica, as mesh axes.
fn meetings<'a>(program: &Program, class: &'a Class) -> BTreeSet<&'a [Axis]> {
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    instructions.filter_map(|instruction| meeting(program, class, instruction)).collect()
}

/// The webs of a program's messages, of ranks that are also held together by collectives within a
/// replica, if those count.
fn webs(program: &Program, with_collectives: bool) -> Vec<Web> {
    let mut leader: Vec<usize> = (0..program.ranks()).collect();
    fn lead(leader: &mut [usize], rank: usize) -> usize {
        let mut rank = rank;
        while leader[rank] != rank {
            leader[rank] = leader[leader[rank]];
            rank = leader[rank];
        }
        rank
    }
    let mut channels = vec![];
    for route in (0..program.routes.len() as u32).map(RouteId) {
        for (message, from, to) in program.transfers(route) {
            let (from, to) = (from.0 as usize, to.0 as usize);
            channels.push(Channel { route, message, from, to });
            let (one, other) = (lead(&mut leader, from), lead(&mut leader, to));
            leader[one.max(other)] = one.min(other);
        }
    }
    let mut groups = vec![];
    for (id, class) in program.classes().filter(|_| with_collectives) {
        for axes in meetings(program, class) {
            for position in 0..class.mesh.size() {
                let group = program.members(id, position, &Group::Mesh(axes.to_vec()));
                let group: Vec<usize> = group.into_iter().map(|rank| rank.0 as usize).collect();
                let rank = class.first_rank.0 as usize + position;
                let (one, other) = (lead(&mut leader, rank), lead(&mut leader, group[0]));
                leader[one.max(other)] = one.min(other);
                groups.push((rank, axes, group));
            }
        }
    }
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut number = vec![0; leader.len()];
    for (rank, number) in number.iter_mut().enumerate() {
        let web = members.entry(lead(&mut leader, rank)).or_default();
        *number = web.len();
        web.push(rank);
    }
    let mut webs: BTreeMap<usize, Web> = BTreeMap::new();
    for channel in channels {
        let leader = lead(&mut leader, channel.from);
        let web = webs.entry(leader).or_insert_with(|| {
            let class = |&rank: &usize| program.locate(Rank(rank as u32)).0;
            let classes = members[&leader].iter().map(class).collect();
            Web { classes, channels: vec![], groups: BTreeMap::new() }
        });
        let (from, to) = (number[channel.from], number[channel.to]);
        web.channels.push(Channel { from, to, ..channel });
    }
    for (rank, axes, group) in groups {
        // Who sends nothing holds nobody back.
        if let Some(web) = webs.get_mut(&lead(&mut leader, rank)) {
            let group = group.into_iter().map(|rank| number[rank]).collect();
            web.groups.insert((number[rank], axes.to_vec()), group);
        }
    }
    webs.into_values().collect()
}

/// Something that happens between ranks.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Send(RouteId, u32),
    Receive(RouteId, u32),
    /// The rank comes to a collective along these axes.
    Arrive(Vec<Axis>),
    /// It has ended: the rank knows what its members knew when they came to it, as their event of this
    /// number.
    Leave(Vec<Axis>, u32),
}

/// What each class sends and receives in rows of so many steps, in order.
struct Events {
    /// By number of steps, from 1, and class.
    rows: Vec<Vec<Vec<Event>>>,
}

impl Events {
    fn new(program: &Program, with_collectives: bool) -> Events {
        // Rows that fill and drain, with a full pipeline in between in the last, and one step more to
        // see whether it makes a difference.
        let longest = program.ahead + 3;
        let of = |class, steps| events(program, class, steps, with_collectives);
        let row = |steps| program.classes.iter().map(|class| of(class, steps)).collect();
        Events { rows: (1..=longest).map(row).collect() }
    }

    fn most_under_way(&self, web: &Web) -> Vec<Option<u32>> {
        let mut most = vec![0; web.channels.len()];
        let (longest, shorter) = self.rows.split_last().expect("there are rows");
        for row in shorter {
            for (most, found) in most.iter_mut().zip(Execution::new(web, row).run()) {
                *most = found.max(*most);
            }
        }
        let longest = Execution::new(web, longest).run();
        let bounded = |(&most, longest): (&u32, u32)| (longest <= most).then_some(most);
        most.iter().zip(longest).map(bounded).collect()
    }
}

fn events(program: &Program, class: &Class, steps: u32, with_collectives: bool) -> Vec<Event> {
    let mut events: Vec<Event> = vec![];
    let mut follower = Follower::new(program, class);
    // Of each collective that has not ended, when it was come to, if it counts.
    let mut arrivals: VecDeque<Option<Event>> = VecDeque::new();
    // What belongs to a step is numbered as it comes: the n-th that is sent is the n-th received.
    let mut numbers: FxHashMap<RouteId, u32> = FxHashMap::default();
    let mut number = |route: RouteId, microbatch: Option<u32>| {
        program.route(route).microbatch(microbatch).unwrap_or_else(|| {
            let next = numbers.entry(route).or_default();
            *next += 1;
            *next
        })
    };
    for run in program.cursor(class, steps).runs(true) {
        follower.run(&run, |moment| match moment {
            Moment::Start(Issued { microbatch, .. }, instruction) => match instruction.action {
                Action::Send { route } => {
                    events.push(Event::Send(route, number(route, microbatch)));
                }
                Action::Receive { route } => {
                    events.push(Event::Receive(route, number(route, microbatch)));
                }
                Action::Collective { .. } => {
                    let meeting = meeting(program, class, instruction).filter(|_| with_collectives);
                    // Who has just met learns nothing by meeting again.
                    let is_news = |axes: &&[Axis]| !matches!(events.last(), Some(Event::Leave(met, _)) if met == axes);
                    arrivals.push_back(meeting.filter(is_news).map(|axes| {
                        let arrival = events.len() as u32;
                        events.push(Event::Arrive(axes.to_vec()));
                        Event::Leave(axes.to_vec(), arrival)
                    }));
                }
                _ => {}
            },
            Moment::End(_, instruction, _) => {
                if let Action::Collective { .. } = instruction.action {
                    events.extend(arrivals.pop_front().flatten());
                }
            }
        });
    }
    events
}

/// How many events of each rank are known to have happened.
type Clock = Vec<u32>;

/// One order of all events in a web, with what each is known to come after.
struct Execution<'a> {
    web: &'a Web,
    row: &'a [Vec<Event>],
    /// By rank and route: channels that it sends on, and receives from.
    sends: FxHashMap<(usize, RouteId), Vec<usize>>,
    receives: FxHashMap<(usize, RouteId), Vec<usize>>,
    clocks: Vec<Clock>,
    /// What ranks knew when they came to a collective, by the number of their event.
    arrivals: FxHashMap<(usize, u32), Rc<Clock>>,
    /// Messages under way, by channel and micro-batch.
    transfers: FxHashMap<(usize, u32), Rc<Clock>>,
    /// By channel: messages sent, and of each receive which event of its rank it was.
    sent: Vec<u32>,
    received: Vec<Vec<u32>>,
    most: Vec<u32>,
}

impl<'a> Execution<'a> {
    fn new(web: &'a Web, row: &'a [Vec<Event>]) -> Execution<'a> {
        let (ranks, channels) = (web.classes.len(), web.channels.len());
        let mut sends: FxHashMap<_, Vec<usize>> = FxHashMap::default();
        let mut receives: FxHashMap<_, Vec<usize>> = FxHashMap::default();
        for (index, channel) in web.channels.iter().enumerate() {
            sends.entry((channel.from, channel.route)).or_default().push(index);
            receives.entry((channel.to, channel.route)).or_default().push(index);
        }
        Execution {
            web,
            row,
            sends,
            receives,
            clocks: vec![vec![0; ranks]; ranks],
            arrivals: FxHashMap::default(),
            transfers: FxHashMap::default(),
            sent: vec![0; channels],
            received: vec![vec![]; channels],
            most: vec![0; channels],
        }
    }

    /// The most under way on each channel.
    fn run(mut self) -> Vec<u32> {
        let mut moved = true;
        while moved {
            moved = false;
            for rank in 0..self.web.classes.len() {
                while self.advance(rank) {
                    moved = true;
                }
            }
        }
        let through = |(rank, class): (usize, &ClassId)| {
            self.clocks[rank][rank] as usize == self.row[class.0 as usize].len()
        };
        let all = self.web.classes.iter().enumerate().all(through);
        assert!(all, "a program whose schedule was checked runs to its end");
        self.most
    }

    /// Carries out the next event of a rank, if there is one that can happen.
    fn advance(&mut self, rank: usize) -> bool {
        let events = &self.row[self.web.classes[rank].0 as usize];
        match events.get(self.clocks[rank][rank] as usize) {
            Some(&Event::Send(route, microbatch)) => {
                self.send(rank, route, microbatch);
                true
            }
            Some(&Event::Receive(route, microbatch)) => self.receive(rank, route, microbatch),
            Some(Event::Arrive(_)) => {
                let number = self.clocks[rank][rank];
                self.clocks[rank][rank] += 1;
                self.arrivals.insert((rank, number), Rc::new(self.clocks[rank].clone()));
                true
            }
            Some(&Event::Leave(ref axes, arrival)) => {
                let web = self.web;
                self.leave(rank, &web.groups[&(rank, axes.clone())], arrival)
            }
            None => false,
        }
    }

    fn send(&mut self, rank: usize, route: RouteId, microbatch: u32) {
        self.clocks[rank][rank] += 1;
        let clock = Rc::new(self.clocks[rank].clone());
        for &channel in self.sends.get(&(rank, route)).into_iter().flatten() {
            let known = clock[self.web.channels[channel].to];
            let back = self.received[channel].partition_point(|&event| event < known) as u32;
            self.sent[channel] += 1;
            self.most[channel] = self.most[channel].max(self.sent[channel] - back);
            self.transfers.insert((channel, microbatch), Rc::clone(&clock));
        }
    }

    /// Whether the messages are there.
    fn receive(&mut self, rank: usize, route: RouteId, microbatch: u32) -> bool {
        let number = self.clocks[rank][rank];
        let channels = self.receives.get(&(rank, route)).map_or(&[][..], Vec::as_slice);
        if !channels.iter().all(|&channel| self.transfers.contains_key(&(channel, microbatch))) {
            return false;
        }
        for &channel in channels {
            let transfer = self.transfers.remove(&(channel, microbatch)).expect("was just seen");
            for (own, &known) in self.clocks[rank].iter_mut().zip(&*transfer) {
                *own = known.max(*own);
            }
            self.received[channel].push(number);
        }
        self.clocks[rank][rank] = number + 1;
        true
    }

    /// Whether all have come. Ranks of one class follow the same events, so it is the same collective where
    /// their numbers are.
    fn leave(&mut self, rank: usize, group: &[usize], arrival: u32) -> bool {
        let come = |&member: &usize| self.arrivals.get(&(member, arrival)).cloned();
        let Some(all) = group.iter().map(come).collect::<Option<Vec<Rc<Clock>>>>() else {
            return false;
        };
        for clock in all {
            for (own, &known) in self.clocks[rank].iter_mut().zip(&*clock) {
                *own = known.max(*own);
            }
        }
        self.clocks[rank][rank] += 1;
        true
    }
}
