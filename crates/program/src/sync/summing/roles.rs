//! Servers that sum gradients, and their workers (see [`crate::sync::Summing`]): a worker sends the pieces of a
//! bucket once its gradients are whole, and ends a step by receiving their sums and updating; a server receives a
//! piece from all workers, sums it in their order, and sends them the sum.
//!
//! Pieces go in the order in which buckets become whole, which is the same in every step, and servers sum them in
//! this order. Or they go by priority, in the order of their next use: then servers sum whichever have come from all
//! workers first, and send their sums by the same priority, as on a worker's device they share its links with its pieces.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ValueId};
use shardloom_plan::{Plan, SendOrder, Summation};
use shardloom_schedule::ScheduleError;

use super::next_use;
use super::pieces::dealt;
use crate::class::{Body, BodyId, BodyKind, BucketId, Class, ClassId, Part, ServedRange};
use crate::lower::{Boundaries, Order, Parameters, epilogue};
use crate::sync::served_rows::Tables;
use crate::sync::{Gradients, Role, SUM, add, server};
use crate::{
    Action, Carried, Content, Control, Copies, Entry, Extent, Format, Group, Instruction, Keep,
    Mode, Priority, ProgramError, Route, RouteId, Shape, Tensor, View, Window,
};

/// A piece of a worker's bucket: its way to the server that sums it, and back.
#[derive(Clone, Debug)]
struct Piece {
    elements: usize,
    server: ClassId,
    gradients: RouteId,
    sums: RouteId,
}

/// What servers sum for workers.
pub(crate) struct Sums<'a> {
    servers: u32,
    /// By worker and bucket, the pieces in order.
    pieces: Vec<Vec<Vec<Piece>>>,
    /// The buckets in the order in which a forward pass first uses them, where pieces are sent in this order.
    by_next_use: Option<Vec<BucketId>>,
    /// The tables that lie on the servers.
    tables: Option<Tables<'a>>,
}

impl<'a> Sums<'a> {
    /// What servers sum for the workers with these parameters. Adds the routes of pieces to those of values, and to
    /// parameters what is done with a bucket once it is whole.
    ///
    /// # Errors
    /// If there are more servers than pieces.
    pub fn of(
        summation: Summation,
        graph: &Graph,
        workers: &mut [Parameters<'a>],
        boundaries: &mut Boundaries,
    ) -> Result<Sums<'a>, ProgramError> {
        let first = workers.len() as u32;
        let dealt = dealt(&workers[0], summation, workers.len())?;
        let by_next_use = match summation.order {
            SendOrder::Backward => None,
            SendOrder::NextUse => Some(by_first_use(&workers[0], graph)),
        };
        let priority = |bucket: BucketId| {
            let place = by_next_use.as_ref()?.iter().position(|&it| it == bucket)? as u32;
            Some(Priority { place, most_under_way: summation.most_under_way()? })
        };
        let mut pieces = vec![];
        for (worker, parameters) in (0u32..).map(ClassId).zip(workers.iter_mut()) {
            let mut of_worker = vec![];
            let holds_all = !parameters.lie_on_servers();
            for (index, dealt) in dealt.iter().enumerate() {
                let id = BucketId(index as u32);
                let summed = dealt.iter().map(|it| {
                    let server = ClassId(first + it.server.0);
                    ServedRange { server, ..it.clone() }
                });
                let summed: Vec<ServedRange> = summed.collect();
                let gradients = parameters.replicated(id).gradients;
                let piece = |it: &ServedRange| {
                    let Gradients { reduced, .. } =
                        gradients.expect("only what is trained is dealt");
                    let format = parameters.tensor(reduced).format;
                    let mut add = |carried, ends, priority| {
                        let route = Route::of_range(carried, ends, format, it.range.len());
                        boundaries.add_route(Route { priority, ..route })
                    };
                    let (here, there) = ((worker, it.range.start), (it.server, 0));
                    Piece {
                        elements: it.range.len(),
                        server: it.server,
                        gradients: add(Carried::Gradients(id), [here, there], priority(id)),
                        sums: add(Carried::Sums(id), [there, here], priority(id)),
                    }
                };
                of_worker.push(summed.iter().map(piece).collect());
                let bucket = &mut parameters.buckets[index];
                // Every worker has all gradients, and so their norm, if no server has some.
                bucket.owned_here |= holds_all;
                bucket.summed = summed;
            }
            parameters.exchanged = exchanged(parameters, &of_worker);
            pieces.push(of_worker);
        }
        let servers = summation.of_workers(workers.len());
        let tables = Tables::of(servers, workers, boundaries);
        Ok(Sums { servers, pieces, by_next_use, tables })
    }

