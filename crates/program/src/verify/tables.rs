//! Of tables that servers hold, a worker has in every step the rows that it looks up, from the servers that have them,
//! and sends each the gradients of these very rows.

use std::collections::{BTreeMap, BTreeSet};

use super::row::{Row, Step, entries, instructions};
use super::servers::elements;
use super::violation::Violation;
use crate::{
    Action, BodyId, Bucket, BucketId, Carried, Class, ClassId, Content, Entry, Program, Route,
    RouteId, Run, TableRows, View, Window,
};

/// Checks that the pieces of each table make it up, and that each has its ways to the server that holds it and back.
pub(super) fn check(program: &Program, found: &mut Vec<Violation>) {
    for (id, class) in program.classes() {
        for (bucket_id, bucket) in class.buckets().filter(|(_, bucket)| bucket.is_looked_up()) {
            if !is_dealt(program, (id, class), (bucket_id, bucket)) {
                let (place, bucket) = (class.place(), bucket.name.clone());
                found.push(Violation::Served { place, bucket });
            }
        }
    }
    let mut segments: BTreeMap<(ClassId, BucketId), BTreeSet<(usize, ClassId)>> = BTreeMap::new();
    for (number, route) in (0u32..).zip(&program.routes).filter(|(_, it)| it.moves_rows()) {
        match place(program, route) {
            Some((server, held, start, worker)) => {
                segments.entry((server, held)).or_default().insert((start, worker));
            }
            None => {
                let fault = "it has not room for the rows of its piece where these belong".into();
                found.push(Violation::Route { route: number, fault });
            }
        }
    }
    for ((server, held), segments) in segments {
        let class = program.class(server);
        let starts: BTreeSet<usize> = segments.iter().map(|&(start, _)| start).collect();
        let workers: BTreeSet<ClassId> = segments.iter().map(|&(_, worker)| worker).collect();
        if starts.len() != segments.len() || workers.len() != segments.len() {
            let (place, bucket) = (class.place(), class.bucket(held).name.clone());
            found.push(Violation::Served { place, bucket });
        }
    }
}

fn is_dealt(
    program: &Program,
    (id, class): (ClassId, &Class),
    (bucket_id, bucket): (BucketId, &Bucket),
) -> bool {
    let [param] = bucket.params[..] else { return false };
    let columns: usize = class.param(param).shape[1..].iter().product();
    let mut end = 0;
    for (piece, served) in (0u32..).zip(&bucket.served) {
        let is_server = |server: ClassId| {
            program.classes.get(server.0 as usize).is_some_and(Class::holds_tables)
        };
        let range = &served.range;
        if range.start != end
            || range.is_empty()
            || range.len() % columns != 0
            || !is_server(served.server)
        {
            return false;
        }
        end = range.end;
        let wanted = [
            (Carried::Lookups(bucket_id, piece), id, served.server),
            (Carried::LookedUp(bucket_id, piece), served.server, id),
            (Carried::RowGradients(bucket_id, piece), id, served.server),
        ];
        let once = |&(carried, from, to): &(Carried, ClassId, ClassId)| {
            // Other workers have buckets of the same number.
            let is_it = |it: &&Route| it.carried == carried && (it.from == id || it.to == id);
            let mut all = program.routes.iter().filter(is_it);
            let first = all.next().map(|route| (route.from, route.to));
            first == Some((from, to)) && all.next().is_none()
        };
        if !wanted.iter().all(once) {
            return false;
        }
    }
    end == bucket.elements
}

/// The server's bucket that has the rows of a route, where there its worker's begin, and the worker.
fn place(program: &Program, route: &Route) -> Option<(ClassId, BucketId, usize, ClassId)> {
    let rows = program.table_rows(route)?;
    let [message] = &route.messages[..] else { return None };
    let (here, there) = match route.from == rows.worker {
        true => (&message.source, &message.target),
        false => (&message.target, &message.source),
    };
    let most = rows.lookups.min(rows.rows.len());
    let is_room = [here, there].iter().all(|it| it.extent.first() == Some(&most));
    if here.start.first() != Some(&0) || !is_room {
        return None;
    }
    let held = held(program, &rows)?;
    let start = match route.carried {
        // Taken out they lie alone.
        Carried::LookedUp(..) => answered(program, &rows)?,
        _ => *there.start.first()?,
    };
    Some((rows.server, held, start, rows.worker))
}

