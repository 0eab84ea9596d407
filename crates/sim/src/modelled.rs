//! The driver that answers from the cost model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use shardloom_cluster::{Cluster, DeviceId, DeviceKind, NodeId};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::Graph;
use shardloom_plan::Mesh;
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{
    Action, Body, BodyId, Carried, ClassId, Exchange, Format, Group, Guard, Instruction, Program,
    Queue, Rank, Route, RouteId,
};
use smallvec::SmallVec;

use crate::contention::{Siblings, concurrent_messages};
use crate::held::ExtraBytes;
use crate::node_patterns::{NodePatterns, Relation};
use crate::{Actor, Call, CostModel, Driver, RowCounts, SimError};

/// Durations from a [`CostModel`], each asked for once.
///
/// An actor that stands for a class has the durations of the class's slowest rank, group or sender.
#[derive(Debug)]
pub struct Modelled<'a> {
    costs: CostModel<'a>,
    classes: Vec<ClassDurations>,
    patterns: NodePatterns,
    groups: FxHashMap<GroupsKey, Shapes>,
    /// Different shapes of groups, with a group of that shape.
    shapes: Vec<Shape>,
    shape_of: BTreeMap<Signature, u32>,
    collectives: HashMap<(Kind, Algorithm, usize, usize, u32), Picos>,
    /// Per route.
    sends: Vec<Option<Arc<Sends>>>,
    /// Of routes that go between stages.
    sends_alike: FxHashMap<SendsKey, Arc<Sends>>,
}

/// Of all messages of a sender; mostly there is one.
type SenderDurations = SmallVec<[Picos; 1]>;

/// How long the messages of a route take.
#[derive(Clone, Debug)]
struct Sends {
    /// Per sender, per message.
    durations: Vec<SenderDurations>,
    /// The sender that takes longest for all of its own.
    slowest: usize,
}

impl Sends {
    fn of(durations: Vec<SenderDurations>) -> Sends {
        let total = |sender: &usize| durations[*sender].iter().map(|each| each.0).sum::<u64>();
        let slowest = (0..durations.len()).max_by_key(total).unwrap_or(0);
        Sends { durations, slowest }
    }
}

/// What is known of a class's instructions.
#[derive(Debug)]
struct ClassDurations {
    /// For each position the first one with the same kind of device.
    alike: Vec<u32>,
    /// The positions that are such a first one.
    firsts: Vec<u32>,
    /// Per body, per instruction.
    bodies: Vec<Vec<Known>>,
    /// How many ranks are on each node, once somebody has asked.
    on_nodes: BTreeMap<NodeId, u32>,
}

/// What is known of one instruction.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Its launch by the host.
    launch: Option<Picos>,
    /// What it takes of memory besides tensors.
    extra: Option<ExtraBytes>,
    /// Its local part, per position of [`ClassDurations::firsts`].
    local: SmallVec<[(u32, Picos); 1]>,
    /// As a collective of folded classes.
    slowest: Option<Picos>,
    /// Whether it touches what differs in size by position.
    by_position: bool,
}

/// How the groups that run one collective together lie on the nodes.
#[derive(Debug)]
struct Shapes {
    /// The group of each position; empty where there is only one.
    group_of: Vec<usize>,
    /// The shape of each group.
    of_group: Vec<u32>,
    /// All different ones.
    different: Vec<u32>,
}

#[derive(Debug)]
struct Shape {
    devices: Vec<DeviceId>,
    concurrent: u32,
}

/// Groups alike: along a mesh, those of all classes with this mesh and this pattern of nodes.
type GroupsKey = (Option<(Mesh, u32)>, Group);

/// Messages alike: where their list is, how elements are stored, and how the classes are placed.
type SendsKey = (usize, Format, Relation);

/// Groups with the same signature take the same time: for each node in order the kind of node and how
/// many members are there, then how many groups share its uplink.
type Signature = (Vec<(usize, u32)>, u32);

