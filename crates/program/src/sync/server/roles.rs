//! Servers and their workers (see [`crate::sync::Server`]): a worker ends a step by sending its gradients to the
//! servers, or what its own update has changed, and begins the next by getting the weights from them; a server updates
//! with what comes from a worker, or without staleness from all of them, and sends it the weights when the bound allows. What it has added up it
//! sends to the servers that have replicas, which update with it as it does; as they send no weights before they
//! have, workers go on once all replicas are as their owners are.

use shardloom_cluster::DeviceId;
use shardloom_plan::{Mesh, Plan, Push, Servers, Staleness};

use super::deltas;
use super::ranges::{deal, of_server, pieces};
use crate::class::{
    Apart, Body, BodyId, BodyKind, Bucket, BucketId, Class, ClassId, Part, Rank, ServedRange,
};
use crate::lower::{Boundaries, Order, Parameters, epilogue};
use crate::sync::{Role, add};
use crate::{
    Action, Carried, Client, Control, Entry, Extent, Handler, Instruction, Keep, Mode,
    ProgramError, Route, RouteId, Serve, TensorId, View, When,
};

/// The routes of a range of a worker's bucket to its server and back.
#[derive(Clone, Copy)]
struct RangeRoutes {
    /// The worker's bucket.
    bucket: BucketId,
    server: ClassId,
    /// Of what the worker pushes.
    pushed: RouteId,
    weights: RouteId,
}

/// The route of what a server adds up for a bucket to another that has a replica of it.
#[derive(Clone, Copy)]
struct ReplicaRoute {
    owner: ClassId,
    /// The owner's bucket.
    bucket: BucketId,
    holder: ClassId,
    /// The holder's bucket.
    replica: BucketId,
    route: RouteId,
}

/// What servers do for workers.
pub(crate) struct Service<'a> {
    servers: Servers,
    /// By server.
    parameters: Vec<Parameters<'a>>,
    /// By server and bucket that it owns: where a worker's gradients come to before they are added to those of others;
    /// none where servers update with each worker's by themselves.
    arrived: Option<Vec<Vec<TensorId>>>,
    /// By worker, in the order of its buckets and their ranges, which is that of a server's buckets.
    routes: Vec<Vec<RangeRoutes>>,
    /// In the order of the ranges.
    replicas: Vec<ReplicaRoute>,
}

impl<'a> Service<'a> {
    /// What servers do for the classes with these parameters, to which they say what servers hold of them. Adds
    /// the routes of buckets to those of values.
    ///
    /// # Errors
    /// If there are more servers than ranges of parameters.
    pub fn of(
        asked: Servers,
        workers: &mut [Parameters<'a>],
        boundaries: &mut Boundaries,
    ) -> Result<Service<'a>, ProgramError> {
        let ranges = pieces(&workers[0]).count();
        let servers = asked.of_workers(workers.len());
        let too_many = || {
            let (key, instead) = ("sync.servers.count", "a smaller sync.bucket_bytes");
            ProgramError::TooManyServers { key, servers, ranges, instead }
        };
        if servers as usize > ranges {
            return Err(too_many());
        }
        let first = workers.len() as u32;
        let shares = workers[0].plan.shares();
        for (worker, parameters) in workers.iter_mut().enumerate() {
            deal(parameters, ClassId(first), asked);
            let apart = Apart { workers: first as usize, worker, microbatches: shares[worker] };
            let apart = (asked.push == Push::Deltas).then_some(apart);
            parameters.buckets.iter_mut().for_each(|bucket| bucket.apart = apart);
        }
        let served = |server: u32| {
            let mut ranges = workers[0].buckets.iter().flat_map(|bucket| &bucket.served);
            ranges.any(|range| range.server.0 == first + server)
        };
        if !(0..asked.left(workers.len()).count() as u32).all(served) {
            return Err(too_many());
        }
        let servers = (first..).zip(asked.left(workers.len())).map(|(class, _)| ClassId(class));
        let mut parameters: Vec<Parameters<'a>> =
            servers.map(|server| of_server(&workers[0], server, asked.push)).collect();
        let is_synchronous = asked.staleness == Staleness::SYNCHRONOUS;
        let adds_up = is_synchronous && asked.push == Push::Gradients && workers.len() > 1;
        let arrived = adds_up.then(|| parameters.iter_mut().map(add_arrived).collect());
        let mut routes = vec![];
        for (worker, parameters) in (0u32..).map(ClassId).zip(&*workers) {
            let mut of_worker = vec![];
            for (id, bucket) in epilogue::buckets(parameters) {
                for ServedRange { range, server, .. } in &bucket.served {
                    let mut add = |carried, ends, tensor: View| {
                        let format = parameters.tensor(tensor).format;
                        boundaries.add_route(Route::of_range(carried, ends, format, range.len()))
                    };
                    let held = &bucket.held.replicated;
                    let weights = View::whole(held.weights);
                    let (carried, pushed) = match asked.push {
                        Push::Gradients => {
                            (Carried::Gradients(id), held.expect_gradients().reduced)
                        }
                        Push::Deltas => (Carried::Deltas(id), View::whole(deltas::delta(bucket))),
                    };
                    let (here, there) = ((worker, range.start), (*server, 0));
                    of_worker.push(RangeRoutes {
                        bucket: id,
                        server: *server,
                        pushed: add(carried, [here, there], pushed),
                        weights: add(Carried::Weights(id), [there, here], weights),
                    });
                }
            }
            routes.push(of_worker);
        }
        let replicas = replica_routes(&workers[0], (first, &parameters), boundaries);
        Ok(Service { servers: asked, parameters, arrived, routes, replicas })
    }

