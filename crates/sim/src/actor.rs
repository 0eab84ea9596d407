//! Where an actor stands in its control, and until when its queues are taken.

use shardloom_program::timeline::Picos;
use shardloom_program::{Cursor, Guard, Next, Program, RouteId, Run};

use crate::script::{Cell, Doing, Item, Line, Queue, Script};
use crate::{Actor, Call};

/// An actor's state.
pub(crate) struct ActorState<'s, 'p> {
    pub actor: Actor,
    pub script: &'s Script<'p>,
    /// Whether each instruction takes all queues.
    blocking: bool,
    /// When each queue is free.
    free: Vec<Picos>,
    /// When shared cells are ready.
    shared: Vec<Picos>,
    /// When slots are ready; one table for each micro-batch in flight.
    tables: Vec<Vec<Picos>>,
    idle_tables: Vec<usize>,
    /// The table of each micro-batch that can be in flight at a time, and at the end that of entries
    /// without one.
    table_of: Vec<usize>,
    /// The current entry's table.
    table: usize,
    /// The number of steps, and whether some entry runs ahead of them.
    steps: u32,
    runs_ahead: bool,
    cursor: Cursor<'p>,
    /// The current entry; none before the first and after the last.
    run: Option<Run>,
    index: usize,
    /// The step that it has come to.
    step: i64,
    /// How often it has run each body.
    times: Vec<u64>,
}

/// How far an actor has come by moving on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moved<'p> {
    /// Within an entry.
    Within,
    /// To the next entry.
    Entry,
    /// To a guard in a step.
    Guard(&'p Guard, i64),
    /// To where a server answers whoever is there.
    Serve,
    /// To the end of the row.
    End,
}

impl<'s, 'p> ActorState<'s, 'p> {
    pub fn new(
        actor: Actor,
        script: &'s Script<'p>,
        program: &Program,
        steps: u32,
        blocking: bool,
    ) -> ActorState<'s, 'p> {
        ActorState {
            actor,
            script,
            blocking,
            free: vec![Picos::ZERO; script.queues()],
            shared: vec![Picos::ZERO; script.class.tensors.len()],
            tables: vec![],
            idle_tables: vec![],
            table_of: vec![usize::MAX; program.microbatches * (program.ahead as usize + 1) + 1],
            table: 0,
            steps,
            runs_ahead: program.ahead > 0,
            cursor: program.cursor(script.class, steps),
            run: None,
            index: 0,
            step: i64::MIN,
            times: vec![0; script.class.bodies.len()],
        }
    }

    /// The current entry in its step.
    ///
    /// # Panics
    /// Before the first entry and after the last: the engine asks those that have come to one.
    pub fn run(&self) -> Run {
        self.run.expect("the actor is at an entry")
    }

