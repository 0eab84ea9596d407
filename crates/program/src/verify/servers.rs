//! Servers answer their clients in whatever order they come: none waits for ever, and no weights are older than
//! a bound, in any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use shardloom_graph::ValueId;

use shardloom_plan::Staleness;

use super::row::{instructions, place};
use super::violation::Violation;
use crate::{
    Action, BodyId, Bucket, BucketId, Carried, Class, ClassId, Client, Content, Control, Cursor,
    Entry, Handler, Instruction, Next, Program, Route, RouteId, Run, ServedRange, View,
    WeightParam, When, overlap,
};

/// Checks what a server does for each of its clients in a step: it takes in what the client sends, ends one
/// step of the client's, waits for the others before it sends something back, and does nothing besides.
pub(super) fn check(program: &Program, found: &mut Vec<Violation>) {
    for (id, class) in program.classes() {
        let Some(serve) = class.serves() else { continue };
        let alone = class.mesh.size() == 1 && matches!(class.control[..], [Control::Serve(_)]);
        let clients: BTreeSet<ClassId> = serve.clients.iter().map(|client| client.class).collect();
        let is_served = |client| is_served(program, (id, class), client);
        if !alone || clients.len() != serve.clients.len() || !serve.clients.iter().all(is_served) {
            found.push(Violation::Service { place: class.place() });
        }
    }
}

/// Checks that what a class gets from servers, and sends to them, is each element of its buckets once, or of the
/// part that they sum, and that a server that holds parameters has the same elements of the same.
pub(super) fn ranges(program: &Program, id: ClassId, found: &mut Vec<Violation>) {
    let class = program.class(id);
    let has_servers = |bucket: &Bucket| !bucket.served.is_empty() || !bucket.summed.is_empty();
    let all = class.buckets().filter(|(_, it)| has_servers(it) && !it.is_looked_up());
    for (bucket_id, bucket) in all {
        let sums = bucket.served.is_empty();
        let mut ranges: Vec<Vec<(Range<usize>, ClassId)>> = vec![vec![]; 2];
        let mut fits = true;
        for route in &program.routes {
            let (kind, server) = match route.carried {
                Carried::Gradients(it)
                    if bucket.apart.is_none() && (route.from, it) == (id, bucket_id) =>
                {
                    (0, route.to)
                }
                Carried::Deltas(it)
                    if bucket.apart.is_some() && (route.from, it) == (id, bucket_id) =>
                {
                    (0, route.to)
                }
                Carried::Weights(it) if !sums && (route.to, it) == (id, bucket_id) => {
                    (1, route.from)
                }
                Carried::Sums(it) if sums && (route.to, it) == (id, bucket_id) => (1, route.from),
                _ => continue,
            };
            let [message] = &route.messages[..] else {
                fits = false;
                continue;
            };
            // Instructions show that they lie in tensors, where there are such.
            let ends = [&message.source, &message.target];
            if ends.iter().any(|it| it.start.len() != 1 || it.extent.len() != 1) {
                fits = false;
                continue;
            }
            let ends = ends.map(|it| it.range(0));
            let [here, there] = if kind == 0 { ends } else { [ends[1].clone(), ends[0].clone()] };
            let held = program.class(server).buckets.iter();
            let same = |held: &Bucket| {
                let there = elements(program.class(server), held, &there);
                there == elements(class, bucket, &here)
            };
            fits &= match sums {
                true => program.class(server).sums(),
                false => held
                    .filter(|held| held.elements == there.len() && held.replica_of.is_none())
                    .any(same),
            };
            ranges[kind].push((here, server));
        }
        fits &= bucket.served.iter().all(|it| has_replicas(program, (class, bucket), it));
        let served = bucket.served.iter().chain(&bucket.summed);
        let served = served.map(|it| (it.range.clone(), it.server));
        let served: Vec<_> = served.collect();
        let mut end = 0;
        for (range, _) in &served {
            fits &= range.start == end && !range.is_empty();
            end = range.end;
        }
        let is_all = if sums { end <= bucket.elements } else { end == bucket.elements };
        if !fits || !is_all || ranges.iter().any(|it| *it != served) {
            let (place, bucket) = (class.place(), bucket.name.clone());
            found.push(Violation::Served { place, bucket });
        }
    }
}