    /// What a server does for a worker: takes in its gradients, updates with them, or after the last worker
    /// with those of all, and sends it the weights; or it adds what its update has changed.
    fn client(
        &self,
        (server, class): (usize, ClassId),
        workers: usize,
        bodies: &mut Vec<Body>,
    ) -> Client {
        let parameters = &self.parameters[server];
        let worker = class.0 as usize;
        // Gradients are added in the order of workers, whichever come first, so that sums are the same in every
        // run. The first worker's begin the sum.
        let arrived = self.arrived.as_ref().map(|it| &it[server]);
        let adds = arrived.filter(|_| worker > 0);
        let updates = arrived.is_none() || worker + 1 == workers;
        let mut push = vec![];
        let mut sums = vec![];
        let mut pull = vec![];
        let own = ClassId((workers + server) as u32);
        let routes = self.routes[worker].iter().filter(|routes| routes.server == own);
        for (index, (bucket, routes)) in parameters.buckets.iter().zip(routes).enumerate() {
            let held = &bucket.held.replicated;
            let send = Action::Send { route: routes.weights };
            pull.push(Instruction::new(send, [View::whole(held.weights)], []));
            if self.servers.push == Push::Deltas {
                push.extend(deltas::receive_and_add(bucket, routes.pushed));
                continue;
            }
            let reduced = held.expect_gradients().reduced;
            let to = adds.map_or(reduced, |arrived| View::whole(arrived[index]));
            let receive = Action::Receive { route: routes.pushed };
            push.push(Instruction::new(receive, [], [to]));
            if adds.is_some() {
                let sum = Instruction::new(Action::Add, [to], [reduced]);
                sums.push(sum.with_mode(Mode::Add));
            }
        }
        push.extend(sums);
        let mut kind = BodyKind::Synchronisation;
        if updates {
            for replica in self.replicas.iter().filter(|replica| replica.owner == own) {
                let send = Action::Send { route: replica.route };
                let sum = parameters.replicated(replica.bucket).expect_gradients().reduced;
                push.push(Instruction::new(send, [sum], []));
            }
            let updated = owned(parameters).filter(|_| self.servers.push == Push::Gradients);
            for (id, _) in updated {
                push.extend(epilogue::update(parameters, id));
            }
            kind = BodyKind::Epilogue;
        }
        let mut handler = |kind, instructions, when, publishes| {
            bodies.push(Body { kind, part: Part::default(), instructions });
            let run = Entry::new(BodyId(bodies.len() as u32 - 1), None);
            Handler { when, run, publishes }
        };
        // What is added in another order comes to other bits.
        let in_order = self.servers.staleness == Staleness::SYNCHRONOUS && workers > 1;
        let sent = if in_order { When::InTurn } else { When::Sent };
        let push = handler(kind, push, sent, true);
        let within = When::Within(self.servers.staleness);
        let pull = handler(BodyKind::Synchronisation, pull, within, false);
        Client { class, handlers: vec![push, pull] }
    }

