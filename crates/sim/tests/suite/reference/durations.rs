//! How long everything takes: drawn at random, or what the cost model says of each instruction alone.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use shardloom_cluster::{Cluster, DeviceId, NodeId};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, Group, Guard, Program, Rank, RouteId};
use shardloom_sim::{Actor, Call, CostModel, Driver, SimError};

use super::reading::At;
use super::timing::{Event, Part, Times};

/// Durations that depend on a seed and on where an instruction stands; some are none.
#[derive(Clone, Copy)]
pub struct Drawn<'p> {
    pub program: &'p Program,
    pub seed: u64,
    /// Whether launching takes time.
    pub launches: bool,
}

impl Drawn<'_> {
    fn draw(&self, what: u64, at: At, more: u64) -> Picos {
        let At { rank, class, position, body, index, microbatch, step, age, occurrence } = at;
        let microbatch = microbatch.map_or(u64::MAX, u64::from);
        let numbers = [
            self.seed,
            what,
            u64::from(rank.0),
            u64::from(class.0),
            position as u64,
            u64::from(body.0),
            index as u64,
            microbatch,
            u64::from(step),
            u64::from(age),
            u64::from(occurrence),
            more,
        ];
        let mixed = numbers.into_iter().fold(0, mix);
        // Some ranks are slow, so that others run far ahead of them.
        let slower = [1, 1, 6, 40][mix(self.seed, u64::from(rank.0)) as usize % 4];
        Picos(if mixed.is_multiple_of(4) { 0 } else { slower * ((mixed >> 8) % 60) })
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014) over a running sum.
fn mix(before: u64, number: u64) -> u64 {
    let mut z = before.wrapping_add(number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Times for Drawn<'_> {
    fn own(&self, at: At) -> Picos {
        self.draw(0, at, 0)
    }

    fn message(&self, at: At, route: RouteId, number: usize) -> Picos {
        self.draw(1, at, u64::from(route.0) << 32 | number as u64)
    }

    fn inflow(&self, at: At) -> Picos {
        self.draw(6, at, 0)
    }

    fn receive(&self, at: At) -> Picos {
        Picos(self.draw(2, at, 0).0 / 8)
    }

    fn collective(&self, members: &[At]) -> Picos {
        let all = (0..).zip(members).map(|(place, &at)| self.draw(3, at, place).0);
        Picos(all.fold(0, |sum, each| (sum + each) % 60))
    }

    fn launch(&self, at: At) -> Picos {
        match self.launches {
            true => Picos(self.draw(5, at, 0).0 / 4),
            false => Picos::ZERO,
        }
    }

    fn is_right(&self, step: u32) -> bool {
        mix(mix(self.seed, 4), u64::from(step)).is_multiple_of(2)
    }
}

fn at(call: &Call<'_>) -> At {
    At {
        rank: call.actor.rank,
        class: call.actor.class,
        position: call.actor.position,
        body: call.run.entry.body,
        index: call.index,
        microbatch: call.run.microbatch,
        step: call.run.at_step(),
        age: call.run.entry.age,
        occurrence: call.run.entry.occurrence,
    }
}

impl Driver for Drawn<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn launches(&self) -> bool {
        self.launches
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Times::launch(self, at(call)))
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(self.own(at(call)))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let messages = self.program.route(route).messages.iter().enumerate();
        let sent = messages.filter(|(_, message)| message.from == call.actor.position);
        durations.extend(sent.map(|(number, _)| self.message(at(call), route, number)));
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Times::receive(self, at(call)))
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Times::inflow(self, at(call)))
    }

    fn holds(&mut self, _: Actor, _: &Guard, step: i64) -> Result<bool, SimError> {
        Ok(Times::is_right(self, step as u32))
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let members: Vec<At> = members.iter().map(at).collect();
        Ok(Times::collective(self, &members))
    }
}

/// What was asked of a driver, and what it answered, by rank.
pub type Log = Rc<RefCell<BTreeMap<Rank, Vec<Event>>>>;

/// Passes calls on to another driver and writes them down.
pub struct Logged<D> {
    pub driver: D,
    pub log: Log,
}

impl<D> Logged<D> {
    fn write(&self, call: &Call<'_>, part: Part, durations: Vec<Picos>) {
        let event = Event { at: at(call), part, start: call.start, durations };
        self.log.borrow_mut().entry(call.actor.rank).or_default().push(event);
    }
}

impl<D: Driver> Driver for Logged<D> {
    type Error = D::Error;

    fn clock(&self) -> Clock {
        self.driver.clock()
    }

    fn launches(&self) -> bool {
        self.driver.launches()
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        self.driver.launch(call)
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let duration = self.driver.local(call)?;
        self.write(call, Part::Own, vec![duration]);
        Ok(duration)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), D::Error> {
        self.driver.send(call, durations)?;
        self.write(call, Part::Sends, durations.clone());
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let duration = self.driver.receive(call)?;
        self.write(call, Part::Receive, vec![duration]);
        Ok(duration)
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        self.driver.inflow(call)
    }