/// The bucket of a server that is a piece of a worker's table.
fn held(program: &Program, rows: &TableRows) -> Option<BucketId> {
    let worker = program.class(rows.worker);
    let bucket = worker.bucket(rows.bucket);
    let range = &bucket.served.get(rows.piece as usize)?.range;
    let wanted = elements(worker, bucket, range);
    let server = program.classes.get(rows.server.0 as usize)?;
    let is_it = |held: &Bucket| elements(server, held, &(0..held.elements)) == wanted;
    server.buckets().find(|(_, held)| is_it(held)).map(|(id, _)| id)
}

/// Where among the rows of all the server lays which rows a worker looks up in a piece.
fn answered(program: &Program, rows: &TableRows) -> Option<usize> {
    let is_it = |route: &&Route| {
        route.from == rows.worker && route.carried == Carried::Lookups(rows.bucket, rows.piece)
    };
    let route = program.routes.iter().find(is_it)?;
    route.messages.first()?.target.start.first().copied()
}

/// Checks that each message of rows has at both ends the tensors that its route says.
pub(super) fn messages(program: &Program, found: &mut Vec<Violation>) {
    for (id, class) in program.classes() {
        let bodies = (0..class.bodies.len() as u32).map(BodyId);
        let entries: Vec<Run> = bodies.map(|body| Run::alone(Entry::new(body, None))).collect();
        for step in instructions(class, id, &entries) {
            let (Action::Send { route } | Action::Receive { route }) = step.instruction.action
            else {
                continue;
            };
            let of = program.route(route);
            if of.moves_rows() && !is_of_rows(program, &step, of) {
                let operand = step.instruction.operands().last();
                let tensor = operand.map_or(String::new(), |view| step.tensor_name(view.tensor));
                found.push(Violation::Piece { at: step.site(), tensor, route: route.0 });
            }
        }
    }
}

fn is_of_rows(program: &Program, step: &Step<'_>, route: &Route) -> bool {
    let Some(rows) = program.table_rows(route) else { return false };
    let is_worker = step.id == rows.worker;
    let bucket = if is_worker { Some(rows.bucket) } else { held(program, &rows) };
    let is_its = |view: View| step.class.tensor(view.tensor).bucket == bucket;
    let content = |view: View| step.class.tensor(view.tensor).content;
    let sends = matches!(step.instruction.action, Action::Send { .. });
    let written = step.instruction.writes.iter().map(|write| write.to);
    let operands: Vec<View> = match sends {
        true => step.instruction.reads.clone(),
        false => written.chain(step.instruction.reads.iter().copied()).collect(),
    };
    let which = if is_worker { Content::Lookups } else { Content::Rows };
    let own: &[Content] = match route.carried {
        Carried::Lookups(..) => &[which],
        Carried::LookedUp(..) => &[Content::LookedUp, which],
        _ => &[Content::Gradient, which],
    };
    // What a server sends of rows side by side are those of the worker that gets them.
    let each = route.messages.first().map_or(0, |it| it.source.extent[0]);
    let of_worker =
        answered(program, &rows).map(|start| Window::Elements { start, end: start + each });
    let windows =
        operands.iter().enumerate().all(|(place, view)| match (sends, is_worker, place) {
            (true, false, 1) => Some(view.window) == of_worker,
            _ => view.window == Window::Whole,
        });
    operands.len() == own.len()
        && operands.iter().copied().map(content).eq(own.iter().copied())
        && operands.into_iter().all(is_its)
        && windows
}

