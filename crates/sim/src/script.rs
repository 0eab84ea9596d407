//! A class's control in the form that the engine follows: what each instruction waits for and completes
//! as numbered cells, so that no map is asked while time runs.

use std::collections::BTreeMap;

use shardloom_program::timeline::Activity;
use shardloom_program::{
    Action, Body, Class, Copies, Entry, Group, Instruction, RouteId, TensorId,
};

/// When a tensor is ready: a micro-batch's copy, or one that all micro-batches share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell(u32);

const SHARED: u32 = 1 << 31;

impl Cell {
    fn of(class: &Class, tensor: TensorId) -> Cell {
        match class.tensor(tensor).copies {
            Copies::PerMicrobatch => Cell(tensor.0),
            Copies::One | Copies::Versions(_) => Cell(SHARED | tensor.0),
        }
    }

    /// The index of its tensor.
    pub fn index(self) -> usize {
        (self.0 & !SHARED) as usize
    }

    /// Whether all micro-batches share it.
    pub fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }
}

/// What the engine does with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Only the actor's own work.
    Local,
    /// A collective of a group of the class.
    Collective { group: usize },
    /// Messages out.
    Send(RouteId),
    /// Messages in.
    Receive(RouteId),
}

/// An in-order queue of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue(usize);

impl Queue {
    pub const COMPUTE: Queue = Queue(0);
    pub const RECEIVES: Queue = Queue(1);
    pub const SENDS: Queue = Queue(2);

    /// Collectives of one of the class's groups.
    pub fn of_group(group: usize) -> Queue {
        Queue(Queue::SENDS.0 + 1 + group)
    }

    pub fn index(self) -> usize {
        self.0
    }
}

/// One instruction.
pub(crate) struct Line<'p> {
    pub instruction: &'p Instruction,
    pub doing: Doing,
    /// Cells that must be ready; those of [`Line::sets`] among them.
    pub waits: Vec<Cell>,
    /// Cells that are ready afterwards.
    pub sets: Vec<Cell>,
    /// Whether it may not start before computation is through with all instructions before it.
    pub in_step: bool,
    /// For people, where it is not computation.
    pub label: String,
}

impl Line<'_> {
    /// The queue in which it ends.
    pub fn queue(&self) -> Queue {
        match self.doing {
            Doing::Local => Queue::COMPUTE,
            Doing::Collective { group, .. } => Queue::of_group(group),
            Doing::Send(_) => Queue::SENDS,
            Doing::Receive(_) => Queue::RECEIVES,
        }
    }
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
    /// Different groups among its collectives.
    pub groups: Vec<Group>,
}

impl<'p> Script<'p> {
    pub fn of(class: &'p Class) -> Script<'p> {
        let mut script = Script { class, bodies: vec![], items: items(class), groups: vec![] };
        for body in &class.bodies {
            let mut lines = vec![];
            for instruction in &body.instructions {
                let line = script.line(instruction, body);
                lines.push(line);
            }
            script.bodies.push(lines);
        }
        script
    }

    /// How many queues an actor has.
    pub fn queues(&self) -> usize {
        Queue::of_group(self.groups.len()).index()
    }

    fn line(&mut self, instruction: &'p Instruction, body: &Body) -> Line<'p> {
        let class = self.class;
        let cell = |tensor| Cell::of(class, tensor);
        let mut sets: Vec<Cell> =
            instruction.writes.iter().map(|write| cell(write.to.tensor)).collect();
        let mut waits: Vec<Cell> = instruction.reads.iter().map(|it| cell(it.tensor)).collect();
        waits.extend(&sets);
        // What is written again waits until it was read for the last time before.
        let freed = instruction.frees.iter().map(|&tensor| cell(tensor));
        sets.extend(freed.filter(|cell| cell.is_shared()));
        waits.sort_by_key(|cell| cell.0);
        waits.dedup();
        sets.sort_by_key(|cell| cell.0);
        sets.dedup();
        let doing = match &instruction.action {
            &Action::Send { route } => Doing::Send(route),
            &Action::Receive { route } => Doing::Receive(route),
            Action::Collective { group, .. } => Doing::Collective { group: self.group(group) },
            _ => Doing::Local,
        };
        let label = match doing {
            Doing::Local => String::new(),
            _ => instruction.label(class, body, None),
        };
        let in_step = match doing {
            Doing::Collective { .. } => cell(instruction.reads[0].tensor).is_shared(),
            _ => false,
        };
        Line { instruction, doing, waits, sets, in_step, label }
    }

    fn group(&mut self, group: &Group) -> usize {
        self.groups.iter().position(|known| known == group).unwrap_or_else(|| {
            self.groups.push(group.clone());
            self.groups.len() - 1
        })
    }
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
