//! A class's stream in the form that the engine follows: what each instruction waits for and completes
//! as numbered cells, so that no map is asked while time runs.

use std::collections::BTreeMap;

use shardloom_program::timeline::Activity;
use shardloom_program::{
    Action, Body, BodyId, Class, Copies, Group, Instruction, Program, RouteId, StreamItem, TensorId,
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

/// One entry of the stream.
pub(crate) struct Item {
    pub body: BodyId,
    /// Counted from the first of the step; beyond the step's, one of a later step.
    pub microbatch: Option<u32>,
    pub age: u32,
    /// How many entries before it run the same body on the same micro-batch.
    pub occurrence: u32,
    /// Whether no earlier entry works on this micro-batch.
    pub first: bool,
    /// Whether no later entry works on this micro-batch.
    pub last: bool,
    /// Whether it ends the step before.
    pub late: bool,
    /// Whether it is run only where the update of the step before was wrong.
    pub amends: bool,
    /// What its computation is.
    pub activity: Activity,
    /// The chunk of the model, where the device holds several.
    pub chunk: Option<u32>,
}

/// What all actors of one class follow.
pub(crate) struct Script<'p> {
    pub class: &'p Class,
    pub bodies: Vec<Vec<Line<'p>>>,
    pub items: Vec<Item>,
    /// Different groups among its collectives.
    pub groups: Vec<Group>,
}

impl<'p> Script<'p> {
    pub fn of(program: &'p Program, class: &'p Class) -> Script<'p> {
        let mut script =
            Script { class, bodies: vec![], items: items(program, class), groups: vec![] };
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

    /// Whether something of a step is left to do in the next.
    pub fn ends_late(&self) -> bool {
        self.class.ends_late()
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

fn items(program: &Program, class: &Class) -> Vec<Item> {
    let microbatches = program.microbatches as u32;
    // When an entry works on a micro-batch: the step, counted from the one that the micro-batch belongs
    // to, and the place in it.
    let when = |index: usize, microbatch: u32| (-i64::from(microbatch / microbatches), index);
    let mut ends = BTreeMap::new();
    // What amends comes between.
    for (index, item) in class.stream.iter().enumerate().filter(|(_, item)| !item.amends) {
        if let Some(microbatch) = item.microbatch {
            let at = when(index, microbatch);
            let ends = ends.entry(microbatch % microbatches).or_insert((at, at));
            *ends = (ends.0.min(at), ends.1.max(at));
        }
    }
    let item = |(index, item): (usize, &StreamItem)| {
        let (first, last) = item.microbatch.map_or((true, true), |microbatch| {
            let (first, last) = ends[&(microbatch % microbatches)];
            let at = when(index, microbatch);
            match item.amends {
                // Of a micro-batch that is under way, or only to drop something of one that is not.
                true => (at < first, at < first),
                false => (at == first, at == last),
            }
        });
        let body = class.body(item.body);
        Item {
            body: item.body,
            microbatch: item.microbatch,
            age: item.age,
            occurrence: item.occurrence,
            first,
            last,
            late: item.late,
            amends: item.amends,
            activity: body.kind.activity(),
            chunk: body.part.chunk,
        }
    };
    class.stream.iter().enumerate().map(item).collect()
}