    /// What a server does for one that it has replicas of: updates them with what that has added up. None if it has
    /// none of it.
    fn owner(
        &self,
        own: ClassId,
        class: ClassId,
        parameters: &Parameters<'_>,
        bodies: &mut Vec<Body>,
    ) -> Option<Client> {
        let replicas = self.replicas.iter().filter(|it| (it.owner, it.holder) == (class, own));
        let mut instructions = vec![];
        let mut updates = vec![];
        for replica in replicas {
            let receive = Action::Receive { route: replica.route };
            let gradients = parameters.replicated(replica.replica).expect_gradients().reduced;
            instructions.push(Instruction::new(receive, [], [gradients]));
            updates.extend(epilogue::update(parameters, replica.replica));
        }
        if instructions.is_empty() {
            return None;
        }
        instructions.extend(updates);
        bodies.push(Body { kind: BodyKind::Epilogue, part: Part::default(), instructions });
        let run = Entry::new(BodyId(bodies.len() as u32 - 1), None);
        let handler = Handler { when: When::Sent, run, publishes: true };
        Some(Client { class, handlers: vec![handler] })
    }
}

impl Role for Service<'_> {
    /// A worker sends its gradients, or updates and sends what that has changed.
    fn end_of_step(
        &self,
        worker: ClassId,
        parameters: &Parameters<'_>,
    ) -> Option<Vec<Instruction>> {
        let routes = &self.routes[worker.0 as usize];
        if self.servers.push == Push::Deltas {
            let of_bucket = |id: BucketId| -> Vec<RouteId> {
                routes.iter().filter(|it| it.bucket == id).map(|it| it.pushed).collect()
            };
            let buckets = epilogue::buckets(parameters);
            let ends = buckets.map(|(id, _)| (id, of_bucket(id)));
            let ends =
                ends.flat_map(|(id, routes)| deltas::update_and_send(parameters, id, &routes));
            return Some(ends.collect());
        }
        let send = |routes: &RangeRoutes| {
            let action = Action::Send { route: routes.pushed };
            Instruction::new(
                action,
                [parameters.replicated(routes.bucket).expect_gradients().reduced],
                [],
            )
        };
        Some(routes.iter().map(send).collect())
    }

    /// What a worker's schedule runs, after the weights that the step before has led to.
    fn control(
        &self,
        order: &mut Order,
        worker: ClassId,
        parameters: &Parameters<'_>,
        _: Option<TensorId>,
    ) -> Option<Vec<Control>> {
        if self.servers.push == Push::Gradients {
            for body in order.bodies.iter_mut().filter(|body| body.kind == BodyKind::Epilogue) {
                body.kind = BodyKind::Synchronisation;
            }
        }
        let receive = |routes: &RangeRoutes| {
            let action = Action::Receive { route: routes.weights };
            let weights = parameters.replicated(routes.bucket).weights;
            Instruction::new(action, [], [View::whole(weights)])
        };
        let pull = self.routes[worker.0 as usize].iter().map(receive).collect();
        let pull = order.add(BodyKind::Synchronisation, pull);
        let pull = Entry { shift: -1, ..Entry::new(pull, None) };
        let entries = order.entries.iter().map(|&(entry, _)| entry);
        Some(std::iter::once(pull).chain(entries).map(Control::Run).collect())
    }

    fn add_classes(&self, plan: &Plan, classes: &mut Vec<Class>) -> Result<(), ProgramError> {
        let workers = classes.len();
        let places = self.servers.left(workers).zip(plan.server_devices());
        for ((server, parameters), (number, device)) in
            self.parameters.iter().enumerate().zip(places)
        {
            let mut bodies = vec![];
            let of_workers = (0..workers)
                .map(|worker| self.client((server, ClassId(worker as u32)), workers, &mut bodies));
            let mut clients: Vec<Client> = of_workers.collect();
            let own = ClassId((workers + server) as u32);
            let servers = (0..self.parameters.len()).map(|other| ClassId((workers + other) as u32));
            clients.extend(
                servers.filter_map(|owner| self.owner(own, owner, parameters, &mut bodies)),
            );
            let own = Class {
                tensors: parameters.tensors.clone(),
                params: parameters.params.clone(),
                buckets: parameters.buckets.clone(),
                bodies,
                control: vec![Control::Serve(Serve { clients })],
                ..class(classes, number, device)
            };
            classes.push(own);
        }
        Ok(())
    }
}

