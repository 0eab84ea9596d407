//! What servers sum is the same elements of every worker's gradients of a step, each worker's once, and comes back
//! to all of them as these elements.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_graph::ValueId;

use super::row::{Row, Step, entries, instructions};
use super::servers::elements;
use super::violation::Violation;
use crate::{Action, BucketId, Carried, ClassId, Content, Placement, Program, RouteId, TensorId};

/// What a tensor of a server holds.
#[derive(Clone)]
struct Sum {
    /// The elements of parameters that it is of, in order.
    of: Vec<(ValueId, Range<usize>)>,
    /// The workers whose gradients are in it, each with the step of the row that they are of.
    workers: BTreeMap<ClassId, usize>,
}

/// Checks the servers that sum in a row.
pub(super) fn check(program: &Program, row: Row, found: &mut Vec<Violation>) {
    for (id, class) in program.classes().filter(|(_, class)| class.sums()) {
        let mut server = Server { program, sums: BTreeMap::new(), messages: BTreeMap::new() };
        for step in instructions(class, id, &entries(program, class, row)) {
            if !is_of_tables(program, &step) {
                server.step(&step, found);
            }
        }
    }
}

/// Whether an instruction is about tables that the server holds, or about the norm of all gradients.
fn is_of_tables(program: &Program, step: &Step<'_>) -> bool {
    let is_theirs = |tensor: TensorId| {
        let tensor = step.class.tensor(tensor);
        tensor.bucket.is_some() || tensor.content == Content::Norm
    };
    match step.instruction.action {
        Action::Send { route } | Action::Receive { route } => program.route(route).moves_rows(),
        Action::Add => false,
        _ => step.instruction.operands().next().is_some_and(|view| is_theirs(view.tensor)),
    }
}

/// A server that sums.
struct Server<'p> {
    program: &'p Program,
    sums: BTreeMap<TensorId, Sum>,
    /// How many messages of each route there were.
    messages: BTreeMap<RouteId, usize>,
}

impl Server<'_> {
    fn step(&mut self, step: &Step<'_>, found: &mut Vec<Violation>) {
        let instruction = step.instruction;
        let touched = instruction.operands().last().map(|view| view.tensor);
        let fault = match (&instruction.action, touched) {
            (&Action::Receive { route }, Some(to)) => self.receive(route, to),
            (Action::Add, Some(to)) => self.add(instruction.reads[0].tensor, to),
            (&Action::Send { route }, Some(from)) => self.send(route, from),
            _ => Err("is no sum: a server that sums only receives, adds and sends"),
        };
        if let (Err(fault), Some(tensor)) = (fault, touched) {
            let tensor = step.tensor_name(tensor);
            found.push(Violation::Summed { at: step.site(), tensor, fault: fault.into() });
        }
    }

    /// The elements that a message is of, by where they lie in a bucket of a worker's.
    fn elements(
        &self,
        (worker, bucket): (ClassId, BucketId),
        part: &Placement,
    ) -> Vec<(ValueId, Range<usize>)> {
        let class = self.program.class(worker);
        let bucket = class.buckets.get(bucket.0 as usize);
        bucket.map(|bucket| elements(class, bucket, &part.range(0))).unwrap_or_default()
    }

    /// The number of the next message of a route, which is that of its step.
    fn count(&mut self, route: RouteId) -> usize {
        let count = self.messages.entry(route).or_default();
        *count += 1;
        *count
    }

    fn receive(&mut self, id: RouteId, to: TensorId) -> Result<(), &'static str> {
        let step = self.count(id);
        let route = self.program.route(id);
        let (Carried::Gradients(bucket), [message]) = (route.carried, &route.messages[..]) else {
            return Err("is received from something else than a worker's gradients");
        };
        let of = self.elements((route.from, bucket), &message.source);
        self.sums.insert(to, Sum { of, workers: [(route.from, step)].into() });
        Ok(())
    }

    fn add(&mut self, from: TensorId, to: TensorId) -> Result<(), &'static str> {
        // What is added is done with.
        let Some(added) = self.sums.remove(&from) else {
            return Err("has added to it what is not there, or was added before");
        };
        let Some(sum) = self.sums.get_mut(&to) else {
            return Err("is added to before it is there");
        };
        if added.of != sum.of {
            return Err("has other elements added to it than it is of");
        }
        let was_there = added.workers.keys().any(|it| sum.workers.contains_key(it));
        sum.workers.extend(added.workers);
        if was_there { Err("has a worker's gradients added to it twice") } else { Ok(()) }
    }

    fn send(&mut self, id: RouteId, from: TensorId) -> Result<(), &'static str> {
        let step = self.count(id);
        let route = self.program.route(id);
        let (Carried::Sums(bucket), [message]) = (route.carried, &route.messages[..]) else {
            return Err("is sent as something else than a sum");
        };
        let Some(sum) = self.sums.get(&from) else { return Err("is sent before it is there") };
        if self.elements((route.to, bucket), &message.target) != sum.of {
            return Err("is of other elements than those that it is sent as");
        }
        let bucket = self.program.class(route.to).buckets.get(bucket.0 as usize);
        let workers = match bucket.map_or(&[][..], |bucket| &bucket.classes) {
            [] => vec![route.to],
            classes => classes.to_vec(),
        };
        let has = |worker: &ClassId| sum.workers.get(worker) == Some(&step);
        match sum.workers.len() == workers.len() && workers.iter().all(has) {
            true => Ok(()),
            false => Err("is not over all workers' gradients of one step, each once"),
        }
    }
}