/// Follows the rows of tables through a row.
pub(super) fn follow(program: &Program, row: Row, found: &mut Vec<Violation>) {
    for (id, class) in program.classes() {
        if class.holds_tables() {
            let workers = workers(program, id);
            let mut server = Server { program, workers, known: BTreeMap::new(), out: None };
            for step in instructions(class, id, &entries(program, class, row)) {
                note(server.step(&step), &step, found);
            }
        } else if class.buckets.iter().any(Bucket::is_looked_up) {
            let mut worker = Worker { program, class, known: BTreeMap::new() };
            for step in instructions(class, id, &entries(program, class, row)) {
                note(worker.step(&step), &step, found);
            }
        }
    }
}

fn note(outcome: Result<(), &'static str>, step: &Step<'_>, found: &mut Vec<Violation>) {
    let touched = step.instruction.operands().last().map(|view| view.tensor);
    if let (Err(fault), Some(tensor)) = (outcome, touched) {
        let tensor = step.tensor_name(tensor);
        found.push(Violation::LookedUp { at: step.site(), tensor, fault: fault.into() });
    }
}

/// What a worker has of a table.
#[derive(Default)]
struct Known {
    /// The step, and in evaluation the micro-batch, for which it has found which rows it looks up.
    of: (i64, Option<u32>),
    asked: BTreeSet<u32>,
    got: BTreeSet<u32>,
    sent: BTreeSet<u32>,
    is_summed: bool,
}

/// A worker that looks up rows.
struct Worker<'p> {
    program: &'p Program,
    class: &'p Class,
    known: BTreeMap<BucketId, Known>,
}

