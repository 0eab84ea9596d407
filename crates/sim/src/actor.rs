//! Where an actor stands in its control, and until when its queues are taken.

use std::collections::VecDeque;

use shardloom_program::timeline::Picos;
use shardloom_program::{Cursor, Guard, Issued, Next, Outstanding, Program, Queue, RouteId, Run};

use crate::choices::Choices;
use crate::script::{Doing, Event, Item, Line, Script, Wait};
use crate::slowing::{Collectives, Slowing};
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

/// When a request ends that has not been answered, or a message that has not been sent.
pub(crate) const UNKNOWN: Picos = Picos(u64::MAX);

/// A request that an actor has made, or a message that it sends by priority.
pub(crate) struct Made<'s, 'p> {
    /// It, starting when it was made.
    pub call: Call<'p>,
    pub line: &'s Line<'p>,
    /// The micro-batch and the chunk that it is shown with.
    pub shown: (Option<u32>, Option<u32>),
    /// Its entry's table, and how often that had been taken.
    table: (usize, u64),
    /// Its number among all that was started and has to be waited for, if it is among it.
    pub number: Option<u64>,
}

/// An actor's state.
pub(crate) struct ActorState<'s, 'p> {
    pub actor: Actor,
    pub script: &'s Script<'p>,
    lanes: Lanes,
    /// What was started and not waited for, and when each of these ends.
    outstanding: Outstanding,
    ends: VecDeque<Picos>,
    /// How many of all that was started has been waited for.
    waited: u64,
    /// How many requests have been made and not answered, and messages not sent: they end at [`UNKNOWN`].
    unanswered: usize,
    /// When each queue is free.
    free: Vec<Picos>,
    /// When the host has launched the current instruction, or what it launched last.
    launched: Picos,
    /// Until when the host last waited for a message or the end of a step.
    held: Picos,
    /// Whether the current instruction has been launched.
    is_launched: bool,
    /// When the last runs of instructions ended.
    latest: Vec<Picos>,
    /// When those for a micro-batch ended; one table for each micro-batch in flight.
    tables: Vec<Vec<Picos>>,
    /// How often each table has been taken.
    taken: Vec<u64>,
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
    /// What its device is in beside its computation.
    collectives: Collectives,
    choices: Choices,
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
    /// To where it has to choose what it runs next.
    Choice,
    /// To the end of the row.
    End,
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
            waited: 0,
            unanswered: 0,
            free: vec![Picos::ZERO; script.queues()],
            launched: Picos::ZERO,
            held: Picos::ZERO,
            is_launched: false,
            latest: vec![Picos::ZERO; script.events[1]],
            tables: vec![],
            taken: vec![],
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
            collectives: Collectives::default(),
            choices: Choices::default(),
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
            (Lanes::Thread, Some(last)) => {
                self.ends.range(..=last).copied().fold(self.clock(), Picos::max)
            }
            _ => self.clock(),
        }
    }

    /// How many of what was started first has to end before the current instruction.
    fn ending(&self) -> usize {
        self.outstanding.ending_before(self.script.class, self.issued())
    }

    /// The current instruction as it is issued.
    fn issued(&self) -> Issued {
        let Run { entry, microbatch, .. } = self.run();
        Issued { body: entry.body, index: self.index as u32, microbatch }
    }

    /// Whether the actor goes on before the current instruction has ended.
    pub fn goes_on(&self) -> bool {
        self.outstanding.goes_on(self.line().instruction)
    }

    /// Waits for what has to end before the current instruction; tells of each.
    pub fn arrive(&mut self, tell: impl FnMut(Issued)) {
        let arrival = self.arrival();
        self.end_first(self.ending(), arrival, tell);
    }

    /// Waits for what ends with a step, which may be the last; tells of each.
    pub fn arrive_at_end(&mut self, is_last: bool, tell: impl FnMut(Issued)) {
        let ending = self.outstanding.ending_with_step(is_last);
        let end = self.ends.range(..ending).copied().fold(self.clock(), Picos::max);
        self.end_first(ending, end, tell);
    }

    /// Waits until `time`, when so many of what was started first have ended.
    fn end_first(&mut self, count: usize, time: Picos, mut tell: impl FnMut(Issued)) {
        for _ in 0..count {
            self.ends.pop_front();
            self.waited += 1;
            tell(self.outstanding.end_first().expect("there are as many"));
        }
        if self.lanes == Lanes::Thread {
            self.take_thread(time);
        }
    }

    /// The rank's own thread is taken until `time`.
    fn take_thread(&mut self, time: Picos) {
        let own = [Queue::Compute, Queue::Receive, Queue::Send, Queue::Prioritised];
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
        self.ready(line).max(self.free(line.instruction.queue))
    }

    /// When the current instruction is made, a request or a message that is sent by priority, when the actor has [arrived](Self::arrive) at it:
    /// whatever else is in its queue.
    pub fn ready(&self, line: &Line<'_>) -> Picos {
        let come = if self.is_blocking() { self.arrival() } else { Picos::ZERO };
        let waits = line.waits.iter().map(|wait| self.ended(wait));
        waits.fold(come.max(self.launched), Picos::max)
    }

    /// Whether the current instruction waits for a request that has not been answered, or a message not sent.
    pub fn awaits_answer(&self, line: &Line<'_>) -> bool {
        let is_unknown = |wait: &Wait| match wait {
            Wait::Queue(queue) => !queue.is_ordered(),
            Wait::Event(_) => self.ended(wait) == UNKNOWN,
        };
        self.unanswered > 0
            && (line.waits.iter().any(is_unknown)
                || self.ends.range(..self.ending()).any(|&end| end == UNKNOWN))
    }

    /// Makes the current instruction, a request or a message that is sent later, whose end is unknown.
    pub fn request(&mut self, line: &'s Line<'p>) -> Made<'s, 'p> {
        let ready = self.ready(line);
        let is_started = self.outstanding.start(self.script.class, self.issued());
        let number = is_started.then(|| {
            self.ends.push_back(UNKNOWN);
            self.waited + self.ends.len() as u64 - 1
        });
        self.unanswered += 1;
        self.note_end(line, self.table, UNKNOWN);
        let (call, shown) = (self.call(ready), (self.microbatch(), self.item().chunk));
        let table = (self.table, self.taken[self.table]);
        Made { call, line, shown, table, number }
    }

    /// A request ends at `end`, or a message that was sent later.
    pub fn answer(&mut self, made: &Made<'s, 'p>, end: Picos) {
        let Made { line, table: (table, taken), number, .. } = *made;
        self.unanswered -= 1;
        if let Some(place) = number.and_then(|number| number.checked_sub(self.waited)) {
            self.ends[place as usize] = end;
        }
        let queue = &mut self.free[line.instruction.queue.index()];
        *queue = end.max(*queue);
        let is_there = self.taken[table] == taken;
        for event in &line.ends {
            match *event {
                Event::Microbatch(event) if is_there => self.tables[table][event as usize] = end,
                Event::Microbatch(_) => {}
                Event::Latest(event) => self.latest[event as usize] = end,
            }
        }
    }

    fn note_end(&mut self, line: &Line<'_>, table: usize, end: Picos) {
        for event in &line.ends {
            match *event {
                Event::Microbatch(event) => self.tables[table][event as usize] = end,
                Event::Latest(event) => self.latest[event as usize] = end,
            }
        }
    }

    /// When what an instruction waits for has ended.
    fn ended(&self, wait: &Wait) -> Picos {
        match *wait {
            Wait::Queue(queue) => self.free(queue),
            Wait::Event(Event::Microbatch(event)) => self.tables[self.table][event as usize],
            Wait::Event(Event::Latest(event)) => self.latest[event as usize],
        }
    }

    /// When the host has launched the current instruction, or what it launched last.
    pub fn launched(&self) -> Picos {
        self.launched
    }

    /// Whether the host has launched the current instruction.
    pub fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// Whether the device, at work until `end`, goes on at `start` and no sooner because it waited for its host,
    /// which launched all the time and did not itself wait for others.
    pub fn waited_for_host(&self, end: Picos, start: Picos) -> bool {
        self.is_launched && self.launched == start && self.held <= end
    }

    /// The host launches the current instruction, which takes it so long.
    pub fn launch(&mut self, takes: Picos) {
        self.launched += takes;
        self.is_launched = true;
    }

    /// The host launches nothing before `time`.
    pub fn hold_host(&mut self, time: Picos) {
        self.held = self.held.max(time);
        self.launched = self.launched.max(time);
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
        if self.outstanding.start(self.script.class, self.issued()) {
            self.ends.push_back(end);
        }
        self.note_end(line, self.table, end);
    }

    /// Its device is in a collective from `start` to `end`.
    pub fn enter_collective(&mut self, start: Picos, end: Picos) {
        if self.lanes == Lanes::Overlap {
            self.collectives.add(start, end);
        }
    }

    /// When computation ends that starts at `start`, and takes `alone` where its device is in no collective.
    pub fn end_of(&mut self, start: Picos, alone: Picos, slowing: Slowing) -> Picos {
        self.collectives.end_of(start, alone, slowing)
    }

    /// The current instruction as a call that starts at `start`.
    pub fn call(&self, start: Picos) -> Call<'p> {
        let instruction = self.line().instruction;
        Call { actor: self.actor, run: self.run(), index: self.index, instruction, start }
    }

    /// Goes to the next instruction; bodies without instructions are passed over.
    pub fn advance(&mut self) -> Moved<'p> {
        self.is_launched = false;
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
                Some(Next::Choice) => return Moved::Choice,
                Some(Next::Run(run)) => {
                    if self.enter(run) {
                        return Moved::Entry;
                    }
                }
            }
        }
    }

    /// Whether coming to a step, or to the end of the row, is leaving another.
    pub fn leaves_step(&self, step: Option<i64>) -> bool {
        self.step != i64::MIN && step.is_none_or(|step| step > self.step)
    }

    /// Comes to an entry. Whether it has instructions; otherwise it is over.
    fn enter(&mut self, run: Run) -> bool {
        self.is_launched = false;
        self.run = Some(run);
        self.enter_entry();
        let has_any = !self.lines().is_empty();
        if !has_any {
            self.leave_entry();
        }
        has_any
    }

    /// Whether it has to choose what it runs next, as a server between two clients has.
    pub fn is_at_choice(&self) -> bool {
        self.run.is_none() && self.cursor.is_at_choice()
    }

    /// Whether it has to choose of entries that it runs once all that they receive is there; otherwise a server does,
    /// of clients, each of which it may answer once the first of what that receives has come.
    pub fn awaits_all(&self) -> bool {
        self.cursor.awaits_all()
    }

    /// What it may choose of, if it has to: by number, each with the messages that have to be there before, if they
    /// are not there yet.
    pub fn open(&self) -> impl Iterator<Item = (usize, impl Iterator<Item = RouteId> + '_)> + '_ {
        let most = if self.awaits_all() { usize::MAX } else { 1 };
        let open = self.is_at_choice().then(|| self.cursor.open());
        open.into_iter().flatten().map(move |(choice, entry)| {
            let lines = self.script.bodies[entry.body.0 as usize].iter().take(most);
            let received = lines.filter_map(|line| match line.doing {
                Doing::Receive(route) => Some(route),
                _ => None,
            });
            (choice, received)
        })
    }

    /// Looks at what it may choose of entries that it runs as what they receive comes. `arrival` says when the
    /// messages of a route are there, none if they have not been sent. What can be run first, and when.
    pub fn first_entry(
        &mut self,
        mut arrival: impl FnMut(RouteId) -> Option<Picos>,
    ) -> Option<(Picos, usize)> {
        let mut choices = std::mem::take(&mut self.choices);
        if choices.is_empty() {
            choices.begin(self.open());
        }
        choices.look(|choice| {
            let entry = self.cursor.entry(choice);
            let mut lines = self.script.bodies[entry.body.0 as usize].iter();
            // The first that is missing wakes it, which then waits for the next.
            lines.try_fold(Picos::ZERO, |ready, line| match line.doing {
                Doing::Receive(route) => Some(ready.max(arrival(route)?)),
                _ => Some(ready),
            })
        });
        let first = choices.first(self.clock());
        self.choices = choices;
        first
    }

    /// All messages of a route that it waited for have been sent.
    pub fn sent(&mut self, route: RouteId) {
        self.choices.sent(route);
    }

    /// Makes a choice.
    pub fn choose(&mut self, choice: usize) -> Moved<'p> {
        self.index = 0;
        if self.awaits_all() {
            self.choices.take(self.clock());
        }
        let run = self.cursor.choose(choice);
        if self.enter(run) { Moved::Entry } else { self.next_entry() }
    }

    /// The step in which it has to choose: the first that it has not finished with all clients.
    pub fn step_of_choice(&self) -> i64 {
        self.cursor.served_steps().unwrap_or_else(|| self.cursor.step())
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
        self.run.is_none() && !self.cursor.is_at_choice()
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
            let events = self.script.events[0];
            let fresh = || vec![Picos::ZERO; events];
            self.table_of[place] = match self.idle_tables.pop() {
                Some(table) => {
                    self.tables[table].fill(Picos::ZERO);
                    table
                }
                None => {
                    self.tables.push(fresh());
                    self.taken.push(0);
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
            let table = std::mem::replace(&mut self.table_of[place], usize::MAX);
            self.taken[table] += 1;
            self.idle_tables.push(table);
        }
        self.run = None;
    }

    fn table_place(&self) -> usize {
        let in_flight = self.table_of.len() - 1;
        self.microbatch().map_or(in_flight, |it| it as usize % in_flight)
    }
}
