//! Tables on servers, and workers that look up rows of them (see [`crate::sync::AskedRows`]): before its passes a
//! worker asks each server for the rows of its piece that the step's samples look up; once the gradient of a table is
//! whole it sends each server the values for these rows. A server answers the workers in their order, then takes in
//! their gradients in the same order, sums equal rows, and updates.
//!
//! That order is the same in every step, so servers have plain control, and sum gradients of other parameters besides
//! where the plan says so.

use shardloom_collectives::chunk;
use shardloom_graph::ValueId;
use shardloom_plan::Mesh;

use super::taken;
use crate::class::{Body, BodyId, BodyKind, BucketId, Class, ClassId, Part, ServedRange};
use crate::lower::{Boundaries, Order, Parameters, RangeUse, epilogue};
use crate::sync::{Holder, LookedUp, Lookups, Replicated};
use crate::{
    Action, Carried, Control, Entry, Format, Group, Instruction, Route, RouteId, Tensor, View,
    Window,
};

/// A piece of a worker's table: the ways to the server that holds it, and back.
#[derive(Clone, Copy)]
struct Piece {
    /// The worker's bucket.
    bucket: BucketId,
    server: ClassId,
    /// The server's bucket.
    held: BucketId,
    lookups: RouteId,
    looked_up: RouteId,
    gradients: RouteId,
}

/// What servers hold of tables for workers.
pub(crate) struct Tables<'a> {
    /// By server.
    parameters: Vec<Parameters<'a>>,
    /// By worker, in the order of its buckets and their pieces.
    pieces: Vec<Vec<Piece>>,
    /// The tables by bucket.
    values: Vec<(BucketId, ValueId)>,
}

impl<'a> Tables<'a> {
    /// Deals the tables of these workers to so many servers as the plan says; none if it has none there. Adds the
    /// routes of rows to those of values, and to parameters what is done with a table's gradient once it is whole.
    pub fn of(
        servers: u32,
        workers: &mut [Parameters<'a>],
        boundaries: &mut Boundaries,
    ) -> Option<Tables<'a>> {
        if !workers.first()?.lie_on_servers() {
            return None;
        }
        let count = workers.len();
        for parameters in workers.iter_mut() {
            for id in (0..parameters.buckets.len() as u32).map(BucketId) {
                let Some(servers) = parameters.servers(id).filter(|_| parameters.is_asked(id))
                else {
                    continue;
                };
                let bucket = &mut parameters.buckets[id.0 as usize];
                // A table is alone in its bucket.
                let rows = parameters.params[bucket.params[0].0 as usize].shape[0];
                let columns = bucket.elements / rows;
                let pieces = servers.iter().enumerate().map(|(piece, &server)| {
                    let rows = chunk(rows, servers.len(), piece);
                    let range = rows.start * columns..rows.end * columns;
                    ServedRange::of(range, ClassId(count as u32 + server))
                });
                bucket.served = pieces.collect();
            }
        }
        let servers = (0..servers).map(|server| ClassId(count as u32 + server));
        let parameters: Vec<Parameters<'a>> =
            servers.map(|server| of_server(&workers[0], server, count)).collect();
        let mut pieces = vec![];
        for (worker, own) in (0u32..).map(ClassId).zip(workers.iter_mut()) {
            let of_worker = routes((worker, own), &parameters, count, boundaries);
            if own.exchanged.is_empty() {
                own.exchanged = vec![vec![]; own.buckets.len()];
            }
            for piece in &of_worker {
                let held = own.replicated(piece.bucket);
                let gradients = held.expect_gradients();
                let reads = [gradients.reduced, View::whole(looked_up(held).rows)];
                let action = Action::Send { route: piece.gradients };
                let mut send = Instruction::new(action, reads, []);
                let is_last = of_worker.iter().rfind(|it| it.bucket == piece.bucket);
                if is_last.is_some_and(|it| it.gradients == piece.gradients) {
                    let rows = gradients.rows.map(|rows| rows.written);
                    send = send.freeing(rows.into_iter().chain([gradients.written]));
                }
                own.exchanged[piece.bucket.0 as usize].push(send);
            }
            pieces.push(of_worker);
        }
        let asked = (0..workers[0].buckets.len() as u32).map(BucketId);
        let asked = asked.filter(|&id| workers[0].is_asked(id));
        let values = asked.filter_map(|id| Some((id, workers[0].values(id).next()?))).collect();
        Some(Tables { parameters, pieces, values })
    }

