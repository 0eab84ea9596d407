//! Servers and their workers (see [`crate::sync::Server`]): a worker ends a step by sending its gradients to the
//! servers and begins the next by getting the weights from them; a server updates with what comes from a worker,
//! and sends it the weights when the bound allows.

use shardloom_cluster::DeviceId;
use shardloom_plan::{Mesh, Plan};

use super::boundary::Boundaries;
use super::buckets::Parameters;
use super::epilogue;
use super::order::Order;
use crate::class::{Body, BodyId, BodyKind, Class, ClassId, Part, Rank};
use crate::sync::Synchronisation;
use crate::{
    Action, Carried, Client, Control, Entry, Format, Handler, Instruction, ProgramError, Route,
    RouteId, Serve, View, When,
};
use shardloom_schedule::ScheduleError;

/// The first class of servers, behind so many of workers, and how many there are.
pub(super) fn classes(way: &dyn Synchronisation, workers: usize) -> Option<(ClassId, usize)> {
    way.servers().map(|servers| (ClassId(workers as u32), servers.count as usize))
}

/// The routes of one bucket between a worker and its server.
#[derive(Clone, Copy)]
struct BucketRoutes {
    gradients: RouteId,
    weights: RouteId,
}

/// What servers do for workers.
pub(super) struct Service<'a> {
    staleness: u32,
    /// By server.
    parameters: Vec<Parameters<'a>>,
    /// By worker and its bucket.
    routes: Vec<Vec<BucketRoutes>>,
    /// The number of each server's first bucket among a worker's.
    first: Vec<usize>,
}

impl<'a> Service<'a> {
    /// What the servers of a way do for the classes with these parameters; none if it has no servers. Adds
    /// the routes of buckets to those of values.
    ///
    /// # Errors
    /// If there are more servers than buckets.
    pub fn of(
        way: &dyn Synchronisation,
        workers: &[Parameters<'a>],
        boundaries: &mut Boundaries,
    ) -> Result<Option<Service<'a>>, ProgramError> {
        let Some(asked) = way.servers() else { return Ok(None) };
        let buckets = workers[0].buckets.len();
        if asked.count as usize > buckets {
            let count = asked.count;
            return Err(ScheduleError::Rule(format!(
                "sync.servers.count = {count}: buckets are divided among servers, and there are {buckets}; \
                 take fewer servers, or a smaller sync.bucket_bytes"
            ))
            .into());
        }
        let servers = (0..asked.count).map(|server| ClassId(workers.len() as u32 + server));
        let parameters: Vec<Parameters<'a>> =
            servers.map(|server| workers[0].of_server(server)).collect();
        let mut first = vec![0];
        for server in &parameters {
            first.push(first[first.len() - 1] + server.buckets.len());
        }
        let mut routes = vec![];
        for (worker, parameters) in (0u32..).map(ClassId).zip(workers) {
            let mut of_worker = vec![];
            for (id, bucket) in epilogue::buckets(parameters) {
                let Some(server) = bucket.server else { continue };
                let mut add = |carried, ends, tensor: View| {
                    let format: Format = parameters.tensor(tensor).format;
                    let route = Route::of_bucket(carried, ends, format, bucket.elements);
                    boundaries.routes.push(route);
                    RouteId(boundaries.routes.len() as u32 - 1)
                };
                let held = &bucket.held.replicated;
                let (gradients, weights) = (held.reduced, View::whole(held.weights));
                of_worker.push(BucketRoutes {
                    gradients: add(Carried::Gradients(id), [worker, server], gradients),
                    weights: add(Carried::Weights(id), [server, worker], weights),
                });
            }
            routes.push(of_worker);
        }
        Ok(Some(Service { staleness: asked.staleness, parameters, routes, first }))
    }

    /// What ends a worker's step: it sends its gradients.
    pub fn push(&self, worker: ClassId, parameters: &Parameters<'_>) -> Vec<Instruction> {
        let routes = &self.routes[worker.0 as usize];
        let send = |(bucket, routes): (&crate::class::Bucket, &BucketRoutes)| {
            let action = Action::Send { route: routes.gradients };
            Instruction::new(action, [bucket.held.replicated.reduced], [])
        };
        parameters.buckets.iter().zip(routes).map(send).collect()
    }

    /// A worker's control: what its schedule runs, after the weights that the step before has led to.
    pub fn control(
        &self,
        order: &mut Order,
        worker: ClassId,
        parameters: &Parameters<'_>,
    ) -> Vec<Control> {
        for body in order.bodies.iter_mut().filter(|body| body.kind == BodyKind::Epilogue) {
            body.kind = BodyKind::Synchronisation;
        }
        let routes = &self.routes[worker.0 as usize];
        let receive = |(bucket, routes): (&crate::class::Bucket, &BucketRoutes)| {
            let action = Action::Receive { route: routes.weights };
            Instruction::new(action, [], [View::whole(bucket.held.replicated.weights)])
        };
        let pull = parameters.buckets.iter().zip(routes).map(receive).collect();
        let pull = order.add(BodyKind::Synchronisation, pull);
        let pull = Entry { shift: -1, ..Entry::new(pull, None) };
        let entries = order.entries.iter().map(|&(entry, _)| entry);
        std::iter::once(pull).chain(entries).map(Control::Run).collect()
    }

    /// Adds the classes of servers to those of workers.
    pub fn add_servers(&self, plan: &Plan, classes: &mut Vec<Class>) {
        let workers = classes.len();
        for ((server, parameters), device) in
            self.parameters.iter().enumerate().zip(plan.server_devices())
        {
            let first_rank = classes.last().map_or(0, |it| it.first_rank.0 + it.mesh.size() as u32);
            let mut bodies = vec![];
            let clients = (0..workers).map(|worker| {
                let routes = &self.routes[worker][self.first[server]..self.first[server + 1]];
                self.client(ClassId(worker as u32), parameters, routes, &mut bodies)
            });
            let clients = clients.collect();
            classes.push(Class {
                stages: vec![],
                replica: Some(server as u32),
                mesh: Mesh::SINGLE,
                first_rank: Rank(first_rank),
                devices: vec![DeviceId(device)],
                tensors: parameters.tensors.clone(),
                params: parameters.params.clone(),
                buckets: parameters.buckets.clone(),
                communicators: vec![],
                bodies,
                control: vec![Control::Serve(Serve { clients })],
                delay: 0.0,
                evaluation: vec![],
            });
        }
    }

    /// What a server does for a worker: updates with its gradients, and sends it the weights.
    fn client(
        &self,
        class: ClassId,
        parameters: &Parameters<'_>,
        routes: &[BucketRoutes],
        bodies: &mut Vec<Body>,
    ) -> Client {
        let mut push = vec![];
        let mut pull = vec![];
        for (bucket, routes) in parameters.buckets.iter().zip(routes) {
            let held = &bucket.held.replicated;
            let receive = Action::Receive { route: routes.gradients };
            push.push(Instruction::new(receive, [], [held.reduced]));
            let send = Action::Send { route: routes.weights };
            pull.push(Instruction::new(send, [View::whole(held.weights)], []));
        }
        push.extend(epilogue::updates(parameters));
        let mut handler = |kind, instructions, when, publishes| {
            bodies.push(Body { kind, part: Part::default(), instructions });
            let run = Entry::new(BodyId(bodies.len() as u32 - 1), None);
            Handler { when, run, publishes }
        };
        let push = handler(BodyKind::Epilogue, push, When::Sent, true);
        let within = When::Within(self.staleness);
        let pull = handler(BodyKind::Synchronisation, pull, within, false);
        Client { class, handlers: vec![push, pull] }
    }
}