/// Whether each server that is to have a replica of a range of a worker's bucket has one, of the same elements, and
/// is sent by the owner what this adds up for it.
fn has_replicas(
    program: &Program,
    (worker, bucket): (&Class, &Bucket),
    served: &ServedRange,
) -> bool {
    let owner = program.class(served.server);
    let wanted = elements(worker, bucket, &served.range);
    let is_it = |class: &Class, held: &Bucket| elements(class, held, &(0..held.elements)) == wanted;
    served.replicas.iter().all(|&id| {
        let class = program.class(id);
        let is_owned = |bucket: BucketId| {
            owner.buckets.get(bucket.0 as usize).is_some_and(|own| is_it(owner, own))
        };
        let is_replica = |held: &Bucket| {
            held.replica_of.is_some_and(|(of, own)| of == served.server && is_owned(own))
                && is_it(class, held)
        };
        let is_sent = |route: &Route| {
            let Carried::Aggregated(bucket) = route.carried else { return false };
            (route.from, route.to) == (served.server, id) && is_owned(bucket)
        };
        class.buckets.iter().filter(|held| is_replica(held)).count() == 1
            && program.routes.iter().filter(|route| is_sent(route)).count() == 1
    })
}

/// Checks that each message between a worker and a server, or between servers, is, at both ends, of the elements of
/// parameters that its route says: at the end that names it of this bucket, on a server of those in what it is received
/// to or sent from.
pub(super) fn pieces(program: &Program, found: &mut Vec<Violation>) {
    for (id, class) in program.classes() {
        let bodies = (0..class.bodies.len() as u32).map(BodyId);
        let entries: Vec<Run> = bodies.map(|body| Run::alone(Entry::new(body, None))).collect();
        for step in instructions(class, id, &entries) {
            let (route, operand) = match step.instruction.action {
                Action::Send { route } => (route, step.instruction.reads[0]),
                Action::Receive { route } => (route, step.instruction.writes[0].to),
                _ => continue,
            };
            if !is_of_route(program, (id, class), route, operand) {
                let tensor = step.tensor_name(operand.tensor);
                found.push(Violation::Piece { at: step.site(), tensor, route: route.0 });
            }
        }
    }
}

/// Whether an operand of a class is what a route between a worker and a server carries.
fn is_of_route(
    program: &Program,
    (id, class): (ClassId, &Class),
    route: RouteId,
    operand: View,
) -> bool {
    let of = program.route(route);
    let (bucket, worker, content) = match of.carried {
        Carried::Gradients(bucket) => (bucket, of.from, Content::Gradient),
        Carried::Deltas(bucket) => (bucket, of.from, Content::WeightDelta),
        Carried::Sums(bucket) => (bucket, of.to, Content::Gradient),
        Carried::Weights(bucket) => (bucket, of.to, Content::Weight),
        Carried::Aggregated(bucket) => (bucket, of.from, Content::Gradient),
        Carried::Value(_) | Carried::Gradient(_) | Carried::Norm => return true,
        // Rows are looked at by themselves.
        Carried::Lookups(..) | Carried::LookedUp(..) | Carried::RowGradients(..) => return true,
    };
    let tensor = class.tensor(operand.tensor);
    let workers_bucket = program.class(worker).buckets.get(bucket.0 as usize);
    let Some(workers_bucket) = workers_bucket.filter(|_| tensor.content == content) else {
        return false;
    };
    if id == worker {
        return tensor.bucket == Some(bucket);
    }
    if class.sums() {
        // What it holds is what has come: that is followed as it runs.
        return true;
    }
    let Some(held) = tensor.bucket.map(|bucket| class.bucket(bucket)) else { return false };
    of.messages.iter().all(|message| {
        let (own, other) = match id == of.to {
            true => (&message.target, &message.source),
            false => (&message.source, &message.target),
        };
        let (here, there) = (own.range(0), other.range(0));
        elements(class, held, &here) == elements(program.class(worker), workers_bucket, &there)
    })
}

/// The parameters in a range of a bucket, each with which of its elements these are.
pub(super) fn elements(
    class: &Class,
    bucket: &Bucket,
    range: &Range<usize>,
) -> Vec<(ValueId, Range<usize>)> {
    let params = bucket.params.iter().map(|&param| class.param(param));
    let part = |param: &WeightParam| {
        let here = overlap(range, &param.range());
        (!here.is_empty()).then(|| (param.value, param.local(&here)))
    };
    params.filter_map(part).collect()
}

/// Whether a route brings what a server has added up to another.
fn is_aggregated(program: &Program, route: RouteId) -> bool {
    let route = program.routes.get(route.0 as usize);
    route.is_some_and(|route| matches!(route.carried, Carried::Aggregated(_)))
}