    /// Ends a worker's step: it receives the sums in the order in which it has sent the pieces, or in which they are
    /// used next, and updates, each bucket as soon as it is there if no update depends on the norm of all gradients.
    fn end_step(&self, order: &mut Order, worker: ClassId, parameters: &Parameters<'_>) {
        let pieces = &self.pieces[worker.0 as usize];
        let places = places(pieces);
        let (mut sent, mut known) = (vec![], BTreeSet::new());
        let entries = order.entries.iter().map(|(entry, _)| &order.bodies[entry.body.0 as usize]);
        for instruction in entries.flat_map(|body| &body.instructions) {
            let bucket = match &instruction.action {
                Action::Send { route } => {
                    places.get(route).map(|&(bucket, _)| BucketId(bucket as u32))
                }
                Action::Collective { group: Group::Classes(_), .. } => {
                    parameters.bucket_of(instruction.reads[0])
                }
                _ => None,
            };
            sent.extend(bucket.filter(|it| known.insert(*it)));
        }
        // A single worker sums nothing.
        let own = epilogue::buckets(parameters)
            .filter(|(_, bucket)| !bucket.is_looked_up() && !bucket.is_frozen);
        let all = own.map(|(id, _)| id);
        let others: Vec<BucketId> = all.filter(|id| !sent.contains(id)).collect();
        let mut buckets = [sent, others].concat();
        if let Some(order) = &self.by_next_use {
            buckets.sort_by_key(|bucket| order.iter().position(|it| it == bucket));
        }
        let receives = |id: &BucketId| -> Vec<Instruction> {
            let to = parameters.replicated(*id).expect_gradients().reduced;
            let receive =
                |piece: &Piece| Instruction::new(Action::Receive { route: piece.sums }, [], [to]);
            pieces[id.0 as usize].iter().map(receive).collect()
        };
        let update = |id: &BucketId| epilogue::update(parameters, *id);
        if self.by_next_use.is_some() && parameters.norm.is_none() {
            let parts = buckets.iter().map(|id| (*id, [receives(id), update(id)].concat()));
            return next_use::update_where_used(order, parts.collect(), parameters);
        }
        let instructions: Vec<Instruction> = match parameters.norm {
            None => buckets.iter().flat_map(|id| [receives(id), update(id)].concat()).collect(),
            Some(_) => {
                let group = match parameters.lie_on_servers() {
                    true => Group::World,
                    false => Group::Mesh(vec![]),
                };
                let norm = epilogue::norm(parameters, group);
                let received = buckets.iter().flat_map(receives);
                received.chain(norm).chain(buckets.iter().flat_map(update)).collect()
            }
        };
        for body in order.bodies.iter_mut().filter(|body| body.kind == BodyKind::Epilogue) {
            body.instructions.clone_from(&instructions);
        }
    }

    /// The buckets and pieces of the first worker in the order in which it sends them in a step.
    fn order(&self, worker: &Class) -> Vec<(usize, usize)> {
        let entries = worker.entries().map(|entry| worker.body_of(entry));
        let sent = entries.flat_map(|body| &body.instructions).filter_map(|it| match it.action {
            Action::Send { route } => Some(route),
            _ => None,
        });
        let places = places(&self.pieces[0]);
        sent.filter_map(|route| places.get(&route).copied()).collect()
    }
}

