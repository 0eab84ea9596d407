//! Control: which bodies a rank runs in a step, in which order, and the cursor that follows it through a
//! row of steps.
//!
//! The control of a class is one step. An entry's shift says which step its work belongs to, so that a row
//! of steps runs ahead of its first step and has something left to do after its last; what belongs to no
//! step of the row is left out. A guard has two arms, of which a rank runs one, by a flag that it has
//! computed. A server answers its clients as they come, in all steps of a row; one that sums runs a step's entries in
//! the order in which what they receive has come. Simulator, executors, verifier, buffer plan and memory all follow
//! the one [`Cursor`].

mod serving;

use serving::Serving;
pub use serving::{Client, Handler, Serve, When};

use crate::class::{Body, BodyId, BodyKind, Class, ClassId, Program};
use crate::{Action, Group, View};

/// A body that is run once in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The body to run.
    pub body: BodyId,
    /// On which micro-batch of the step that it belongs to; none for what belongs to the step.
    pub microbatch: Option<u32>,
    /// Which step it belongs to: 0 the one that it stands in, 1 the next, -1 the one before.
    pub shift: i32,
    /// With the weights as they were so many updates ago, or as they were when the pipeline was filled
    /// if that is later.
    pub age: u32,
    /// How many entries of the control before it run the same body on the same micro-batch, as updates in
    /// rounds do. One that runs a body once more, in an arm of a guard, has the number of the first.
    pub occurrence: u32,
}

impl Entry {
    /// An entry of its own step, with the newest weights.
    pub fn new(body: BodyId, microbatch: Option<u32>) -> Entry {
        Entry { body, microbatch, shift: 0, age: 0, occurrence: 0 }
    }

    /// Whether another runs the same body on the same micro-batch.
    pub fn is_like(&self, other: &Entry) -> bool {
        let key = |it: &Entry| (it.body, it.microbatch, it.shift);
        key(self) == key(other)
    }
}

/// Entries of which ranks run one arm. Both arms leave the same tensors behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// A flag: one byte, zero where it does not hold.
    pub on: View,
    /// The ranks that take the same arm. They read equal flags, since what these are computed from is
    /// reduced over all of them, sent from one to the others, or the number of the step.
    pub agreed: Group,
    /// Which step the flag is about, as [`Entry::shift`].
    pub shift: i32,
    /// What is run where the flag holds.
    pub then: Vec<Entry>,
    /// What is run where it does not.
    pub otherwise: Vec<Entry>,
}

impl Guard {
    /// One of its arms.
    pub fn arm(&self, holds: bool) -> &[Entry] {
        if holds { &self.then } else { &self.otherwise }
    }
}

/// A part of what a class does in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Runs an entry.
    Run(Entry),
    /// Runs one of two arms.
    Guard(Guard),
    /// Answers clients in all steps of a row. A class that does so has no other control.
    Serve(Serve),
    /// Runs each of these entries once, the next always one of which all that it receives has come.
    AsReceived(Vec<Entry>),
}

/// An entry in one step of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The entry.
    pub entry: Entry,
    /// Its number among [all entries](Class::entries) of the control.
    pub number: usize,
    /// The arm of a guard that it stands in, by whether the guard's flag holds.
    pub arm: Option<bool>,
    /// The step of the row that it stands in: below 0 ahead of the first, beyond the last what is left to
    /// do after it.
    pub step: i64,
    /// Its micro-batch, counted from the first of the row.
    pub microbatch: Option<u32>,
}

impl Run {
    /// An entry by itself, as in an evaluation.
    pub fn alone(entry: Entry) -> Run {
        Run { entry, number: 0, arm: None, step: 0, microbatch: entry.microbatch }
    }

    /// The step of the row that a rank is at when it runs it: the first also for what runs ahead of it.
    pub fn at_step(&self) -> u32 {
        self.step.max(0) as u32
    }

    /// The step of the row that its work belongs to.
    pub fn of_step(&self) -> i64 {
        self.step + i64::from(self.entry.shift)
    }
}

/// What a rank comes to next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next<'p> {
    /// An entry to run.
    Run(Run),
    /// A guard in a step of the row: [`Cursor::take`] says which arm.
    Guard(&'p Guard, i64),
    /// A choice that is made while running, of whom a server answers next or which entry it runs: [`Cursor::open`]
    /// says which there are, and [`Cursor::choose`] which it is.
    Choice,
}