    /// Adds what begins a worker's step: it asks for the rows of all tables and gets them; and has it evaluate
    /// likewise.
    pub fn pull(&self, order: &mut Order, worker: ClassId, parameters: &Parameters<'_>) -> Entry {
        let passes = order
            .entries
            .iter()
            .filter(|(entry, _)| order.bodies[entry.body.0 as usize].kind == BodyKind::Forward);
        let mut microbatches: Vec<u32> = passes.filter_map(|(it, _)| it.microbatch).collect();
        microbatches.sort_unstable();
        let pieces = || self.pieces[worker.0 as usize].iter();
        let asked = |bucket| looked_up(parameters.replicated(bucket));
        let loads = self.values.iter().map(|&(bucket, table)| {
            let action = Action::LoadRows { table, microbatches: microbatches.clone() };
            Instruction::new(action, [], [View::whole(asked(bucket).rows)])
        });
        let asks = pieces().map(|piece| {
            let lookups = View::whole(asked(piece.bucket).rows);
            Instruction::new(Action::Send { route: piece.lookups }, [lookups], [])
        });
        let gets = pieces().map(|piece| {
            let LookedUp { rows, weights } = asked(piece.bucket);
            let [rows, weights] = [rows, weights].map(View::whole);
            Instruction::new(Action::Receive { route: piece.looked_up }, [rows], [weights])
        });
        let pull: Vec<Instruction> = loads.chain(asks).chain(gets).collect();
        if let Some(&first) = order.evaluation.first() {
            order.bodies[first.0 as usize].instructions.splice(0..0, pull.iter().cloned());
        }
        Entry::new(order.add(BodyKind::Synchronisation, pull), None)
    }

    /// The class of a server, which holds and does nothing yet, behind these of workers: it answers them, sums what it
    /// is to sum, by these bodies in whatever order that comes if there are several, and updates its pieces.
    pub fn server(
        &self,
        server: usize,
        class: Class,
        (summed, sums): (Vec<Tensor>, Vec<Body>),
        before: &[Class],
    ) -> Class {
        let parameters = &self.parameters[server];
        let id = ClassId((self.pieces.len() + server) as u32);
        let mut tensors = parameters.tensors.clone();
        let offset = tensors.len() as u32;
        tensors.extend(summed);
        let body = |kind, instructions| Body { kind, part: Part::default(), instructions };
        let mut bodies = vec![];
        let mut control = vec![];
        let mut evaluation = vec![];
        for (worker, pieces) in self.pieces.iter().enumerate() {
            let own = pieces.iter().filter(|piece| piece.server == id);
            let answers: Vec<Instruction> =
                own.flat_map(|piece| answer(parameters, worker, piece)).collect();
            if answers.is_empty() {
                continue;
            }
            control.push(Control::Run(Entry::new(BodyId(bodies.len() as u32), None)));
            bodies.push(body(BodyKind::Synchronisation, answers.clone()));
            if !before[worker].evaluation.is_empty() {
                evaluation.push(BodyId(bodies.len() as u32));
                bodies.push(body(BodyKind::Evaluation, answers));
            }
        }
        let mut sums = sums;
        for body in &mut sums {
            body.instructions.iter_mut().for_each(|instruction| shift(instruction, offset));
        }
        let mut last = match &mut sums[..] {
            [] => vec![],
            [one] => std::mem::take(&mut one.instructions),
            _ => {
                let first = bodies.len() as u32;
                bodies.append(&mut sums);
                let each = (first..bodies.len() as u32).map(BodyId);
                let entries = each.map(|body| Entry::new(body, None)).collect();
                control.push(Control::AsReceived(entries));
                vec![]
            }
        };
        for (held, _) in epilogue::buckets(parameters) {
            let of_bucket = self.pieces.iter().flatten();
            let of_bucket = of_bucket.filter(|it| (it.server, it.held) == (id, held));
            for piece in of_bucket {
                let of = parameters.replicated(held).expect_gradients();
                let rows = of.rows.map(|rows| View::whole(rows.written));
                let action = Action::Receive { route: piece.gradients };
                last.push(Instruction::new(action, rows, [of.reduced]));
            }
            last.extend(parameters.before_update(held));
        }
        last.extend(epilogue::norm(parameters, Group::World));
        last.extend(epilogue::updates(parameters));
        let holds = !parameters.buckets.is_empty();
        let kind = if holds { BodyKind::Epilogue } else { BodyKind::Synchronisation };
        control.push(Control::Run(Entry::new(BodyId(bodies.len() as u32), None)));
        bodies.push(body(kind, last));
        Class {
            tensors,
            params: parameters.params.clone(),
            buckets: parameters.buckets.clone(),
            bodies,
            control,
            evaluation,
            ..class
        }
    }
}