impl Role for Sums<'_> {
    /// Nothing: it follows the order in which buckets become whole.
    fn end_of_step(&self, _: ClassId, _: &Parameters<'_>) -> Option<Vec<Instruction>> {
        Some(vec![])
    }

    fn arrange(
        &self,
        order: &mut Order,
        worker: ClassId,
        parameters: &Parameters<'_>,
    ) -> Option<Entry> {
        self.end_step(order, worker, parameters);
        Some(self.tables.as_ref()?.pull(order, worker, parameters))
    }

    fn add_classes(&self, plan: &Plan, classes: &mut Vec<Class>) -> Result<(), ProgramError> {
        require_one_order(classes)?;
        let order = self.order(&classes[0]);
        let first = classes.len() as u32;
        for (server, device) in (0..self.servers).zip(plan.server_devices()) {
            let mut tensors = vec![];
            let mut sums: Vec<Vec<Instruction>> = vec![];
            let own = ClassId(first + server);
            for &(bucket, piece) in &order {
                if self.pieces[0][bucket][piece].server == own {
                    let of_workers = self.pieces.iter().map(|it| &it[bucket][piece]).collect();
                    let known = &classes[0].buckets[bucket];
                    let gradients =
                        classes[0].tensor(known.held.replicated.expect_gradients().reduced.tensor);
                    let about = (known.name.as_str(), gradients.format);
                    sums.push(sum(of_workers, about, &mut tensors));
                }
            }
            let body = |instructions| Body {
                kind: BodyKind::Synchronisation,
                part: Part::default(),
                instructions,
            };
            let bodies: Vec<Body> = match self.by_next_use {
                Some(_) => sums.into_iter().map(body).collect(),
                None => vec![body(sums.concat())],
            };
            let class = server::class(classes, server, device);
            let own = match &self.tables {
                Some(tables) => tables.server(server as usize, class, (tensors, bodies), classes),
                None => {
                    let entries = (0..bodies.len() as u32).map(|it| Entry::new(BodyId(it), None));
                    let entries: Vec<Entry> = entries.collect();
                    let control = match entries[..] {
                        [all] => Control::Run(all),
                        _ => Control::AsReceived(entries),
                    };
                    let control = vec![control];
                    Class { tensors, bodies, control, ..class }
                }
            };
            classes.push(own);
        }
        Ok(())
    }
}

/// Checks that all workers sum what servers leave in the same order, as each does once a bucket is whole.
///
/// # Errors
/// If one has another order than the first.
fn require_one_order(workers: &[Class]) -> Result<(), ProgramError> {
    let order = |worker: &Class| -> Vec<Option<BucketId>> {
        let instructions = worker.entries().flat_map(|it| &worker.body_of(it).instructions);
        let is_sum = |it: &&Instruction| {
            matches!(&it.action, Action::Collective { group: Group::Classes(_), .. })
        };
        let subject = |it: &Instruction| worker.tensor(it.reads[0].tensor).bucket;
        instructions.filter(is_sum).map(subject).collect()
    };
    let first = order(&workers[0]);
    match workers.iter().find(|&worker| order(worker) != first) {
        None => Ok(()),
        Some(other) => Err(ScheduleError::Rule(format!(
            "sync.summation.share: the workers sum what servers leave of a bucket once it is whole, and {} \
             comes to buckets in another order than the first; give all workers the same passes, or let \
             servers sum all (share = 1.0, and no group of parameters with servers = [])",
            other.place()
        ))
        .into()),
    }
}

