//! Where an actor stands in its stream, and until when its queues are taken.

use std::collections::VecDeque;

use shardloom_program::timeline::Picos;
use shardloom_program::{Outstanding, Program, Queue, Run};

use crate::script::{Event, Item, Line, Script, Wait};
use crate::{Actor, Call};

/// What of a device's work runs beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// Every queue beside all others.
    Overlap,
    /// One instruction at a time.
    Block,
    /// A communication thread runs collectives, one at a time, beside everything else, of which there is one
    /// at a time.
    Thread,
}

/// An actor's state.
pub(crate) struct ActorState<'s, 'p> {
    pub actor: Actor,
    pub script: &'s Script<'p>,
    lanes: Lanes,
    /// What was started and not waited for, and when each of these ends.
    outstanding: Outstanding,
    ends: VecDeque<Picos>,
    /// When each queue is free.
    free: Vec<Picos>,
    /// When the last runs of instructions ended.
    latest: Vec<Picos>,
    /// When those for a micro-batch ended; one table for each micro-batch in flight.
    tables: Vec<Vec<Picos>>,
    idle_tables: Vec<usize>,
    /// The table of each micro-batch that can be in flight at a time, and at the end that of entries
    /// without one.
    table_of: Vec<usize>,
    /// The current entry's table.
    table: usize,
    /// Micro-batches of one step, and the number of steps.
    microbatches: u32,
    steps: u32,
    /// The step, from 0; below it what runs ahead of the first, after the last what is left to do of it.
    round: i64,
    /// Whether the update of the step before was wrong, and how often one was.
    amending: bool,
    amendments: u32,
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
        program: &Program,
        steps: u32,
        lanes: Lanes,
    ) -> ActorState<'s, 'p> {
        ActorState {
            actor,
            script,
            lanes,
            outstanding: Outstanding::new(program, script.class),
            ends: VecDeque::new(),
            free: vec![Picos::ZERO; script.queues()],
            latest: vec![Picos::ZERO; script.events[1]],
            tables: vec![],
            idle_tables: vec![],
            table_of: vec![usize::MAX; program.microbatches * (program.ahead as usize + 1) + 1],
            table: 0,
            microbatches: program.microbatches as u32,
            steps,
            round: -i64::from(program.ahead),
            amending: false,
            amendments: 0,
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
        self.free[Queue::Compute.index()]
    }

    /// When all queues are free.
    pub fn done(&self) -> Picos {
        self.free.iter().copied().max().unwrap_or_default()
    }

    /// When the actor comes to the current instruction, whatever that waits for in its own queue. Where lanes
    /// overlap, coming to an instruction is not waiting for anything.
    pub fn arrival(&self) -> Picos {
        match (self.lanes, self.ending().checked_sub(1)) {
            (Lanes::Thread, Some(last)) => self.clock().max(self.ends[last]),
            _ => self.clock(),
        }
    }

    /// How many of what was started first has to end before the current instruction.
    fn ending(&self) -> usize {
        self.outstanding.ending_before(self.script.class, self.run())
    }

    /// The current instruction.
    pub fn run(&self) -> Run {
        let (body, index) = (self.item().body, self.index as u32);
        Run { body, index, microbatch: self.microbatch() }
    }

    /// Whether the actor goes on before the current instruction has ended.
    pub fn goes_on(&self) -> bool {
        self.outstanding.goes_on(self.line().instruction)
    }

    /// Waits for what has to end before the current instruction; tells of each.
    pub fn arrive(&mut self, tell: impl FnMut(Run)) {
        let arrival = self.arrival();
        self.end_first(self.ending(), arrival, tell);
    }

    /// Waits for what ends with the current step; tells of each.
    pub fn arrive_at_end(&mut self, tell: impl FnMut(Run)) {
        let rounds = i64::from(self.steps) + i64::from(self.script.ends_late());
        let ending = self.outstanding.ending_with_step(self.round + 1 >= rounds);
        let last = ending.checked_sub(1).map(|last| self.ends[last]);
        let end = last.map_or(self.clock(), |last| last.max(self.clock()));
        self.end_first(ending, end, tell);
    }

    /// Waits until `time`, when so many of what was started first have ended.
    fn end_first(&mut self, count: usize, time: Picos, mut tell: impl FnMut(Run)) {
        for _ in 0..count {
            self.ends.pop_front();
            tell(self.outstanding.end_first().expect("there are as many"));
        }
        if self.lanes == Lanes::Thread {
            self.take_thread(time);
        }
    }

    /// The rank's own thread is taken until `time`.
    fn take_thread(&mut self, time: Picos) {
        let own = [Queue::Compute, Queue::Receive, Queue::Send];
        own.into_iter().for_each(|queue| self.free[queue.index()] = time);
    }

    /// Whether computation and messages take each other's time.
    pub fn is_blocking(&self) -> bool {
        self.lanes != Lanes::Overlap
    }

    /// When `queue` is free for a new instruction.
    pub fn free(&self, queue: Queue) -> Picos {
        self.free[queue.index()]
    }

    /// When the current instruction could start, when the actor has [arrived](Self::arrive) at it.
    pub fn earliest(&self, line: &Line<'_>) -> Picos {
        let table = &self.tables[self.table];
        let ended = |wait: &Wait| match *wait {
            Wait::Queue(queue) => self.free(queue),
            Wait::Event(Event::Microbatch(event)) => table[event as usize],
            Wait::Event(Event::Latest(event)) => self.latest[event as usize],
        };
        let queued = self.free(line.instruction.queue);
        let come = if self.is_blocking() { self.arrival() } else { Picos::ZERO };
        line.waits.iter().map(ended).fold(queued.max(come), Picos::max)
    }

    /// `line`, the current instruction, ends at `end`, and takes its queue until then.
    pub fn end(&mut self, line: &Line<'_>, end: Picos) {
        let is_collective = matches!(line.instruction.queue, Queue::Communicator(_));
        match self.lanes {
            Lanes::Overlap => self.free[line.instruction.queue.index()] = end,
            Lanes::Block => self.free.fill(end),
            Lanes::Thread if is_collective => self.free[Queue::count(0)..].fill(end),
            Lanes::Thread => self.take_thread(end),
        }
        if self.outstanding.start(self.script.class, self.run()) {
            self.ends.push_back(end);
        }
        for event in &line.ends {
            match *event {
                Event::Microbatch(event) => self.tables[self.table][event as usize] = end,
                Event::Latest(event) => self.latest[event as usize] = end,
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
            microbatch: self.microbatch(),
            step: self.step(),
            age: item.age,
            occurrence: item.occurrence,
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

    /// Begins the current step, or what runs ahead of the first. Whether it has any instruction.
    pub fn begin_round(&mut self) -> bool {
        self.item = 0;
        self.find_item()
    }

    /// Ends the current step. Whether it was one, and not what runs ahead of the first or is left of the
    /// last.
    pub fn end_round(&mut self) -> bool {
        self.round += 1;
        (1..=i64::from(self.steps)).contains(&self.round)
    }

    /// Whether what amends the update of the step before is to be run.
    pub fn amend(&mut self, amending: bool) {
        self.amending = amending;
        self.amendments += u32::from(amending);
    }

    /// How many updates were amended.
    pub fn amendments(&self) -> u32 {
        self.amendments
    }

    /// Whether all steps are over.
    pub fn is_through(&self) -> bool {
        self.round >= i64::from(self.steps) + i64::from(self.script.ends_late())
    }

    /// The step, from 0.
    pub fn step(&self) -> u32 {
        self.round.max(0) as u32
    }

    /// The current entry's micro-batch, counted from the first of all steps.
    pub fn microbatch(&self) -> Option<u32> {
        self.item().microbatch.map(|it| self.absolute(it) as u32)
    }

    /// What the current entry's computation is called: `F3`, `B0`, `update`.
    pub fn label(&self) -> String {
        let item = self.item();
        let ahead = self.table_of.len() as u32 > self.microbatches + 1;
        let microbatch = if ahead { self.microbatch() } else { item.microbatch };
        self.script.class.body(item.body).label(microbatch)
    }

    fn absolute(&self, microbatch: u32) -> i64 {
        self.round * i64::from(self.microbatches) + i64::from(microbatch)
    }

    /// Whether an entry belongs to one of the steps.
    fn belongs(&self, item: &Item) -> bool {
        let steps = i64::from(self.steps);
        let end = steps * i64::from(self.microbatches);
        if item.amends && !self.amending {
            return false;
        }
        match item.microbatch {
            None if item.late => self.round > 0,
            None => (0..steps).contains(&self.round),
            Some(microbatch) => (0..end).contains(&self.absolute(microbatch)),
        }
    }

    /// Makes the next entry that has instructions the current one, if there is one in the step.
    fn find_item(&mut self) -> bool {
        self.index = 0;
        while let Some(item) = self.script.items.get(self.item) {
            if self.belongs(item) {
                self.enter_item();
                if !self.script.bodies[item.body.0 as usize].is_empty() {
                    return true;
                }
                self.leave_item();
            }
            self.item += 1;
        }
        false
    }

    fn enter_item(&mut self) {
        let place = self.table_place();
        if self.item().first {
            let events = self.script.events[0];
            let fresh = || vec![Picos::ZERO; events];
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
        let in_flight = self.table_of.len() - 1;
        self.microbatch().map_or(in_flight, |it| it as usize % in_flight)
    }
}