impl<'a> Modelled<'a> {
    /// The durations of `program`, lowered from `graph`, on `cluster`.
    ///
    /// # Errors
    /// If the cluster lacks a device of the program.
    pub fn new(
        graph: &'a Graph,
        cluster: &'a Cluster,
        program: &'a Program,
    ) -> Result<Modelled<'a>, SimError> {
        let mut classes = vec![];
        for class in &program.classes {
            let kinds: Vec<&DeviceKind> =
                class.devices.iter().map(|&it| cluster.kind_of(it)).collect::<Result<_, _>>()?;
            let mut firsts: Vec<u32> = vec![];
            let mut alike = vec![];
            for (position, kind) in (0u32..).zip(&kinds) {
                let same = |&first: &u32| std::ptr::eq(kinds[first as usize], *kind);
                let first = firsts.iter().copied().find(same);
                alike.push(first.unwrap_or(position));
                firsts.extend(first.is_none().then_some(position));
            }
            let known = |instruction: &Instruction| {
                let by_position = instruction.operands().any(|view| class.differs(view));
                Known { by_position, ..Known::default() }
            };
            let known = |body: &Body| body.instructions.iter().map(known).collect();
            let bodies = class.bodies.iter().map(known).collect();
            classes.push(ClassDurations { alike, firsts, bodies, on_nodes: BTreeMap::new() });
        }
        Ok(Modelled {
            costs: CostModel::new(graph, cluster, program),
            classes,
            patterns: NodePatterns::of(&program.classes, cluster)?,
            groups: FxHashMap::default(),
            shapes: vec![],
            shape_of: BTreeMap::new(),
            collectives: HashMap::new(),
            sends: vec![None; program.routes.len()],
            sends_alike: FxHashMap::default(),
        })
    }

    /// The same where so many rows go to experts as `rows` says.
    #[must_use]
    pub fn with_rows(mut self, rows: RowCounts) -> Modelled<'a> {
        *self.costs.row_counts() = rows;
        self
    }

    /// How many rows go to experts, to be added to by who finds out while running.
    pub fn row_counts(&mut self) -> &mut RowCounts {
        self.costs.row_counts()
    }

    /// Bytes that `position` of `class` sends less in a step than if all slots for rows were filled.
    ///
    /// # Errors
    /// If how many rows there are is not known.
    pub fn unfilled_bytes(&self, class: ClassId, position: usize) -> Result<u64, SimError> {
        self.costs.unfilled_bytes(class, position)
    }

    fn known(&mut self, class: ClassId, body: BodyId, index: usize) -> &mut Known {
        &mut self.classes[class.0 as usize].bodies[body.0 as usize][index]
    }

    /// The local part of a call's instruction at the device kind that `first` has.
    fn local_at(&mut self, call: &Call<'_>, first: u32) -> Result<Picos, SimError> {
        let class = call.actor.class;
        let known = &self.known(class, call.run.entry.body, call.index).local;
        if let Some(&(_, picos)) = known.iter().find(|&&(position, _)| position == first) {
            return Ok(picos);
        }
        let seconds = self.costs.local_seconds(class, first as usize, call.instruction)?;
        let picos = Picos::from_seconds(seconds);
        self.known(class, call.run.entry.body, call.index).local.push((first, picos));
        Ok(picos)
    }

    /// The shape of each group like `group` of `class`.
    fn group_shapes(&mut self, class: ClassId, group: &Group) -> Result<&Shapes, SimError> {
        let of_mesh = || (self.costs.program().class(class).mesh, self.patterns.pattern(class));
        let key = (matches!(group, Group::Mesh(_)).then(of_mesh), group.clone());
        if !self.groups.contains_key(&key) {
            let siblings = Siblings::of(self.costs.program(), class, group);
            let concurrent = siblings.concurrent(self.costs.cluster())?;
            let mut of_group = vec![];
            for (devices, concurrent) in siblings.groups.into_iter().zip(concurrent) {
                let signature = (node_runs(self.costs.cluster(), &devices)?, concurrent);
                let next = self.shapes.len() as u32;
                let shape = *self.shape_of.entry(signature).or_insert(next);
                if shape == next {
                    self.shapes.push(Shape { devices, concurrent });
                }
                of_group.push(shape);
            }
            let mut different = of_group.clone();
            different.sort_unstable();
            different.dedup();
            let shapes = Shapes { group_of: siblings.group_of, of_group, different };
            self.groups.insert(key.clone(), shapes);
        }
        Ok(&self.groups[&key])
    }

    fn exchange_on(&mut self, exchange: &Exchange, shape: u32) -> Result<Picos, SimError> {
        let Exchange { kind, algorithm, elements, element_bytes, .. } = *exchange;
        let key = (kind, algorithm, elements, element_bytes, shape);
        if let Some(&picos) = self.collectives.get(&key) {
            return Ok(picos);
        }
        let Shape { devices, concurrent } = &self.shapes[shape as usize];
        let seconds = self.costs.collective_seconds(exchange, devices, *concurrent)?;
        let picos = Picos::from_seconds(seconds);
        self.collectives.insert(key, picos);
        Ok(picos)
    }

    fn exchange(&self, call: &Call<'_>) -> Result<Option<Exchange>, SimError> {
        let Actor { class, position, .. } = call.actor;
        let microbatch = call.run.microbatch.unwrap_or(0);
        self.costs.exchange(class, position, call.instruction, microbatch)
    }

    /// The slowest of all groups like the one of a call's instruction.
    fn slowest_collective(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let Call { actor: Actor { class, .. }, run, index, .. } = *call;
        let body = run.entry.body;
        if let Some(picos) = self.known(class, body, index).slowest {
            return Ok(picos);
        }
        let mut slowest = Picos::ZERO;
        if let Some(exchange) = self.exchange(call)? {
            for shape in self.group_shapes(class, &exchange.group)?.different.clone() {
                slowest = slowest.max(self.exchange_on(&exchange, shape)?);
            }
        }
        self.known(class, body, index).slowest = Some(slowest);
        Ok(slowest)
    }

    /// The group of a call's actor.
    fn own_collective(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let Actor { class, position, .. } = call.actor;
        let Some(exchange) = self.exchange(call)? else { return Ok(Picos::ZERO) };
        let shapes = self.group_shapes(class, &exchange.group)?;
        let group = shapes.group_of.get(position).copied().unwrap_or(0);
        let shape = shapes.of_group[group];
        self.exchange_on(&exchange, shape)
    }

    /// An exchange among the group of some actors; where these are folded classes, the slowest like it.
    fn exchange_among(
        &mut self,
        members: &[Call<'_>],
        exchange: &Exchange,
    ) -> Result<Picos, SimError> {
        let Actor { class, position, .. } = members[0].actor;
        let shapes = self.group_shapes(class, &exchange.group)?;
        let of_group = match members.iter().any(|member| member.actor.multiplicity > 1) {
            true => shapes.different.clone(),
            false => vec![shapes.of_group[shapes.group_of.get(position).copied().unwrap_or(0)]],
        };
        let mut slowest = Picos::ZERO;
        for shape in of_group {
            slowest = slowest.max(self.exchange_on(exchange, shape)?);
        }
        Ok(slowest)
    }

    /// How long a fetch takes that one position of a class does from another, while all others of the class fetch
    /// likewise: those on its node share the way into that.
    fn fetch_between(
        &mut self,
        call: &Call<'_>,
        (to, from): (usize, usize),
    ) -> Result<Picos, SimError> {
        let (id, cluster) = (call.actor.class, self.costs.cluster());
        let class = self.costs.program().class(id);
        let [device, other] = [to, from].map(|position| class.devices[position]);
        let node = cluster.node_of(device)?;
        let concurrent = match cluster.node_of(other)? == node {
            true => 1,
            false => self.on_nodes(id)?[&node],
        };
        let bytes = self.costs.program().instruction_sent_bytes(id, to, call.instruction);
        let seconds = self.costs.message_seconds(other, device, bytes, concurrent)?;
        Ok(Picos::from_seconds(seconds))
    }

    /// How many ranks of a class are on each node.
    fn on_nodes(&mut self, id: ClassId) -> Result<&BTreeMap<NodeId, u32>, SimError> {
        let known = &mut self.classes[id.0 as usize].on_nodes;
        if known.is_empty() {
            for &device in &self.costs.program().class(id).devices {
                *known.entry(self.costs.cluster().node_of(device)?).or_default() += 1;
            }
        }
        Ok(known)
    }

    /// Pairs of positions of a class, who fetches and from whom, one of which takes longest: of each kind of node,
    /// with so many ranks, the first one's from within it and from all other nodes.
    fn unlike_pairs(&mut self, id: ClassId) -> Result<Vec<(usize, usize)>, SimError> {
        let on_nodes = self.on_nodes(id)?.clone();
        let (cluster, class) = (self.costs.cluster(), self.costs.program().class(id));
        let mut positions: BTreeMap<NodeId, [Option<usize>; 2]> = BTreeMap::new();
        for (position, &device) in class.devices.iter().enumerate() {
            let two = positions.entry(cluster.node_of(device)?).or_default();
            if let Some(place) = two.iter_mut().find(|it| it.is_none()) {
                *place = Some(position);
            }
        }
        let mut known = BTreeSet::new();
        let mut pairs = vec![];
        for (node, &[first, second]) in &positions {
            let Some(first) = first else { continue };
            let group = cluster.group_of(class.devices[first])?;
            if !known.insert((group, on_nodes[node])) {
                continue;
            }
            pairs.extend(second.map(|second| (first, second)));
            let others = positions.iter().filter(|(other, _)| *other != node);
            pairs.extend(others.filter_map(|(_, [other, _])| Some((first, (*other)?))));
        }
        Ok(pairs)
    }

    /// Durations of a route's messages.
    fn route(&mut self, id: RouteId) -> Result<Arc<Sends>, SimError> {
        let program = self.costs.program();
        let route = program.route(id);
        let may_change = route.moves_rows() && self.costs.finds_rows_out();
        if let Some(known) = self.sends[id.0 as usize].as_ref().filter(|_| !may_change) {
            return Ok(known.clone());
        }
        let of_stages = matches!(route.carried, Carried::Value(_) | Carried::Gradient(_));
        let alike = (of_stages && !route.moves_rows()).then(|| {
            let relation = self.patterns.relation([route.from, route.to]);
            (route.messages.as_ptr() as usize, route.format, relation)
        });
        let known = alike.and_then(|alike| self.sends_alike.get(&alike).cloned());
        let sends = match known {
            Some(known) => known,
            None => Arc::new(self.timed(route)?),
        };
        if let Some(alike) = alike {
            self.sends_alike.insert(alike, sends.clone());
        }
        self.sends[id.0 as usize] = Some(sends.clone());
        Ok(sends)
    }

    fn timed(&self, route: &Route) -> Result<Sends, SimError> {
        let program = self.costs.program();
        let [from, to] = [route.from, route.to].map(|class| program.class(class));
        let concurrent = concurrent_messages(program, self.costs.cluster(), route)?;
        let mut sends = vec![SenderDurations::new(); from.mesh.size()];
        for (message, concurrent) in route.messages.iter().zip(concurrent) {
            let (sender, receiver) = (from.devices[message.from], to.devices[message.to]);
            let bytes = self.costs.message_bytes(route, message)?;
            let seconds = self.costs.message_seconds(sender, receiver, bytes, concurrent)?;
            sends[message.from].push(Picos::from_seconds(seconds));
        }
        Ok(Sends::of(sends))
    }
}