    fn holds(&mut self, actor: Actor, guard: &Guard, step: i64) -> Result<bool, D::Error> {
        self.driver.holds(actor, guard, step)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, D::Error> {
        let duration = self.driver.collective(members)?;
        members.iter().for_each(|call| self.write(call, Part::Collective, vec![duration]));
        Ok(duration)
    }
}

/// The cost model's seconds, asked for rank by rank, with the sharing of uplinks counted here: groups that
/// run one collective together, and messages of one route, share the way out of each node that they leave.
pub struct Modelled<'a> {
    pub costs: CostModel<'a>,
    pub cluster: &'a Cluster,
    pub program: &'a Program,
}

impl Modelled<'_> {
    fn instruction(&self, at: At) -> &shardloom_program::Instruction {
        &self.program.class(at.class).body(at.body).instructions[at.index]
    }

    fn device(&self, rank: Rank) -> DeviceId {
        let (class, position) = self.program.locate(rank);
        self.program.class(class).devices[position]
    }

    fn node(&self, rank: Rank) -> NodeId {
        self.cluster.node_of(self.device(rank)).expect("the cluster has it")
    }

    /// The different groups that run a collective together with that of `at`.
    fn siblings(&self, at: At, group: &Group) -> BTreeSet<Vec<Rank>> {
        let positions = 0..self.program.class(at.class).mesh.size();
        positions.map(|position| self.program.members(at.class, position, group)).collect()
    }
}

impl Times for Modelled<'_> {
    fn own(&self, at: At) -> Picos {
        let seconds = self.costs.local_seconds(at.class, at.position, self.instruction(at));
        Picos::from_seconds(seconds.expect("it has a cost"))
    }

    fn message(&self, _: At, route: RouteId, number: usize) -> Picos {
        let route = self.program.route(route);
        let [from, to] = [route.from, route.to].map(|class| self.program.class(class));
        let sender = |it: &shardloom_program::Message| Rank(from.first_rank.0 + it.from as u32);
        let receiver = |it: &shardloom_program::Message| Rank(to.first_rank.0 + it.to as u32);
        let message = &route.messages[number];
        let [start, end] = [self.node(sender(message)), self.node(receiver(message))];
        let between_nodes =
            |it: &&shardloom_program::Message| self.node(sender(it)) != self.node(receiver(it));
        let others = || route.messages.iter().filter(between_nodes);
        let leave: BTreeSet<Rank> =
            others().map(sender).filter(|&rank| self.node(rank) == start).collect();
        let enter: BTreeSet<Rank> =
            others().map(receiver).filter(|&rank| self.node(rank) == end).collect();
        let sharing = if start == end { 1 } else { leave.len().max(enter.len()) as u32 };
        let [from, to] = [self.device(sender(message)), self.device(receiver(message))];
        let bytes = route.message_bytes(message);
        let seconds = self.costs.message_seconds(from, to, bytes, sharing);
        Picos::from_seconds(seconds.expect("it has a cost"))
    }

    /// Between servers and workers, over the receiver's own card.
    fn inflow(&self, at: At) -> Picos {
        let Action::Receive { route } = self.instruction(at).action else { return Picos::ZERO };
        let route = self.program.route(route);
        if !route.is_of_server() {
            return Picos::ZERO;
        }
        let sender = self.program.class(route.from).first_rank;
        let [from, to] = [self.device(sender), self.device(at.rank)];
        let bytes: u64 = route.messages.iter().map(|it| route.message_bytes(it)).sum();
        let seconds = self.costs.inflow_seconds(from, to, bytes);
        Picos::from_seconds(seconds.expect("it has a cost"))
    }

    fn receive(&self, _: At) -> Picos {
        Picos::ZERO
    }

    fn collective(&self, members: &[At]) -> Picos {
        let first = members[0];
        let (class, instruction) = (self.program.class(first.class), self.instruction(first));
        let exchange = self.program.exchange(class, first.position, instruction);
        let exchange = exchange.expect("it is a collective");
        let nodes = |ranks: &Vec<Rank>| -> BTreeSet<NodeId> {
            ranks.iter().map(|&rank| self.node(rank)).collect()
        };
        let ranks: Vec<Rank> = members.iter().map(|at| at.rank).collect();
        let siblings = self.siblings(first, &exchange.group);
        let leaving: Vec<BTreeSet<NodeId>> =
            siblings.iter().map(nodes).filter(|nodes| nodes.len() > 1).collect();
        let sharing = nodes(&ranks)
            .iter()
            .map(|node| leaving.iter().filter(|others| others.contains(node)).count() as u32)
            .max();
        let devices: Vec<DeviceId> = ranks.iter().map(|&rank| self.device(rank)).collect();
        let sharing = sharing.unwrap_or(0).max(1);
        let seconds = self.costs.collective_seconds(&exchange, &devices, sharing);
        let staging = self.costs.staging_seconds(first.class, first.position, instruction);
        Picos::from_seconds(seconds.expect("it has a cost"))
            + Picos::from_seconds(staging.expect("it has a cost"))
    }

    fn launch(&self, at: At) -> Picos {
        Picos::from_seconds(self.costs.launch_seconds(at.class, self.instruction(at)))
    }

    fn is_right(&self, step: u32) -> bool {
        (step + 1).is_multiple_of(self.program.period())
    }
}
