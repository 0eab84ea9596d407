//! What one queue writes another touches only after it, and what one reads another changes only after it.
//!
//! What is negotiated, or sent by priority, follows its points and nothing of its queue.
//!
//! Every queue has a clock that counts its instructions, and every instruction the clocks of all queues
//! that have to have come so far before it (vector clocks: Mattern 1989): those of the instruction before it
//! in its queue, and of the points that it waits for. Two instructions that touch the same tensor, one of
//! them writing, are in order if the later one's clocks include the earlier one.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::row::{Row, Step, entries, instructions};
use super::violation::Violation;
use crate::{Action, BodyId, Class, ClassId, Content, Copies, Point, Program, Queue, TensorId};

/// How many instructions of each queue are over.
type Clocks = Rc<[u32]>;

/// Whether queues and points are what their instruction can have.
pub(super) fn check_queue(program: &Program, step: &Step<'_>, found: &mut Vec<Violation>) {
    let class = step.class;
    let fits = match (&step.instruction.action, step.instruction.queue) {
        (&Action::Send { route }, queue) => {
            match program.routes.get(route.0 as usize).and_then(|it| it.priority) {
                Some(_) => queue == Queue::Prioritised,
                None => queue == Queue::Send,
            }
        }
        (Action::Receive { .. } | Action::Fetch { .. }, queue) => queue == Queue::Receive,
        (
            Action::Collective { group, .. },
            Queue::Communicator(number) | Queue::Negotiated(number),
        ) => class.communicators.get(usize::from(number)) == Some(group),
        (_, queue) => queue == Queue::Compute && !step.instruction.involves_others(),
    };
    let exists = |body: BodyId, number: u32| {
        let body = class.bodies.get(body.0 as usize);
        body.is_some_and(|body| (number as usize) < body.instructions.len())
    };
    let points_exist = step.instruction.after.iter().all(|&point| match point {
        Point::Queue(queue) => queue.index() < Queue::count(class.communicators.len()),
        Point::Here(number) => (number as usize) < step.index,
        Point::Microbatch(body, number) | Point::Latest(body, number) => exists(body, number),
    });
    if !fits {
        let fault = format!("its queue is not {}", step.instruction.queue);
        found.push(Violation::Operands { at: step.site(), fault });
    }
    if !points_exist {
        let fault = "it waits for an instruction that there is not".to_owned();
        found.push(Violation::Operands { at: step.site(), fault });
    }
}

/// An instruction that has touched a tensor: its line, and its number there.
type Touch = (usize, u32);

/// Who touched a tensor last.
#[derive(Default)]
struct Touched {
    write: Option<Touch>,
    reads: Vec<Touch>,
}

/// Follows the queues of a class through a row.
pub(super) fn check(program: &Program, id: ClassId, row: Row, found: &mut Vec<Violation>) {
    let class = program.class(id);
    let mut run = Run::new(class);
    let all = entries(program, class, row);
    for (number, entry) in all.iter().enumerate() {
        run.here.clear();
        for step in instructions(class, id, std::slice::from_ref(entry)) {
            let (line, clocks) = run.clocks(&step);
            // Entries without a micro-batch have what is theirs alone.
            let copy = |tensor: TensorId| match class.tensor(tensor).copies {
                Copies::PerMicrobatch => {
                    Some((entry.microbatch, number * usize::from(entry.microbatch.is_none())))
                }
                Copies::One | Copies::Versions(_) => None,
            };
            let mut touch = |tensor: TensorId, writes: bool| {
                // Requests alone touch that, and are carried out one list after the other.
                if class.tensor(tensor).content == Content::Negotiation {
                    return;
                }
                let touched = run.touched.entry((tensor, copy(tensor))).or_default();
                let reads = touched.reads.iter().filter(|_| writes);
                let before = touched.write.iter().chain(reads);
                let is_over = |&&(line, number): &&Touch| clocks[line] >= number;
                if before.clone().any(|it| !is_over(&it)) {
                    let tensor = step.tensor_name(tensor);
                    found.push(Violation::Race { at: step.site(), tensor });
                }
                let this = (line, clocks[line]);
                match writes {
                    true => *touched = Touched { write: Some(this), reads: vec![] },
                    false => {
                        touched.reads.retain(|(other, _)| *other != line);
                        touched.reads.push(this);
                    }
                }
            };
            let instruction = step.instruction;
            instruction.reads.iter().for_each(|read| touch(read.tensor, false));
            instruction.writes.iter().for_each(|write| touch(write.to.tensor, true));
            instruction.frees.iter().for_each(|&tensor| touch(tensor, true));
            run.end(&step, line, clocks);
        }
    }
}