/// A place in the control of a class over a row of steps.
#[derive(Clone, Debug)]
pub struct Cursor<'p> {
    control: &'p [Control],
    microbatches: i64,
    /// The step that the place is in, and the first after the last that holds anything.
    step: i64,
    end: i64,
    /// How many steps are in the row; none where nothing is left out.
    steps: Option<i64>,
    /// The part of the control, and the number of its first entry.
    at: usize,
    number: usize,
    /// The arm that is run: its entries, the number of the first, and how many of them have been run.
    arm: Option<(bool, &'p [Entry], usize, usize)>,
    /// The clients that are answered.
    serving: Option<Serving<'p>>,
    /// Of entries that are run in the order in which what they receive comes, if it has come to such, the places of
    /// those that are left.
    left: Vec<usize>,
    is_at_entries: bool,
}

impl<'p> Cursor<'p> {
    fn new(program: &Program, class: &'p Class, from: i64, end: i64) -> Cursor<'p> {
        Cursor {
            control: &class.control,
            microbatches: program.microbatches as i64,
            step: from,
            end,
            steps: None,
            at: 0,
            number: 0,
            arm: None,
            serving: None,
            left: vec![],
            is_at_entries: false,
        }
    }

    /// What a rank comes to next; none at the end of the row.
    ///
    /// # Panics
    /// If it stands at a guard and nobody has said which arm it takes.
    pub fn advance(&mut self) -> Option<Next<'p>> {
        while self.step < self.end {
            if let Some((holds, entries, number, done)) = &mut self.arm {
                let (holds, index) = (*holds, *done);
                let number = *number + index;
                match entries.get(index) {
                    Some(&entry) => {
                        *done += 1;
                        if let Some(run) = self.run(entry, number, Some(holds)) {
                            return Some(Next::Run(run));
                        }
                    }
                    None => {
                        self.arm = None;
                        self.pass();
                    }
                }
                continue;
            }
            if let Some(serving) = &mut self.serving {
                if serving.is_over() {
                    self.serving = None;
                    self.pass();
                    // It was all steps.
                    self.step = if self.steps.is_some() { self.end } else { self.step };
                } else if self.steps.is_some() {
                    return Some(Next::Choice);
                } else {
                    return Some(Next::Run(self.choose_in_turn()));
                }
                continue;
            }
            match self.control.get(self.at) {
                None => {
                    self.step += 1;
                    (self.at, self.number) = (0, 0);
                }
                Some(&Control::Run(entry)) => {
                    let run = self.run(entry, self.number, None);
                    self.pass();
                    if let Some(run) = run {
                        return Some(Next::Run(run));
                    }
                }
                Some(Control::Guard(guard)) => {
                    if self.holds_step(guard.shift) {
                        return Some(Next::Guard(guard, self.step));
                    }
                    self.pass();
                }
                Some(Control::Serve(serve)) => {
                    let steps = match self.steps {
                        Some(steps) => 0..steps,
                        None => self.step..self.step + 1,
                    };
                    self.serving = Some(Serving::new(serve, steps, self.number));
                }
                Some(Control::AsReceived(entries)) => {
                    if !self.is_at_entries && self.holds_step(0) {
                        self.is_at_entries = true;
                        self.left.extend(0..entries.len());
                    }
                    if self.left.is_empty() {
                        self.is_at_entries = false;
                        self.pass();
                    } else if self.steps.is_some() {
                        return Some(Next::Choice);
                    } else {
                        return Some(Next::Run(self.choose_in_turn()));
                    }
                }
            }
        }
        None
    }

    /// What the rank may choose of where it has come to a choice: clients that it may answer or entries that are left,
    /// each by its number among them with the entry that would be run. What that receives may not have been sent
    /// yet: [`Cursor::awaits_all`] says how much of it has to be there.
    pub fn open(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        let clients = self.serving.iter().flat_map(Serving::open);
        let clients = clients.map(|(client, handler)| (client, handler.run));
        let left = self.left.iter().map(|&place| (place, self.as_received()[place]));
        clients.chain(left)
    }

    /// Whether it has come to a choice.
    pub fn is_at_choice(&self) -> bool {
        self.serving.is_some() || self.is_at_entries
    }

    /// Whether an entry may be chosen once all that it receives has been sent, and not by what it receives first.
    pub fn awaits_all(&self) -> bool {
        self.is_at_entries
    }

    /// Makes a choice, and says what is run for it.
    ///
    /// # Panics
    /// If it is not [open](Cursor::open).
    pub fn choose(&mut self, choice: usize) -> Run {
        if self.is_at_entries {
            let place = self.left.binary_search(&choice);
            self.left.remove(place.expect("an entry is run once"));
            let run = self.run(self.entry(choice), self.number + choice, None);
            return run.expect("the entries are of a step of the row");
        }
        let serving = self.serving.as_mut().expect("a server answers clients");
        serving.serve(choice)
    }