fn is_served(program: &Program, (id, class): (ClassId, &Class), client: &Client) -> bool {
    let handlers = &client.handlers;
    let ends: Vec<usize> = (0..handlers.len()).filter(|&it| handlers[it].publishes).collect();
    let [end] = ends[..] else { return false };
    let waits = |handler: &Handler| matches!(handler.when, When::Within(_));
    let mut all = handlers.iter().enumerate();
    all.all(|(place, handler)| {
        let body = class.bodies.get(handler.run.body.0 as usize);
        let Some(instructions) = body.map(|body| &body.instructions) else { return false };
        let is_between = |instruction: &Instruction| match instruction.action {
            Action::Send { route } if is_aggregated(program, route) => {
                let route = program.route(route);
                !waits(handler) && route.from == id && route.to != client.class
            }
            Action::Send { route } => {
                let route = program.routes.get(route.0 as usize);
                waits(handler)
                    && end < place
                    && route.is_some_and(|it| (it.from, it.to) == (id, client.class))
            }
            Action::Receive { route } => {
                let route = program.routes.get(route.0 as usize);
                route.is_some_and(|it| (it.from, it.to) == (client.class, id))
            }
            _ => true,
        };
        let begins = match (handler.when, instructions.first().map(|it| &it.action)) {
            (_, None) => false,
            (When::Sent | When::InTurn, Some(action)) => matches!(action, Action::Receive { .. }),
            (When::Within(_), Some(action)) => !matches!(action, Action::Receive { .. }),
        };
        begins && instructions.iter().all(is_between)
    })
}

/// What all orders come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// How many different states ranks can be in.
    pub states: usize,
    /// How many steps older than its own a worker's weights are at most: gradients of so many steps before
    /// it are missing from some worker.
    pub staleness: i64,
}

/// How far all ranks are. Messages under way follow from it.
#[derive(Clone)]
struct State<'p> {
    /// By class: the next of its messages.
    at: Vec<usize>,
    /// By class: how far a server is with its clients.
    serving: Vec<Option<Cursor<'p>>>,
    /// By class and client: how often it has taken in the client's gradients.
    taken: Vec<Vec<i64>>,
    /// By class and client: how many of these it has updated with.
    applied: Vec<Vec<i64>>,
    /// By class and client: how often it has sent the client the weights, of which the n-th are for after the
    /// client's n-th step.
    sent: Vec<Vec<i64>>,
    under_way: BTreeMap<RouteId, usize>,
}

/// Takes servers and workers of one rank each through every order of so many steps.
///
/// # Errors
/// Where a rank waits for ever, or gets weights that lack gradients from further before its own step than
/// `staleness` allows; at the end of the row, from any.
pub fn explore(program: &Program, steps: u32, staleness: Staleness) -> Result<Explored, Violation> {
    let messages: Vec<Vec<&Instruction>> =
        program.classes().map(|(id, _)| messages(program, id, steps)).collect();
    let clients = |class: &Class| class.serves().map_or(0, |it| it.clients.len());
    let counts: Vec<Vec<i64>> =
        program.classes.iter().map(|class| vec![0; clients(class)]).collect();
    let start = State {
        at: vec![0; program.classes.len()],
        serving: program.classes.iter().map(|it| serving(program, it, steps)).collect(),
        taken: counts.clone(),
        applied: counts.clone(),
        sent: counts,
        under_way: BTreeMap::new(),
    };
    let search = Search { program, steps: i64::from(steps), staleness, messages };
    let mut explored = Explored::default();
    let mut known = BTreeSet::from([key(&start)]);
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        explored.states += 1;
        let next = search.next(&state, &mut explored)?;
        if next.is_empty() {
            search.require_over(&state)?;
        }
        open.extend(next.into_iter().filter(|state| known.insert(key(state))));
    }
    Ok(explored)
}

/// What tells states apart: how far workers are, and what servers have taken in, applied and sent.
type Key = (Vec<usize>, [Vec<Vec<i64>>; 3]);

fn key(state: &State<'_>) -> Key {
    (state.at.clone(), [state.taken.clone(), state.applied.clone(), state.sent.clone()])
}

fn serving<'p>(program: &Program, class: &'p Class, steps: u32) -> Option<Cursor<'p>> {
    class.serves()?;
    let mut cursor = program.cursor(class, steps);
    (cursor.advance() == Some(Next::Choice)).then_some(cursor)
}

