//! Which collectives a rank has started and not yet waited for.
//!
//! A rank with a communication thread starts a collective where it comes to it, and goes on. The thread runs
//! what it is given one after the other; what is negotiated another thread runs in the order that is agreed on. The rank waits for a collective, and so for all that it started
//! before, where an instruction comes to a [point](Point) of it, or is in the same queue and touches what it
//! touches. That depends on the order of instructions alone and never on time, so that ranks, the simulator,
//! the buffer plan and who counts memory agree about it: what a collective touches lives until it is waited
//! for.
//!
//! So nothing is touched too early. Take an instruction that must come after a collective, by the points and
//! queues between them (as [`verify`](crate::verify) proves for all that touch the same tensor). Where that
//! order leaves the collective's queue by a point, whoever has the point waits for something of that queue
//! that was started no earlier. Where it never leaves the queue, the instruction is itself in it.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use shardloom_plan::Communication;

use crate::{
    Action, Allocation, BodyId, Class, Content, Copies, Instruction, Point, Program, Queue, Run,
    TensorId,
};

/// An instruction of a body, as an entry runs it.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The body.
    pub body: BodyId,
    /// The instruction's place in it.
    pub index: u32,
    /// The entry's micro-batch, counted from the first of all steps.
    pub microbatch: Option<u32>,
}

impl Issued {
    /// The instruction.
    pub fn instruction(self, class: &Class) -> &Instruction {
        &class.body(self.body).instructions[self.index as usize]
    }

    /// The queue that it runs in.
    fn queue(self, class: &Class) -> Queue {
        self.instruction(class).queue
    }

    /// Whether it touches a copy of a tensor that another touches.
    fn shares(self, other: Issued, class: &Class) -> bool {
        let copy = |run: Issued, tensor: TensorId| Allocation {
            tensor,
            microbatch: run
                .microbatch
                .filter(|_| class.tensor(tensor).copies == Copies::PerMicrobatch),
        };
        let touched = |run: Issued| {
            let instruction = run.instruction(class);
            // What negotiation needs is touched where nobody waits for it.
            let is_waited_for =
                |tensor: &TensorId| class.tensor(*tensor).content != Content::Negotiation;
            let operands = instruction.operands().map(|view| view.tensor).filter(is_waited_for);
            operands.chain(instruction.frees.iter().copied()).map(move |it| copy(run, it))
        };
        touched(self).any(|one| touched(other).any(|another| one == another))
    }
}

/// What a rank of a class has started and not yet waited for, in the order of its start.
#[derive(Clone, Debug)]
pub struct Outstanding {
    has_thread: bool,
    /// Whether steps end with all that they started.
    flushes: bool,
    started: VecDeque<Issued>,
}

impl Outstanding {
    /// Nothing yet, of a rank of `class`. Without a communication thread that stays so.
    pub fn new(program: &Program, class: &Class) -> Outstanding {
        let has_thread = program.communication == Communication::Thread;
        let flushes = program.ahead == 0 && class.late() == 0;
        Outstanding { has_thread, flushes, started: VecDeque::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.started.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.started.is_empty()
    }

    /// Whether the rank goes on before `instruction` has ended.
    pub fn goes_on(&self, instruction: &Instruction) -> bool {
        self.has_thread && matches!(instruction.action, Action::Collective { .. })
    }

    /// How many of those that were started first are waited for before `run`.
    pub fn ending_before(&self, class: &Class, run: Issued) -> usize {
        if self.started.is_empty() {
            return 0;
        }
        let instruction = run.instruction(class);
        // What a guard's arms may drop must not come back.
        if instruction.action == Action::Test {
            return self.started.len();
        }
        let waits = |&started: &Issued| {
            let queue = started.queue(class);
            let at = |body: BodyId, index: u32| (started.body, started.index) == (body, index);
            let has_point = instruction.after.iter().any(|&point| match point {
                Point::Queue(other) => other == queue,
                Point::Here(index) => at(run.body, index),
                Point::Latest(body, index) => at(body, index),
                Point::Microbatch(body, index) => {
                    at(body, index) && started.microbatch == run.microbatch
                }
            });
            has_point || (instruction.queue == queue && run.shares(started, class))
        };
        self.started.iter().rposition(waits).map_or(0, |last| last + 1)
    }

    /// How many are waited for at the end of a step: all of them with a flush, and at the end of the last
    /// step of a row.
    pub fn ending_with_step(&self, is_last: bool) -> usize {
        if self.flushes || is_last { self.started.len() } else { 0 }
    }

    /// Notes that `run` was started, if the rank goes on before it has ended. Whether it does.
    pub fn start(&mut self, class: &Class, run: Issued) -> bool {
        let goes_on = self.goes_on(run.instruction(class));
        if goes_on {
            self.started.push_back(run);
        }
        goes_on
    }

    /// Notes that the one that was started first has been waited for.
    pub fn end_first(&mut self) -> Option<Issued> {
        self.started.pop_front()
    }
}

/// What becomes of an instruction that a rank comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment<'p> {
    /// It starts.
    Start(Issued, &'p Instruction),
    /// It has ended, and the rank knows it: of what the rank goes on from when it has been waited for, which
    /// may be after the entry that it is of.
    End(Issued, &'p Instruction, Ended),
}

/// When an instruction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    WithinEntry,
    Later,
}

/// A rank that follows the entries of its control, with what it has started and not yet waited for.
#[derive(Clone, Debug)]
pub(crate) struct Follower<'p> {
    class: &'p Class,
    outstanding: Outstanding,
    /// How many of these were started in the last entry.
    started_here: usize,
    /// The step of that entry.
    step: Option<i64>,
}

impl<'p> Follower<'p> {
    /// A rank of `class` before its first entry.
    pub fn new(program: &Program, class: &'p Class) -> Follower<'p> {
        let outstanding = Outstanding::new(program, class);
        Follower { class, outstanding, started_here: 0, step: None }
    }

    /// Runs the next entry.
    pub fn run(&mut self, run: &Run, mut visit: impl FnMut(Moment<'p>)) {
        let class = self.class;
        if self.step.replace(run.step).is_some_and(|before| before != run.step) {
            self.end_first(self.outstanding.ending_with_step(false), &mut visit);
        }
        self.started_here = 0;
        let body = run.entry.body;
        for (index, instruction) in (0u32..).zip(&class.body(body).instructions) {
            let issued = Issued { body, index, microbatch: run.microbatch };
            self.end_first(self.outstanding.ending_before(class, issued), &mut visit);
            visit(Moment::Start(issued, instruction));
            match self.outstanding.start(class, issued) {
                true => self.started_here += 1,
                false => visit(Moment::End(issued, instruction, Ended::WithinEntry)),
            }
        }
    }

    /// Comes to the end of a row, after its last entry.
    pub fn finish(&mut self, mut visit: impl FnMut(Moment<'p>)) {
        self.end_first(self.outstanding.ending_with_step(true), &mut visit);
    }

    /// Waits for so many of those that were started first.
    fn end_first(&mut self, count: usize, visit: &mut impl FnMut(Moment<'p>)) {
        for _ in 0..count {
            let ended = match self.outstanding.len() > self.started_here {
                true => Ended::Later,
                false => Ended::WithinEntry,
            };
            self.started_here -= usize::from(ended == Ended::WithinEntry);
            let issued = self.outstanding.end_first().expect("there are as many");
            visit(Moment::End(issued, issued.instruction(self.class), ended));
        }
    }
}