impl Driver for Modelled<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn launches(&self) -> bool {
        self.costs.cluster().stack().host.launches()
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let (class, body) = (call.actor.class, call.run.entry.body);
        if let Some(picos) = self.known(class, body, call.index).launch {
            return Ok(picos);
        }
        let picos = Picos::from_seconds(self.costs.launch_seconds(class, call.instruction));
        self.known(class, body, call.index).launch = Some(picos);
        Ok(picos)
    }

    fn extra_bytes(&mut self, call: &Call<'_>) -> ExtraBytes {
        let (Actor { class, position, .. }, body) = (call.actor, call.run.entry.body);
        if let Some(bytes) = self.known(class, body, call.index).extra {
            return bytes;
        }
        // Values, of which operators have some for operands, are equally large at all positions.
        let bytes = self.costs.extra_bytes(class, position, call.instruction);
        self.known(class, body, call.index).extra = Some(bytes);
        bytes
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let actor = call.actor;
        let spec = self.costs.program().class(actor.class);
        if actor.multiplicity == 1 && self.costs.depends_on_rows(spec, call.instruction) {
            let microbatch = call.run.microbatch.unwrap_or(0);
            let (class, position) = (actor.class, actor.position);
            let seconds =
                self.costs.local_seconds_of(class, position, call.instruction, microbatch)?;
            return Ok(Picos::from_seconds(seconds));
        }
        let class = &self.classes[actor.class.0 as usize];
        if actor.multiplicity > 1 {
            let mut slowest = Picos::ZERO;
            for index in 0..class.firsts.len() {
                let first = self.classes[actor.class.0 as usize].firsts[index];
                slowest = slowest.max(self.local_at(call, first)?);
            }
            return Ok(slowest);
        }
        // Shards differ by position; everything else only by device.
        let known = &class.bodies[call.run.entry.body.0 as usize][call.index];
        match known.by_position {
            true => {
                let position = actor.position;
                let seconds = self.costs.local_seconds(actor.class, position, call.instruction)?;
                Ok(Picos::from_seconds(seconds))
            }
            false => {
                let first = class.alike[actor.position];
                self.local_at(call, first)
            }
        }
    }

    fn fetch(&mut self, call: &Call<'_>, from: Rank) -> Result<Picos, SimError> {
        let Actor { class, position, multiplicity, .. } = call.actor;
        if multiplicity == 1 {
            return self.fetch_between(call, (position, self.costs.program().locate(from).1));
        }
        if let Some(picos) = self.known(class, call.run.entry.body, call.index).slowest {
            return Ok(picos);
        }
        let mut slowest = Picos::ZERO;
        for pair in self.unlike_pairs(class)? {
            slowest = slowest.max(self.fetch_between(call, pair)?);
        }
        self.known(class, call.run.entry.body, call.index).slowest = Some(slowest);
        Ok(slowest)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let actor = call.actor;
        let senders = self.route(route)?;
        let sender = match actor.multiplicity > 1 {
            true => senders.slowest,
            false => actor.position,
        };
        durations.extend(&senders.durations[sender]);
        Ok(())
    }

    fn receive(&mut self, _call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    /// Of messages between servers and workers. Between stages one message at a time goes each way.
    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let Action::Receive { route } = call.instruction.action else { return Ok(Picos::ZERO) };
        let program = self.costs.program();
        let route = program.route(route);
        if !route.is_of_server() {
            return Ok(Picos::ZERO);
        }
        let [from, to] = [route.from, route.to].map(|class| program.class(class));
        let own = route.messages.iter().filter(|message| message.to == call.actor.position);
        let mut seconds = 0.0;
        for message in own {
            let (sender, receiver) = (from.devices[message.from], to.devices[message.to]);
            let bytes = self.costs.message_bytes(route, message)?;
            seconds += self.costs.inflow_seconds(sender, receiver, bytes)?;
        }
        Ok(Picos::from_seconds(seconds))
    }

    fn holds(&mut self, actor: Actor, guard: &Guard, step: i64) -> Result<bool, SimError> {
        let class = self.costs.program().class(actor.class);
        Ok(class.is_due(guard.on, step.max(0) as u64).unwrap_or(true))
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let first = &members[0];
        let Actor { class, position, .. } = first.actor;
        let staging = self.costs.staging_seconds(class, position, first.instruction)?;
        let exchange = match members.iter().any(|member| member.actor.multiplicity > 1) {
            true => self.slowest_collective(first)?,
            false => self.own_collective(first)?,
        };
        Ok(exchange + Picos::from_seconds(staging))
    }

    fn negotiate(&mut self, members: &[Call<'_>], _: u64) -> Result<Picos, SimError> {
        let call = &members[0];
        let Queue::Negotiated(communicator) = call.instruction.queue else {
            return Ok(Picos::ZERO);
        };
        let program = self.costs.program();
        let mut all = Picos::ZERO;
        for told in program.told(program.class(call.actor.class), communicator) {
            all += self.exchange_among(members, &told)?;
        }
        Ok(all)
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, SimError> {
        let members = &requests[0];
        if let [_] = requests {
            return self.collective(members);
        }
        let mut all: Option<Exchange> = None;
        for request in requests {
            let Some(one) = self.exchange(&request[0])? else { continue };
            match &mut all {
                Some(all) => all.elements += one.elements,
                None => all = Some(one),
            }
        }
        let Some(all) = all else { return Ok(Picos::ZERO) };
        let Actor { class, position, .. } = members[0].actor;
        let copies = self.costs.fusion_seconds(class, position, &all)?;
        Ok(self.exchange_among(members, &all)? + Picos::from_seconds(copies))
    }
}

/// For each node that `devices` are on, in order, the group of nodes that it belongs to and how many of
/// them it holds.
fn node_runs(cluster: &Cluster, devices: &[DeviceId]) -> Result<Vec<(usize, u32)>, SimError> {
    let mut sorted = devices.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(usize, u32)> = vec![];
    let mut before = None;
    for device in sorted {
        let node = cluster.node_of(device)?;
        match runs.last_mut() {
            Some((_, members)) if before == Some(node) => *members += 1,
            _ => runs.push((cluster.group_of(device)?, 1)),
        }
        before = Some(node);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