/// The buckets in the order in which a forward pass first uses them.
fn by_first_use(parameters: &Parameters<'_>, graph: &Graph) -> Vec<BucketId> {
    let first_use = |&bucket: &BucketId| {
        let values: Vec<ValueId> = parameters.values(bucket).collect();
        graph.ops().position(|(_, op)| op.inputs.iter().any(|input| values.contains(input)))
    };
    let mut buckets: Vec<BucketId> = (0..parameters.buckets.len() as u32).map(BucketId).collect();
    buckets.sort_by_cached_key(|bucket| first_use(bucket).unwrap_or(usize::MAX));
    buckets
}

/// Where each piece of a worker is, its bucket and its place there, by the route to its server.
fn places(pieces: &[Vec<Piece>]) -> BTreeMap<RouteId, (usize, usize)> {
    let of_bucket = |(bucket, pieces): (usize, &Vec<Piece>)| -> Vec<_> {
        let places = pieces.iter().enumerate();
        places.map(|(index, piece)| (piece.gradients, (bucket, index))).collect()
    };
    pieces.iter().enumerate().flat_map(of_bucket).collect()
}

/// For each bucket of a worker what follows when its gradients are whole: it sends the pieces, and sums what is
/// in none with the other workers.
fn exchanged(parameters: &Parameters<'_>, pieces: &[Vec<Piece>]) -> Vec<Vec<Instruction>> {
    let of_bucket = |(index, pieces): (usize, &Vec<Piece>)| {
        let bucket = &parameters.buckets[index];
        let Some(Gradients { reduced: gradients, .. }) = bucket.held.replicated.gradients else {
            return vec![];
        };
        let send = |piece: &Piece| {
            Instruction::new(Action::Send { route: piece.gradients }, [gradients], [])
        };
        let mut instructions: Vec<Instruction> = pieces.iter().map(send).collect();
        let start = pieces.iter().map(|piece| piece.elements).sum();
        if parameters.is_summed_by_workers(BucketId(index as u32)) {
            instructions.extend(parameters.over_classes(BucketId(index as u32)));
        } else if start < bucket.elements && !bucket.classes.is_empty() {
            let group = Group::Classes(bucket.classes.clone());
            let action = Action::Collective { kind: SUM, group, algorithm: Algorithm::Direct };
            let window = Window::Elements { start, end: bucket.elements };
            let rest = View { window, ..gradients };
            instructions.push(Instruction::new(action, [rest], [rest]));
        }
        instructions
    };
    pieces.iter().enumerate().map(of_bucket).collect()
}

/// What a server does with a piece, given as it is of each worker: it sums it in the order of workers, whichever
/// come first, and sends all the sum. Adds the tensors that it needs meanwhile.
fn sum(
    workers: Vec<&Piece>,
    (name, format): (&str, Format),
    tensors: &mut Vec<Tensor>,
) -> Vec<Instruction> {
    let mut gradients = |what: &str| {
        let gradients = Tensor {
            name: format!("{name} {what}"),
            shape: Shape::Flat(Extent::Exactly(workers[0].elements)),
            format,
            keep: Keep::Transient,
            copies: Copies::One,
            content: Content::Gradient,
            bucket: None,
        };
        add(tensors, gradients)
    };
    let sum = gradients("sum of gradients");
    let arrived = (workers.len() > 1).then(|| gradients("gradients of a worker"));
    let mut instructions = vec![];
    for (index, piece) in workers.iter().enumerate() {
        let receive = Action::Receive { route: piece.gradients };
        let arrived = arrived.filter(|_| index > 0);
        let to = View::whole(arrived.unwrap_or(sum));
        instructions.push(Instruction::new(receive, [], [to]));
        if let Some(arrived) = arrived {
            let adds = Instruction::new(Action::Add, [to], [View::whole(sum)]);
            instructions.push(adds.with_mode(Mode::Add).freeing([arrived]));
        }
    }
    for (index, piece) in workers.iter().enumerate() {
        let send = Action::Send { route: piece.sums };
        let is_last = index + 1 == workers.len();
        let send = Instruction::new(send, [View::whole(sum)], []);
        instructions.push(send.freeing(is_last.then_some(sum)));
    }
    instructions
}
