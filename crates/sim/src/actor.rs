//! Where an actor stands in its stream, and until when its queues are taken.

use shardloom_program::timeline::Picos;

use crate::script::{Cell, Item, Line, Queue, Script};
use crate::{Actor, Call};

/// An actor's state.
pub(crate) struct ActorState<'s, 'p> {
    pub actor: Actor,
    pub script: &'s Script<'p>,
    /// Whether each instruction takes all queues.
    blocking: bool,
    /// When each queue is free.
    free: Vec<Picos>,
    /// When lasting cells are ready.
    lasting: Vec<Picos>,
    /// When slots are ready; one table for each micro-batch in flight.
    tables: Vec<Vec<Picos>>,
    idle_tables: Vec<usize>,
    /// The table of each micro-batch, and at the end that of entries without one.
    table_of: Vec<usize>,
    /// The current entry's table.
    table: usize,
    pub step: u32,
    item: usize,
    index: usize,
}

/// How far an actor has come by moving on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Within a stream entry.
    Within,
    /// To the next entry of the step.
    Entry,
    /// To the end of the step.
    Step,
}

impl<'s, 'p> ActorState<'s, 'p> {
    pub fn new(
        actor: Actor,
        script: &'s Script<'p>,
        microbatches: usize,
        blocking: bool,
    ) -> ActorState<'s, 'p> {
        ActorState {
            actor,
            script,
            blocking,
            free: vec![Picos::ZERO; script.queues()],
            lasting: vec![Picos::ZERO; script.lasting_cells],
            tables: vec![],
            idle_tables: vec![],
            table_of: vec![usize::MAX; microbatches + 1],
            table: 0,
            step: 0,
            item: 0,
            index: 0,
        }
    }

    /// The current stream entry.
    pub fn item(&self) -> &'s Item {
        &self.script.items[self.item]
    }

    /// The current instruction.
    pub fn line(&self) -> &'s Line<'p> {
        &self.script.bodies[self.item().body.0 as usize][self.index]
    }

    /// When computation is free: the actor's clock.
    pub fn clock(&self) -> Picos {
        self.free[Queue::COMPUTE.index()]
    }

    /// When all queues are free.
    pub fn done(&self) -> Picos {
        self.free.iter().copied().max().unwrap_or_default()
    }

    /// Whether each instruction takes all queues.
    pub fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// When `queue` is free for a new instruction.
    pub fn free(&self, queue: Queue) -> Picos {
        self.free[queue.index()]
    }

    /// When the current instruction could start on `queue`.
    pub fn earliest(&self, line: &Line<'_>, queue: Queue) -> Picos {
        let table = &self.tables[self.table];
        let ready = |cell: &Cell| match cell.is_lasting() {
            true => self.lasting[cell.index()],
            false => table[cell.index()],
        };
        let free = self.free(queue);
        let free = if line.in_step { free.max(self.clock()) } else { free };
        line.waits.iter().map(ready).fold(free, Picos::max)
    }

    /// Takes `queue` until `end`.
    pub fn occupy(&mut self, queue: Queue, end: Picos) {
        match self.blocking {
            true => self.free.fill(end),
            false => self.free[queue.index()] = end,
        }
    }

    /// What `line` completes is ready at `end`.
    pub fn complete(&mut self, line: &Line<'_>, end: Picos) {
        for cell in &line.sets {
            match cell.is_lasting() {
                true => self.lasting[cell.index()] = end,
                false => self.tables[self.table][cell.index()] = end,
            }
        }
    }

    /// The current instruction as a call that starts at `start`.
    pub fn call(&self, start: Picos) -> Call<'p> {
        let item = self.item();
        Call {
            actor: self.actor,
            body: item.body,
            index: self.index,
            instruction: self.line().instruction,
            microbatch: item.microbatch,
            step: self.step,
            start,
        }
    }

    /// Goes to the next instruction of the stream; bodies without instructions are passed over.
    pub fn advance(&mut self) -> Moved {
        self.index += 1;
        if self.index < self.script.bodies[self.item().body.0 as usize].len() {
            return Moved::Within;
        }
        self.leave_item();
        self.item += 1;
        if self.find_item() { Moved::Entry } else { Moved::Step }
    }

    /// Begins a step. Whether it has any instruction.
    pub fn begin_step(&mut self) -> bool {
        self.item = 0;
        self.find_item()
    }

    /// Makes the next entry that has instructions the current one, if there is one in the step.
    fn find_item(&mut self) -> bool {
        self.index = 0;
        while let Some(item) = self.script.items.get(self.item) {
            self.enter_item();
            if !self.script.bodies[item.body.0 as usize].is_empty() {
                return true;
            }
            self.leave_item();
            self.item += 1;
        }
        false
    }

    fn enter_item(&mut self) {
        let place = self.table_place();
        if self.item().first {
            let slots = self.script.class.slots.len();
            let fresh = || vec![Picos::ZERO; slots];
            self.table_of[place] = match self.idle_tables.pop() {
                Some(table) => {
                    self.tables[table].fill(Picos::ZERO);
                    table
                }
                None => {
                    self.tables.push(fresh());
                    self.tables.len() - 1
                }
            };
        }
        self.table = self.table_of[place];
    }

    fn leave_item(&mut self) {
        if self.item().last {
            self.idle_tables.push(self.table_of[self.table_place()]);
        }
    }

    fn table_place(&self) -> usize {
        self.item().microbatch.map_or(self.table_of.len() - 1, |it| it as usize)
    }
}