/// Which copy of a tensor, where each micro-batch, or each entry that has none, has one.
type Copied = Option<(Option<u32>, usize)>;

/// How far the queues of a rank have come. A line is what keeps its order: a queue, or of one without an
/// order a single instruction, which is issued anew only when it has been carried out.
struct Run {
    /// Of each line those of its last instruction.
    last: Vec<Clocks>,
    /// The lines of what no order keeps.
    unordered: FxHashMap<(BodyId, usize), (Queue, usize)>,
    /// Of each instruction of this entry.
    here: Vec<Clocks>,
    microbatch: FxHashMap<(BodyId, u32, Option<u32>), Clocks>,
    latest: FxHashMap<(BodyId, u32), Clocks>,
    /// The instructions of bodies that points are.
    points: FxHashSet<(BodyId, u32)>,
    touched: FxHashMap<(TensorId, Copied), Touched>,
}

impl Run {
    fn new(class: &Class) -> Run {
        let queues = Queue::count(class.communicators.len());
        let unordered = class.instructions().filter(|(_, _, it)| !it.queue.is_ordered());
        let unordered: FxHashMap<_, _> = unordered
            .enumerate()
            .map(|(line, (body, index, it))| ((body, index), (it.queue, queues + line)))
            .collect();
        let lines = queues + unordered.len();
        let point = |point: &Point| match *point {
            Point::Microbatch(body, number) | Point::Latest(body, number) => Some((body, number)),
            Point::Queue(_) | Point::Here(_) => None,
        };
        let waited = class.instructions().flat_map(|(_, _, it)| &it.after);
        Run {
            last: vec![vec![0; lines].into(); lines],
            unordered,
            here: vec![],
            microbatch: FxHashMap::default(),
            latest: FxHashMap::default(),
            points: waited.filter_map(point).collect(),
            touched: FxHashMap::default(),
        }
    }

    /// The line of an instruction, and what has to be over before it ends, itself included.
    fn clocks(&self, step: &Step<'_>) -> (usize, Clocks) {
        let own = self.unordered.get(&(step.run.entry.body, step.index));
        let line = own.map_or(step.instruction.queue.index(), |&(_, line)| line);
        let mut clocks = self.last[line].to_vec();
        for &point in &step.instruction.after {
            if let Point::Queue(queue) = point
                && !queue.is_ordered()
            {
                let lines = self.unordered.values().filter(|(of, _)| *of == queue);
                lines.for_each(|&(_, line)| join(&mut clocks, &self.last[line]));
                continue;
            }
            let reached = match point {
                Point::Queue(queue) => self.last.get(queue.index()),
                Point::Here(number) => self.here.get(number as usize),
                Point::Microbatch(body, number) => {
                    self.microbatch.get(&(body, number, step.run.microbatch))
                }
                Point::Latest(body, number) => self.latest.get(&(body, number)),
            };
            reached.into_iter().for_each(|reached| join(&mut clocks, reached));
        }
        clocks[line] += 1;
        (line, clocks.into())
    }

    fn end(&mut self, step: &Step<'_>, line: usize, clocks: Clocks) {
        let (body, number) = (step.run.entry.body, step.index as u32);
        self.here.push(Rc::clone(&clocks));
        if self.points.contains(&(body, number)) {
            self.microbatch.insert((body, number, step.run.microbatch), Rc::clone(&clocks));
            self.latest.insert((body, number), Rc::clone(&clocks));
        }
        self.last[line] = clocks;
    }
}

fn join(clocks: &mut [u32], others: &[u32]) {
    for (clock, &other) in clocks.iter_mut().zip(others) {
        *clock = (*clock).max(other);
    }
}
