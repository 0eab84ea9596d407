//! A class's stream in the form that the engine follows: what each instruction waits for and completes
//! as numbered cells, so that no map is asked while time runs.

use std::collections::BTreeMap;

use shardloom_program::timeline::Activity;
use shardloom_program::{
    Action, Body, BodyId, BucketId, Class, Group, Instruction, Operand, Program, RouteId,
    StreamItem,
};

/// Something that is ready at some time: a slot of the current micro-batch, or one of the class's
/// lasting things (a bucket's weights, gradients, statistics; the gradient norm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell(u32);

const LASTING: u32 = 1 << 31;

impl Cell {
    /// Its index, among the lasting cells or the micro-batch's.
    pub fn index(self) -> usize {
        (self.0 & !LASTING) as usize
    }

    /// Whether it outlives the micro-batch.
    pub fn is_lasting(self) -> bool {
        self.0 & LASTING != 0
    }
}

/// Numbers the lasting cells of a class: three per bucket, then the norm.
#[derive(Clone, Copy)]
struct Lasting {
    buckets: u32,
}

impl Lasting {
    fn weights(self, bucket: BucketId) -> Cell {
        Cell(LASTING | bucket.0)
    }

    fn gradients(self, bucket: BucketId) -> Cell {
        Cell(LASTING | (self.buckets + bucket.0))
    }

    fn statistics(self, bucket: BucketId) -> Cell {
        Cell(LASTING | (2 * self.buckets + bucket.0))
    }

    fn norm(self) -> Cell {
        Cell(LASTING | (3 * self.buckets))
    }

    fn count(self) -> usize {
        3 * self.buckets as usize + 1
    }
}

/// What the engine does with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Only the actor's own work.
    Local,
    /// A collective of a group of the class, after the actor's own share of work if it has one.
    Collective { group: usize, share: bool },
    /// Messages out.
    Send(RouteId),
    /// Messages in.
    Receive(RouteId),
}

/// What works through its instructions one after another, in stream order.
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
    pub lag: u32,
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
    pub lasting_cells: usize,
}

impl<'p> Script<'p> {
    pub fn of(program: &'p Program, class: &'p Class) -> Script<'p> {
        let lasting = Lasting { buckets: class.buckets.len() as u32 };
        let mut script = Script {
            class,
            bodies: vec![],
            items: items(program, class),
            groups: vec![],
            lasting_cells: lasting.count(),
        };
        for body in &class.bodies {
            let mut lines = vec![];
            for instruction in &body.instructions {
                let line = script.line(program, lasting, instruction, body);
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

    fn line(
        &mut self,
        program: &Program,
        lasting: Lasting,
        instruction: &'p Instruction,
        body: &Body,
    ) -> Line<'p> {
        let class = self.class;
        let cell = |operand: Operand| match operand {
            Operand::Slot(slot) => Cell(slot.0),
            Operand::Weight(param) => lasting.weights(class.param(param).bucket),
            Operand::Gradient(param) => lasting.gradients(class.param(param).bucket),
            Operand::Norm => lasting.norm(),
        };
        let mut sets: Vec<Cell> = instruction.writes.iter().map(|write| cell(write.to)).collect();
        let mut waits: Vec<Cell> = instruction.reads.iter().map(|&read| cell(read)).collect();
        waits.extend(&sets);
        match instruction.action {
            Action::Gather { bucket } => {
                waits.push(lasting.weights(bucket));
                sets.push(lasting.weights(bucket));
            }
            Action::Reduce { bucket, .. } => {
                waits.push(lasting.gradients(bucket));
                sets.push(lasting.gradients(bucket));
            }
            Action::Norm { .. } => {
                waits.extend(class.buckets().map(|(bucket, _)| lasting.gradients(bucket)));
                waits.push(lasting.norm());
                sets.push(lasting.norm());
            }
            Action::Statistics { bucket, .. } => {
                let statistics = lasting.statistics(bucket);
                waits.extend([lasting.gradients(bucket), lasting.norm(), statistics]);
                sets.push(statistics);
            }
            Action::Backup { bucket } => {
                waits.extend([lasting.weights(bucket), lasting.norm()]);
            }
            Action::Validate => waits.push(lasting.norm()),
            Action::Update { bucket } => {
                waits.extend([
                    lasting.weights(bucket),
                    lasting.gradients(bucket),
                    lasting.norm(),
                    lasting.statistics(bucket),
                ]);
                sets.push(lasting.weights(bucket));
            }
            _ => {}
        }
        waits.sort_by_key(|cell| cell.0);
        waits.dedup();
        sets.sort_by_key(|cell| cell.0);
        sets.dedup();
        // Who takes part is the same at all positions.
        let exchange = program.exchange(class, 0, instruction);
        let doing = match (&instruction.action, &exchange) {
            (&Action::Send { route }, _) => Doing::Send(route),
            (&Action::Receive { route }, _) => Doing::Receive(route),
            (action, Some(exchange)) => Doing::Collective {
                group: self.group(&exchange.group),
                share: matches!(action, Action::Norm { .. } | Action::Statistics { .. }),
            },
            (_, None) => Doing::Local,
        };
        let label = match doing {
            Doing::Local => String::new(),
            _ => instruction.label(class, body, None),
        };
        let in_step = matches!(instruction.action, Action::Gather { .. } | Action::Reduce { .. });
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
            lag: item.lag,
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