impl Worker<'_> {
    fn step(&mut self, step: &Step<'_>) -> Result<(), &'static str> {
        let instruction = step.instruction;
        let bucket = |view: &View| self.class.tensor(view.tensor).bucket;
        match &instruction.action {
            Action::LoadRows { table, microbatches } => {
                let bucket = instruction.writes.first().and_then(|it| bucket(&it.to));
                let Some(bucket) = bucket else { return Err("is of no table") };
                let param = self.class.bucket(bucket).params.first();
                if param.is_none_or(|&param| self.class.param(param).value != *table) {
                    return Err("is of another table");
                }
                if step.run.microbatch.is_none() && *microbatches != self.microbatches() {
                    return Err("is not of all micro-batches of the worker");
                }
                let of = (step.run.of_step(), step.run.microbatch);
                let pieces = self.class.bucket(bucket).served.len();
                let before = self.known.insert(bucket, Known { of, ..Known::default() });
                match before.is_none_or(|it| it.sent.len() == pieces) {
                    true => Ok(()),
                    false => Err("is found anew before the gradients of the rows before are sent"),
                }
            }
            Action::Send { route } | Action::Receive { route } => self.exchange(step, *route),
            Action::SumRows => {
                let bucket = instruction.reads.first().and_then(bucket);
                if let Some(known) = bucket.and_then(|bucket| self.known.get_mut(&bucket)) {
                    known.is_summed = true;
                }
                Ok(())
            }
            Action::Kernel { .. } | Action::FindRows => {
                let looks = |view: &&View| {
                    let content = self.class.tensor(view.tensor).content;
                    matches!(content, Content::LookedUp | Content::Lookups)
                };
                for view in instruction.reads.iter().filter(looks) {
                    let bucket = bucket(view).ok_or("is of no table")?;
                    let known = self.known.get(&bucket).ok_or("is read before it is there")?;
                    if known.of.0 != step.run.of_step()
                        || known.got.len() != self.class.bucket(bucket).served.len()
                    {
                        return Err("is read before all of the step's rows are there");
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn exchange(&mut self, step: &Step<'_>, route: RouteId) -> Result<(), &'static str> {
        let route = self.program.route(route);
        let Some(rows) = self.program.table_rows(route) else { return Ok(()) };
        let known =
            self.known.get_mut(&rows.bucket).ok_or("comes before it is known which rows")?;
        if known.of.0 != step.run.of_step() {
            return Err("is of another step's rows");
        }
        let is_new = match route.carried {
            Carried::Lookups(..) => known.asked.insert(rows.piece),
            Carried::LookedUp(..) => {
                known.asked.contains(&rows.piece) && known.got.insert(rows.piece)
            }
            _ => {
                known.is_summed && known.got.contains(&rows.piece) && known.sent.insert(rows.piece)
            }
        };
        if is_new { Ok(()) } else { Err("is exchanged twice, or before what it depends on") }
    }

    /// The micro-batches that the worker passes forward in a step.
    fn microbatches(&self) -> Vec<u32> {
        let passes = self.class.entries().filter(|entry| {
            let body = &self.class.body_of(entry).instructions;
            body.iter().any(|it| matches!(it.action, Action::Kernel { .. }))
        });
        let all: BTreeSet<u32> = passes.filter_map(|entry| entry.microbatch).collect();
        all.into_iter().collect()
    }
}

/// The workers that look up rows of each bucket of a server, with where theirs begin.
fn workers(program: &Program, id: ClassId) -> BTreeMap<BucketId, BTreeMap<ClassId, usize>> {
    let mut all: BTreeMap<BucketId, BTreeMap<ClassId, usize>> = BTreeMap::new();
    for route in program.routes.iter().filter(|route| matches!(route.carried, Carried::Lookups(..)))
    {
        let Some((server, held, start, worker)) = place(program, route) else { continue };
        if server == id {
            all.entry(held).or_default().insert(worker, start);
        }
    }
    all
}

/// How far a server is with a worker's rows of a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asked,
    Taken,
    Sent,
    Gradients,
}

/// A server of which rows are looked up.
struct Server<'p> {
    program: &'p Program,
    workers: BTreeMap<BucketId, BTreeMap<ClassId, usize>>,
    known: BTreeMap<(BucketId, ClassId), Stage>,
    /// Whose rows have been taken out.
    out: Option<(BucketId, ClassId)>,
}

impl Server<'_> {
    fn step(&mut self, step: &Step<'_>) -> Result<(), &'static str> {
        let instruction = step.instruction;
        match &instruction.action {
            Action::Send { route } | Action::Receive { route } => self.exchange(*route),
            Action::TakeRows => {
                let [weights, rows] = [instruction.reads[0], instruction.reads[1]];
                let bucket = step.class.tensor(weights.tensor).bucket.ok_or("is of no table")?;
                let Window::Elements { start, .. } = rows.window else {
                    return Err("is of no worker's rows");
                };
                let workers = self.workers.get(&bucket).into_iter().flatten();
                let mut workers = workers.filter(|&(_, &first)| first == start);
                let (&worker, _) = workers.next().ok_or("is of no worker's rows")?;
                self.advance((bucket, worker), Some(Stage::Asked), Stage::Taken)?;
                self.out = Some((bucket, worker));
                Ok(())
            }
            Action::SumRows => {
                let bucket = step.class.tensor(instruction.reads[0].tensor).bucket;
                let bucket = bucket.ok_or("is of no table")?;
                for &worker in self.workers.get(&bucket).into_iter().flatten().map(|(it, _)| it) {
                    match self.known.remove(&(bucket, worker)) {
                        Some(Stage::Gradients) => {}
                        _ => return Err("is summed before all workers have sent theirs"),
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn exchange(&mut self, route: RouteId) -> Result<(), &'static str> {
        let route = self.program.route(route);
        let Some(rows) = self.program.table_rows(route) else { return Ok(()) };
        let bucket = held(self.program, &rows).ok_or("is of no piece of the server's")?;
        let of = (bucket, rows.worker);
        match route.carried {
            Carried::Lookups(..) => self.advance(of, None, Stage::Asked),
            Carried::LookedUp(..) if self.out != Some(of) => Err("are another worker's rows"),
            Carried::LookedUp(..) => self.advance(of, Some(Stage::Taken), Stage::Sent),
            _ => self.advance(of, Some(Stage::Sent), Stage::Gradients),
        }
    }

    fn advance(
        &mut self,
        of: (BucketId, ClassId),
        from: Option<Stage>,
        to: Stage,
    ) -> Result<(), &'static str> {
        match self.known.insert(of, to) == from {
            true => Ok(()),
            false => Err("comes in another order than lookups, rows and their gradients"),
        }
    }
}
