//! What one queue writes another touches only after it, and what one reads another changes only after it.
//!
//! Every queue has a clock that counts its instructions, and every instruction the clocks of all queues
//! that have to have come so far before it (vector clocks: Mattern 1989): those of the instruction before it
//! in its queue, and of the points that it waits for. Two instructions that touch the same tensor, one of
//! them writing, are in order if the later one's clocks include the earlier one.

use std::collections::{BTreeMap, HashMap};

use super::row::{Row, Step, entries, instructions};
use super::violation::Violation;
use crate::{Action, BodyId, Class, ClassId, Copies, Point, Program, Queue, TensorId};

/// How many instructions of each queue are over.
type Clocks = Vec<u32>;

/// Whether queues and points are what their instruction can have.
pub(super) fn check_queue(step: &Step<'_>, found: &mut Vec<Violation>) {
    let class = step.class;
    let fits = match (&step.instruction.action, step.instruction.queue) {
        (Action::Send { .. }, queue) => queue == Queue::Send,
        (Action::Receive { .. }, queue) => queue == Queue::Receive,
        (Action::Collective { group, .. }, Queue::Communicator(number)) => {
            class.communicators.get(usize::from(number)) == Some(group)
        }
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

/// An instruction that has touched a tensor: its queue, and its number there.
type Touch = (Queue, u32);

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
            let (queue, clocks) = run.clocks(&step);
            // Entries without a micro-batch have what is theirs alone.
            let copy = |tensor: TensorId| match class.tensor(tensor).copies {
                Copies::PerMicrobatch => {
                    Some((entry.microbatch, number * usize::from(entry.microbatch.is_none())))
                }
                Copies::One | Copies::Versions(_) => None,
            };
            let mut touch = |tensor: TensorId, writes: bool| {
                let touched = run.touched.entry((tensor, copy(tensor))).or_default();
                let reads = touched.reads.iter().filter(|_| writes);
                let before = touched.write.iter().chain(reads);
                let is_over = |&&(queue, number): &&Touch| clocks[queue.index()] >= number;
                if before.clone().any(|it| !is_over(&it)) {
                    let tensor = step.tensor_name(tensor);
                    found.push(Violation::Race { at: step.site(), tensor });
                }
                let this = (queue, clocks[queue.index()]);
                match writes {
                    true => *touched = Touched { write: Some(this), reads: vec![] },
                    false => {
                        touched.reads.retain(|(other, _)| *other != queue);
                        touched.reads.push(this);
                    }
                }
            };
            let instruction = step.instruction;
            instruction.reads.iter().for_each(|read| touch(read.tensor, false));
            instruction.writes.iter().for_each(|write| touch(write.to.tensor, true));
            instruction.frees.iter().for_each(|&tensor| touch(tensor, true));
            run.end(&step, queue, clocks);
        }
    }
}

/// Which copy of a tensor, where each micro-batch, or each entry that has none, has one.
type Copied = Option<(Option<u32>, usize)>;

/// How far the queues of a rank have come.
struct Run {
    /// Of each queue those of its last instruction.
    last: Vec<Clocks>,
    /// Of each instruction of this entry.
    here: Vec<Clocks>,
    microbatch: HashMap<(BodyId, u32, Option<u32>), Clocks>,
    latest: HashMap<(BodyId, u32), Clocks>,
    touched: BTreeMap<(TensorId, Copied), Touched>,
}

impl Run {
    fn new(class: &Class) -> Run {
        let queues = Queue::count(class.communicators.len());
        Run {
            last: vec![vec![0; queues]; queues],
            here: vec![],
            microbatch: HashMap::new(),
            latest: HashMap::new(),
            touched: BTreeMap::new(),
        }
    }

    /// The queue of an instruction, and what has to be over before it ends, itself included.
    fn clocks(&self, step: &Step<'_>) -> (Queue, Clocks) {
        let queue = step.instruction.queue;
        let mut clocks = self.last[queue.index()].clone();
        for &point in &step.instruction.after {
            let reached = match point {
                Point::Queue(queue) => self.last.get(queue.index()),
                Point::Here(number) => self.here.get(number as usize),
                Point::Microbatch(body, number) => {
                    self.microbatch.get(&(body, number, step.run.microbatch))
                }
                Point::Latest(body, number) => self.latest.get(&(body, number)),
            };
            for (clock, &reached) in clocks.iter_mut().zip(reached.into_iter().flatten()) {
                *clock = (*clock).max(reached);
            }
        }
        clocks[queue.index()] += 1;
        (queue, clocks)
    }

    fn end(&mut self, step: &Step<'_>, queue: Queue, clocks: Clocks) {
        let (body, number) = (step.run.entry.body, step.index as u32);
        self.here.push(clocks.clone());
        self.microbatch.insert((body, number, step.run.microbatch), clocks.clone());
        self.latest.insert((body, number), clocks.clone());
        self.last[queue.index()] = clocks;
    }
}