/// What a server owns.
fn owned<'a>(parameters: &'a Parameters<'_>) -> impl Iterator<Item = (BucketId, &'a Bucket)> {
    epilogue::buckets(parameters).filter(|(_, bucket)| bucket.replica_of.is_none())
}

/// Adds the routes between servers, of which `first` is the first class, to those of values: of each range in the
/// order in which those that have a replica take its owner's place.
fn replica_routes(
    worker: &Parameters<'_>,
    (first, servers): (u32, &[Parameters<'_>]),
    boundaries: &mut Boundaries,
) -> Vec<ReplicaRoute> {
    let of = |server: ClassId| &servers[(server.0 - first) as usize];
    let replica_of = |holder: ClassId, own: (ClassId, BucketId)| {
        let mut held = epilogue::buckets(of(holder));
        held.find(|(_, bucket)| bucket.replica_of == Some(own)).expect("it has the replica").0
    };
    let mut passed = vec![0; servers.len()];
    let mut routes = vec![];
    for ServedRange { range, server: owner, replicas } in
        epilogue::buckets(worker).flat_map(|(_, bucket)| &bucket.served)
    {
        let own = &mut passed[(owner.0 - first) as usize];
        let bucket = BucketId(*own);
        *own += 1;
        for &holder in replicas {
            let sum = of(*owner).replicated(bucket).expect_gradients().reduced;
            let format = of(*owner).tensor(sum).format;
            let ends = [(*owner, 0), (holder, 0)];
            let route = Route::of_range(Carried::Aggregated(bucket), ends, format, range.len());
            let route = boundaries.add_route(route);
            let replica = replica_of(holder, (*owner, bucket));
            routes.push(ReplicaRoute { owner: *owner, bucket, holder, replica, route });
        }
    }
    routes
}

/// The class of the server of this number on a device, behind these classes, which holds and does nothing yet.
pub(crate) fn class(before: &[Class], number: u32, device: u32) -> Class {
    let first_rank = before.last().map_or(0, |it| it.first_rank.0 + it.mesh.size() as u32);
    Class {
        stages: vec![],
        replica: Some(number),
        mesh: Mesh::SINGLE,
        first_rank: Rank(first_rank),
        devices: vec![DeviceId(device)],
        tensors: vec![],
        params: vec![],
        buckets: vec![],
        communicators: vec![],
        bodies: vec![],
        control: vec![],
        delay: 0.0,
        evaluation: vec![],
    }
}

/// Adds where a worker's gradients come to, for each bucket of a server.
fn add_arrived(parameters: &mut Parameters<'_>) -> Vec<TensorId> {
    let gradients = owned(parameters).map(|(id, bucket)| {
        let extent = Extent::Exactly(bucket.elements);
        parameters.unheld(id).gradients("gradients of a worker", extent, Keep::Resident)
    });
    let gradients: Vec<_> = gradients.collect();
    gradients.into_iter().map(|tensor| add(&mut parameters.tensors, tensor)).collect()
}