    /// What is known of the current entry.
    pub fn item(&self) -> &'s Item {
        &self.script.items[self.run().number]
    }

    /// The current instruction.
    pub fn line(&self) -> &'s Line<'p> {
        &self.lines()[self.index]
    }

    fn lines(&self) -> &'s [Line<'p>] {
        &self.script.bodies[self.run().entry.body.0 as usize]
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
        let ready = |cell: &Cell| match cell.is_shared() {
            true => self.shared[cell.index()],
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
            match cell.is_shared() {
                true => self.shared[cell.index()] = end,
                false => self.tables[self.table][cell.index()] = end,
            }
        }
    }

    /// The current instruction as a call that starts at `start`.
    pub fn call(&self, start: Picos) -> Call<'p> {
        let instruction = self.line().instruction;
        Call { actor: self.actor, run: self.run(), index: self.index, instruction, start }
    }

    /// Goes to the next instruction; bodies without instructions are passed over.
    pub fn advance(&mut self) -> Moved<'p> {
        self.index += 1;
        if self.index < self.lines().len() {
            return Moved::Within;
        }
        self.leave_entry();
        self.next_entry()
    }

    /// Takes an arm of the guard that it has come to, and goes to the next instruction.
    pub fn take(&mut self, holds: bool) -> Moved<'p> {
        self.cursor.take(holds);
        self.next_entry()
    }

    /// Goes to the next entry that has instructions.
    pub fn next_entry(&mut self) -> Moved<'p> {
        self.index = 0;
        loop {
            match self.cursor.advance() {
                None => return Moved::End,
                Some(Next::Guard(guard, step)) => return Moved::Guard(guard, step),
                Some(Next::Serve) => return Moved::Serve,
                Some(Next::Run(run)) => {
                    if self.enter(run) {
                        return Moved::Entry;
                    }
                }
            }
        }
    }

    /// Comes to an entry. Whether it has instructions; otherwise it is over.
    fn enter(&mut self, run: Run) -> bool {
        self.run = Some(run);
        self.enter_entry();
        let has_any = !self.lines().is_empty();
        if !has_any {
            self.leave_entry();
        }
        has_any
    }

    /// Whether it is a server that answers nobody.
    pub fn is_between_clients(&self) -> bool {
        self.run.is_none() && self.cursor.served_steps().is_some()
    }

    /// Whom it may answer, if it stands between two clients: by number, and the first message of what it
    /// would do, if that is one that comes.
    pub fn open(&self) -> Option<impl Iterator<Item = (usize, Option<RouteId>)> + '_> {
        self.is_between_clients().then(|| {
            self.cursor.open().map(|(client, handler)| {
                let lines = &self.script.bodies[handler.run.body.0 as usize];
                let first = lines.first().map(|line| line.doing);
                (
                    client,
                    first.and_then(|doing| match doing {
                        Doing::Receive(route) => Some(route),
                        _ => None,
                    }),
                )
            })
        })
    }

    /// Answers a client.
    pub fn serve(&mut self, client: usize) -> Moved<'p> {
        self.index = 0;
        let run = self.cursor.serve(client);
        if self.enter(run) { Moved::Entry } else { self.next_entry() }
    }

    /// How many steps it has finished with all clients.
    pub fn served_steps(&self) -> Option<i64> {
        self.cursor.served_steps()
    }

    /// Comes to a step, or to the end of the row. How many steps are over by that.
    pub fn come_to(&mut self, step: Option<i64>) -> usize {
        let over = |step: i64| step.clamp(0, i64::from(self.steps));
        let step = step.unwrap_or(i64::MAX);
        let passed = over(step) - over(self.step);
        self.step = step;
        passed as usize
    }

    /// How often it has run each body.
    pub fn times(&self) -> &[u64] {
        &self.times
    }

    /// Whether it has run everything.
    pub fn is_through(&self) -> bool {
        self.run.is_none() && self.cursor.served_steps().is_none()
    }

    /// The current entry's micro-batch, counted from the first of all steps.
    pub fn microbatch(&self) -> Option<u32> {
        self.run().microbatch
    }

    /// What the current entry's computation is called: `F3`, `B0`, `update`.
    pub fn label(&self) -> String {
        let Run { entry, microbatch, .. } = self.run();
        let shown = if self.runs_ahead { microbatch } else { entry.microbatch };
        self.script.class.body_of(&entry).label(shown)
    }

    fn enter_entry(&mut self) {
        let place = self.table_place();
        if self.table_of[place] == usize::MAX {
            let slots = self.script.class.tensors.len();
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

    fn leave_entry(&mut self) {
        let body = self.run().entry.body;
        self.times[body.0 as usize] += 1;
        if self.item().last {
            let place = self.table_place();
            self.idle_tables.push(std::mem::replace(&mut self.table_of[place], usize::MAX));
        }
        self.run = None;
    }

    fn table_place(&self) -> usize {
        let in_flight = self.table_of.len() - 1;
        self.microbatch().map_or(in_flight, |it| it as usize % in_flight)
    }
}