/// What a worker sends and receives in a row.
fn messages(program: &Program, id: ClassId, steps: u32) -> Vec<&Instruction> {
    let class = program.class(id);
    if class.serves().is_some() {
        return vec![];
    }
    let runs: Vec<Run> = program.cursor(class, steps).runs(true).collect();
    let all = instructions(class, id, &runs).map(|step| step.instruction);
    all.filter(|it| it.involves_others()).collect()
}

/// Whether a class is a server.
fn is_server(program: &Program, class: ClassId) -> bool {
    program.class(class).serves().is_some()
}

/// What is explored.
struct Search<'p> {
    program: &'p Program,
    steps: i64,
    staleness: Staleness,
    messages: Vec<Vec<&'p Instruction>>,
}

impl<'p> Search<'p> {
    /// All states that one rank's next message, or one answer of a server, leads to.
    fn next(
        &self,
        state: &State<'p>,
        explored: &mut Explored,
    ) -> Result<Vec<State<'p>>, Violation> {
        let mut next = vec![];
        for class in 0..self.messages.len() {
            if let Some(instruction) = self.messages[class].get(state.at[class]) {
                let mut after = state.clone();
                after.at[class] += 1;
                if exchange(&mut after, instruction) {
                    next.push(after);
                }
            }
            let Some(cursor) = &state.serving[class] else { continue };
            for (client, _) in cursor.open() {
                let mut after = state.clone();
                if self.answer(class, client, &mut after, explored)? {
                    next.push(after);
                }
            }
        }
        Ok(next)
    }

    /// Whether a server can answer a client now, and what that leads to.
    fn answer(
        &self,
        class: usize,
        client: usize,
        state: &mut State<'p>,
        explored: &mut Explored,
    ) -> Result<bool, Violation> {
        let Some(cursor) = &mut state.serving[class] else { return Ok(false) };
        let run = cursor.choose(client);
        if cursor.advance().is_none() {
            state.serving[class] = None;
        }
        let class_of = &self.program.classes[class];
        let body = &class_of.body_of(&run.entry).instructions;
        for instruction in body.iter().filter(|it| it.involves_others()) {
            if !exchange(state, instruction) {
                return Ok(false);
            }
        }
        if body.iter().any(|it| matches!(it.action, Action::Receive { .. })) {
            state.taken[class][client] += 1;
        }
        let updates = |it: &Instruction| match it.action {
            Action::Optimizer => true,
            Action::Add => class_of.tensor(it.writes[0].to.tensor).content == Content::Weight,
            _ => false,
        };
        if body.iter().any(updates) {
            // An update of replicas is with what their owner sends, and of what it owns with what workers do.
            let serves = class_of.serves().map_or(&[][..], |serve| &serve.clients);
            let is_owner = |client: usize| {
                serves.get(client).is_some_and(|it| is_server(self.program, it.class))
            };
            for other in 0..state.taken[class].len() {
                if other == client || (!is_owner(client) && !is_owner(other)) {
                    state.applied[class][other] = state.taken[class][other];
                }
            }
        }
        let sends_weights = |it: &Instruction| match it.action {
            Action::Send { route } => !is_aggregated(self.program, route),
            _ => false,
        };
        if body.iter().any(sends_weights) {
            let own = &mut state.sent[class][client];
            *own += 1;
            let own = *own;
            let staleness = own - state.applied[class].iter().min().copied().unwrap_or(own);
            explored.staleness = explored.staleness.max(staleness);
            let bound = match own == self.steps {
                true => Some(0),
                false => self.staleness.bound(),
            };
            if let Some(bound) = bound.map(i64::from)
                && staleness > bound
            {
                let place = place(class_of, run.entry.body);
                return Err(Violation::Staleness { place, steps: staleness, bound });
            }
        }
        Ok(true)
    }

    /// Checks that ranks which cannot go on are through.
    fn require_over(&self, state: &State<'_>) -> Result<(), Violation> {
        for (class, messages) in self.messages.iter().enumerate() {
            if state.at[class] < messages.len() || state.serving[class].is_some() {
                return Err(Violation::Waits { place: self.program.classes[class].place() });
            }
        }
        Ok(())
    }
}

/// Sends a message, or takes one in if it is there.
fn exchange(state: &mut State<'_>, instruction: &Instruction) -> bool {
    match instruction.action {
        Action::Send { route } => *state.under_way.entry(route).or_default() += 1,
        Action::Receive { route } => match state.under_way.get_mut(&route) {
            Some(count @ 1..) => *count -= 1,
            _ => return false,
        },
        _ => {}
    }
    true
}