    /// Answers the client that is furthest behind, the first of several, or runs the first entry that is left.
    pub fn choose_in_turn(&mut self) -> Run {
        if let Some(&first) = self.left.first() {
            return self.choose(first);
        }
        let serving = self.serving.as_mut().expect("a server answers clients");
        serving.serve_in_turn()
    }

    /// One of the entries that are run as what they receive comes.
    ///
    /// # Panics
    /// If it has not come to such.
    pub fn entry(&self, choice: usize) -> Entry {
        self.as_received()[choice]
    }

    /// The entries of which some are left.
    fn as_received(&self) -> &'p [Entry] {
        match &self.control[self.at] {
            Control::AsReceived(entries) => entries,
            _ => &[],
        }
    }

    /// The step of the row that it is in.
    pub fn step(&self) -> i64 {
        self.step
    }

    /// Up to which step each client of a server has ended its steps, by their number among its clients.
    pub(crate) fn clocks(&self) -> &[i64] {
        self.serving.as_ref().map_or(&[], Serving::clocks)
    }

    /// How many steps of the row a server has finished with all of its clients.
    pub fn served_steps(&self) -> Option<i64> {
        self.serving.as_ref().map(Serving::finished)
    }

    /// Takes an arm of the guard that the rank has come to.
    ///
    /// # Panics
    /// If it has not come to a guard.
    pub fn take(&mut self, holds: bool) {
        let Some(Control::Guard(guard)) = self.control.get(self.at) else {
            panic!("an arm is taken at a guard")
        };
        let first = self.number + if holds { 0 } else { guard.then.len() };
        self.arm = Some((holds, guard.arm(holds), first, 0));
    }

    /// The entries to come where the flags of all guards hold, or of none, and servers answer clients in
    /// turn.
    pub fn runs(mut self, holds: bool) -> impl Iterator<Item = Run> + use<'p> {
        std::iter::from_fn(move || {
            loop {
                match self.advance()? {
                    Next::Run(run) => return Some(run),
                    Next::Guard(..) => self.take(holds),
                    Next::Choice => return Some(self.choose_in_turn()),
                }
            }
        })
    }

    /// The entries to come in both arms of all guards, that where a flag holds first.
    pub fn runs_of_both_arms(mut self) -> impl Iterator<Item = Run> + use<'p> {
        let mut waiting = vec![].into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(run) = waiting.next() {
                    return Some(run);
                }
                match self.advance()? {
                    Next::Run(run) => return Some(run),
                    Next::Choice => return Some(self.choose_in_turn()),
                    Next::Guard(..) => {
                        waiting = [true, false].map(|holds| self.arm(holds)).concat().into_iter();
                        self.leave_arm();
                    }
                }
            }
        })
    }

    /// The entries of an arm of the guard that the rank has come to.
    pub fn arm(&self, holds: bool) -> Vec<Run> {
        let mut there = self.clone();
        there.take(holds);
        let mut runs = vec![];
        while let Some(Next::Run(run)) = there.advance()
            && run.arm.is_some()
        {
            runs.push(run);
        }
        runs
    }

    /// Passes over what is left of an arm.
    pub(crate) fn leave_arm(&mut self) {
        self.arm = None;
        self.pass();
    }

    /// Goes on to the next part of the control.
    fn pass(&mut self) {
        self.number += match &self.control[self.at] {
            Control::Run(_) => 1,
            Control::Guard(guard) => guard.then.len() + guard.otherwise.len(),
            Control::Serve(serve) => serve.handlers().count(),
            Control::AsReceived(entries) => entries.len(),
        };
        self.at += 1;
    }

    /// Whether what belongs to so many steps later is of a step of the row.
    fn holds_step(&self, shift: i32) -> bool {
        let step = self.step + i64::from(shift);
        self.steps.is_none_or(|steps| (0..steps).contains(&step))
    }

    /// An entry of the current step; none if it belongs to no step of the row.
    fn run(&self, entry: Entry, number: usize, arm: Option<bool>) -> Option<Run> {
        let step = self.step;
        let first = (step + i64::from(entry.shift)) * self.microbatches;
        let microbatch = entry.microbatch.map(|it| (first + i64::from(it)) as u32);
        let run = Run { entry, number, arm, step, microbatch };
        self.holds_step(entry.shift).then_some(run)
    }
}

impl Program {
    /// A place before a row of so many steps of `class`: what is run ahead of the first comes first, and
    /// what is left to do of the last comes last.
    pub fn cursor<'p>(&self, class: &'p Class, steps: u32) -> Cursor<'p> {
        let steps = i64::from(steps);
        let (ahead, late) = (class.ahead(), class.late());
        let cursor = Cursor::new(self, class, -i64::from(ahead), steps + i64::from(late));
        Cursor { steps: Some(steps), ..cursor }
    }

    /// A place before so many steps of `class` of a row without ends, of which nothing is left out.
    pub(crate) fn endless<'p>(&self, class: &'p Class, steps: u32) -> Cursor<'p> {
        Cursor::new(self, class, 0, i64::from(steps))
    }
}

