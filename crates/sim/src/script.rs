//! A class's control in the form that the engine follows: what instructions wait for as numbered events, so
//! that no map is asked while time runs.

use std::collections::{BTreeMap, HashMap};

use shardloom_program::timeline::Activity;
use shardloom_program::{Action, Body, BodyId, Class, Entry, Instruction, Point, Queue, RouteId};

/// The end of an instruction's last run, where others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// For the same micro-batch.
    Microbatch(u32),
    /// Of all.
    Latest(u32),
}

/// Something that an instruction waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Everything that was issued to a queue before.
    Queue(Queue),
    /// An event.
    Event(Event),
}

/// What the engine does with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Only the actor's own work.
    Local,
    /// A collective of a group of the class.
    Collective { group: usize },
    /// The same in an order that members agree on while running.
    Request { group: usize },
    /// Messages out.
    Send(RouteId),
    /// Messages in.
    Receive(RouteId),
    /// Only the actor's own work, after which others may fetch from it.
    Publish,
    /// What another has published.
    Fetch,
}

/// One instruction.
pub(crate) struct Line<'p> {
    pub instruction: &'p Instruction,
    pub doing: Doing,
    /// What must have ended before it starts, but for what stands before it in its queue.
    pub waits: Vec<Wait>,
    /// What others wait for of it.
    pub ends: Vec<Event>,
    /// For people, where it is not computation.
    pub label: String,
}

/// One entry of the control.
pub(crate) struct Item {
    /// Whether no later entry works on this micro-batch.
    pub last: bool,
    /// What its computation is.
    pub activity: Activity,
    /// The chunk of the model, where the device holds several.
    pub chunk: Option<u32>,
}

/// What all actors of one class follow.
pub(crate) struct Script<'p> {
    pub class: &'p Class,
    pub bodies: Vec<Vec<Line<'p>>>,
    /// By the number of an entry.
    pub items: Vec<Item>,
    /// Events of each kind: for the same micro-batch, and of all.
    pub events: [usize; 2],
}

impl<'p> Script<'p> {
    pub fn of(class: &'p Class) -> Script<'p> {
        let lines = |body: &'p Body| {
            let line = |instruction| line(class, body, instruction);
            body.instructions.iter().map(line).collect()
        };
        let bodies = class.bodies.iter().map(lines).collect();
        let mut script = Script { class, bodies, items: items(class), events: [0; 2] };
        script.number_events();
        script
    }

    /// How many queues an actor has.
    pub fn queues(&self) -> usize {
        Queue::count(self.class.communicators.len())
    }

    /// Gives numbers to the events that instructions wait for.
    fn number_events(&mut self) {
        let mut numbers: HashMap<(bool, BodyId, u32), Event> = HashMap::new();
        for (index, body) in self.class.bodies.iter().enumerate() {
            for (number, instruction) in body.instructions.iter().enumerate() {
                for &point in &instruction.after {
                    let (latest, at, place) = match point {
                        Point::Queue(queue) => {
                            self.bodies[index][number].waits.push(Wait::Queue(queue));
                            continue;
                        }
                        Point::Here(place) => (false, BodyId(index as u32), place),
                        Point::Microbatch(body, place) => (false, body, place),
                        Point::Latest(body, place) => (true, body, place),
                    };
                    let event = *numbers.entry((latest, at, place)).or_insert_with(|| {
                        let count = &mut self.events[usize::from(latest)];
                        let number = *count as u32;
                        *count += 1;
                        if latest { Event::Latest(number) } else { Event::Microbatch(number) }
                    });
                    self.bodies[index][number].waits.push(Wait::Event(event));
                }
            }
        }
        for ((_, body, place), event) in numbers {
            self.bodies[body.0 as usize][place as usize].ends.push(event);
        }
    }
}

fn line<'p>(class: &Class, body: &Body, instruction: &'p Instruction) -> Line<'p> {
    let doing = match (&instruction.action, instruction.queue) {
        (&Action::Send { route }, _) => Doing::Send(route),
        (&Action::Receive { route }, _) => Doing::Receive(route),
        (Action::Publish { .. }, _) => Doing::Publish,
        (Action::Fetch { .. }, _) => Doing::Fetch,
        (Action::Collective { .. }, Queue::Communicator(group)) => {
            Doing::Collective { group: usize::from(group) }
        }
        (Action::Collective { .. }, Queue::Negotiated(group)) => {
            Doing::Request { group: usize::from(group) }
        }
        (Action::Collective { .. }, queue) => {
            panic!("a collective runs in the queue of its communicator, not in {queue:?}")
        }
        _ => Doing::Local,
    };
    let label = match doing {
        Doing::Local | Doing::Publish => String::new(),
        _ => instruction.label(class, body, None),
    };
    Line { instruction, doing, waits: vec![], ends: vec![], label }
}

fn items(class: &Class) -> Vec<Item> {
    // When an entry works on a micro-batch: the step, counted from the one that the micro-batch belongs
    // to, and the place in it.
    let when = |number: usize, entry: &Entry| (-entry.shift, number);
    let mut ends = BTreeMap::new();
    let numbered = || class.entries_by_arm().enumerate();
    // What stands in an arm of a guard comes between.
    for (number, (_, entry)) in numbered().filter(|(_, (arm, _))| arm.is_none()) {
        if let Some(microbatch) = entry.microbatch {
            let end = ends.entry(microbatch).or_insert(when(number, entry));
            *end = when(number, entry).max(*end);
        }
    }
    let item = |(number, (arm, entry)): (usize, (Option<bool>, &Entry))| {
        let last = match entry.microbatch {
            None => true,
            Some(microbatch) => arm.is_none() && ends[&microbatch] == when(number, entry),
        };
        let body = class.body_of(entry);
        Item { last, activity: body.kind.activity(), chunk: body.part.chunk }
    };
    numbered().map(item).collect()
}