/// The ways of the rows of a worker's tables, one of so many, to their servers and back.
fn routes(
    (worker, own): (ClassId, &Parameters<'_>),
    servers: &[Parameters<'_>],
    workers: usize,
    boundaries: &mut Boundaries,
) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = vec![];
    for (id, bucket) in epilogue::buckets(own).filter(|(_, bucket)| bucket.is_looked_up()) {
        let held = own.replicated(id);
        let formats = [held.used, held.expect_gradients().written]
            .map(|it| own.tensor(View::whole(it)).format);
        for (number, &ServedRange { server, .. }) in (0..).zip(&bucket.served) {
            let before = pieces.iter().filter(|piece| piece.server == server).count();
            let there = BucketId(before as u32);
            let answers = servers[server.0 as usize - workers].replicated(there);
            let of_server = &servers[server.0 as usize - workers].tensors;
            let room = of_server[taken(answers).0 as usize].local_shape();
            let (rows, columns) = (room[0], room[1]);
            let mut add = |carried, ends, format, columns| {
                boundaries.add_route(Route::of_rows(carried, ends, format, rows, columns))
            };
            let (here, side_by_side) = ((worker, 0), (server, worker.0 as usize * rows));
            let [weights, gradients] = formats;
            pieces.push(Piece {
                bucket: id,
                server,
                held: there,
                lookups: add(Carried::Lookups(id, number), [here, side_by_side], Format::U32, None),
                looked_up: add(
                    Carried::LookedUp(id, number),
                    [(server, 0), here],
                    weights,
                    Some(columns),
                ),
                gradients: add(
                    Carried::RowGradients(id, number),
                    [here, side_by_side],
                    gradients,
                    Some(columns),
                ),
            });
        }
    }
    pieces
}

/// What a server does when a worker looks up rows of a piece.
fn answer(parameters: &Parameters<'_>, worker: usize, piece: &Piece) -> Vec<Instruction> {
    let held = parameters.replicated(piece.held);
    let out = View::whole(taken(held));
    let Some(rows) = held.rows().map(|rows| rows.written) else { return vec![] };
    let each = parameters.tensor(out).local_shape()[0];
    let window = Window::Elements { start: worker * each, end: (worker + 1) * each };
    let of_worker = View { tensor: rows, window };
    let receive = Action::Receive { route: piece.lookups };
    let send = Action::Send { route: piece.looked_up };
    vec![
        Instruction::new(receive, [], [View::whole(rows)]),
        Instruction::new(Action::TakeRows, [View::whole(held.weights), of_worker], [out]),
        Instruction::new(send, [out, of_worker], []).freeing([out.tensor]),
    ]
}

/// Has an instruction name tensors that stand so much later.
fn shift(instruction: &mut Instruction, by: u32) {
    let reads = instruction.reads.iter_mut().map(|read| &mut read.tensor);
    let writes = instruction.writes.iter_mut().map(|write| &mut write.to.tensor);
    reads.chain(writes).chain(&mut instruction.frees).for_each(|tensor| tensor.0 += by);
}

/// The rows that a worker has of a table on servers.
fn looked_up(held: &Replicated) -> LookedUp {
    held.looked_up.expect("a table on servers is looked up")
}

/// The parameters of a server of this many workers, which holds pieces of their tables, by itself, and sums besides.
fn of_server<'a>(worker: &Parameters<'a>, server: ClassId, workers: usize) -> Parameters<'a> {
    let mut parts = Parameters::none(worker.plan, worker.ways, Mesh::SINGLE);
    for (index, bucket) in worker.buckets.iter().enumerate() {
        let Some(Lookups { rows, columns, .. }) = worker.lookups[index] else { continue };
        for ServedRange { range, .. } in bucket.served.iter().filter(|it| it.server == server) {
            let rows = rows.min(range.len() / columns);
            let lookups = Lookups { rows, columns, holder: Holder::Server { workers } };
            parts.hold_range(worker, index, range, RangeUse::Table(lookups));
        }
    }
    parts.add_norm();
    parts
}

impl Parameters<'_> {
    /// Whether a bucket is a table that servers hold.
    pub fn is_asked(&self, id: BucketId) -> bool {
        self.replicated(id).looked_up.is_some()
    }

    /// Whether servers hold some table.
    pub fn lie_on_servers(&self) -> bool {
        (0..self.buckets.len() as u32).any(|id| self.is_asked(BucketId(id)))
    }
}