impl Class {
    /// All entries of a step in order, with those of both arms of guards, that where a flag holds first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries_by_arm().map(|(_, entry)| entry)
    }

    /// The same, each with the arm that it stands in.
    pub fn entries_by_arm(&self) -> impl Iterator<Item = (Option<bool>, &Entry)> {
        self.control.iter().flat_map(|part| {
            let (own, [then, otherwise], served) = match part {
                Control::Run(entry) => (std::slice::from_ref(entry), [&[][..]; 2], None),
                Control::Guard(guard) => (&[][..], [true, false].map(|it| guard.arm(it)), None),
                Control::Serve(serve) => (&[][..], [&[][..]; 2], Some(serve.handlers())),
                Control::AsReceived(entries) => (&entries[..], [&[][..]; 2], None),
            };
            let served = served.into_iter().flatten().map(|handler| &handler.run);
            let own = own.iter().chain(served).map(|entry| (None, entry));
            let then = then.iter().map(|entry| (Some(true), entry));
            let otherwise = otherwise.iter().map(|entry| (Some(false), entry));
            own.chain(then).chain(otherwise)
        })
    }

    /// The server for which an entry with this number is run, whose replicas a server has; none for all others.
    pub fn served_owner(&self, program: &Program, number: usize) -> Option<ClassId> {
        let serve = self.serves()?;
        let client = serve.clients[serve.client_of(number)?].class;
        program.class(client).serves().map(|_| client)
    }

    /// The entries that every step has: those outside of guards.
    pub fn unguarded(&self) -> impl Iterator<Item = &Entry> {
        self.entries_by_arm().filter(|(arm, _)| arm.is_none()).map(|(_, entry)| entry)
    }

    /// Its guards.
    pub fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.control.iter().filter_map(|part| match part {
            Control::Run(_) | Control::Serve(_) | Control::AsReceived(_) => None,
            Control::Guard(guard) => Some(guard),
        })
    }

    /// Whether a guard of it tests an update that was made before, and undoes what has run since.
    pub fn tests_updates(&self) -> bool {
        self.guards().any(|guard| guard.shift < 0)
    }

    /// Whether a flag holds in a step, counted from 0 since the start of the run, where that depends on nothing
    /// else; none of a flag that follows from what is trained.
    pub fn is_due(&self, flag: View, step: u64) -> Option<bool> {
        let mut instructions = self.bodies.iter().flat_map(|body| &body.instructions);
        instructions.find_map(|instruction| match instruction.action {
            Action::Due { every } if instruction.writes.iter().any(|it| it.to == flag) => {
                Some((step + 1).is_multiple_of(u64::from(every.get())))
            }
            _ => None,
        })
    }

    /// What it does for clients; none if it has none.
    pub fn serves(&self) -> Option<&Serve> {
        self.control.iter().find_map(|part| match part {
            Control::Serve(serve) => Some(serve),
            Control::Run(_) | Control::Guard(_) | Control::AsReceived(_) => None,
        })
    }

    /// How many steps it runs ahead of the one that it updates weights for.
    fn ahead(&self) -> u32 {
        self.entries().map(|entry| entry.shift.max(0)).max().unwrap_or(0) as u32
    }

    /// How many steps later something of a step is left to do.
    pub fn late(&self) -> u32 {
        let shifts = self.entries().map(|entry| entry.shift);
        let shifts = shifts.chain(self.guards().map(|guard| guard.shift));
        shifts.map(|shift| shift.min(0).unsigned_abs()).max().unwrap_or(0)
    }

    /// Whether an entry of a guard's arm runs once more what every step runs.
    pub fn repeats(&self, entry: &Entry) -> bool {
        self.unguarded().any(|it| it.is_like(entry))
    }

    /// How often a step updates the weights, each time with the gradients since the last, of which the mean
    /// counts; those that a server makes for its clients are parts of one.
    pub fn updates(&self) -> u32 {
        if self.serves().is_some() {
            return 1;
        }
        let of_kind = |kind| {
            self.unguarded().filter(move |entry| self.body(entry.body).kind == kind).count() as u32
        };
        // All parts make one update.
        of_kind(BodyKind::Epilogue) + of_kind(BodyKind::PartOfUpdate).min(1)
    }

    /// The body of an entry.
    pub fn body_of(&self, entry: &Entry) -> &Body {
        self.body(entry.body)
    }
}
