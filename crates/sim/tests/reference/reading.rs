//! What the reference reads of a program: for each rank the entries of its control over some steps, and
//! of each instruction what it touches, in which queue it stands, and who else takes part.
//!
//! Nothing else here looks at the program's types.

use shardloom_cluster::Cluster;
use shardloom_program::{
    Action, Body, BodyId, Class, ClassId, Control, Copies, Entry as Listed, Group, Instruction,
    Program, Rank, RouteId, TensorId,
};

/// Something that is ready from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// A tensor of a micro-batch, or of an entry that has none.
    Value(TensorId),
    /// A tensor that all micro-batches share.
    Shared(TensorId),
}

/// What an instruction does to time.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// The rank's own work.
    Own,
    /// Likewise; and it finds out whether the update before was right.
    Test,
    /// Messages out, one after another: their numbers in the route.
    Send { route: RouteId, messages: Vec<usize> },
    /// Messages in, all of them: their numbers in the route.
    Receive { route: RouteId, messages: Vec<usize> },
    /// A collective of these ranks.
    Collective { queue: Group, members: Vec<Rank> },
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Operation {
    pub kind: Kind,
    /// What has to be ready: all that it reads, adds to or overwrites.
    pub needs: Vec<Thing>,
    /// What is ready once it is over.
    pub makes: Vec<Thing>,
    /// Whether it waits until computation has come to where it stands.
    pub in_step: bool,
}

/// Where an instruction stands when it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub rank: Rank,
    pub class: ClassId,
    pub position: usize,
    pub body: BodyId,
    pub index: usize,
    /// Counted from the first of all steps.
    pub microbatch: Option<u32>,
    pub step: u32,
    pub age: u32,
    pub occurrence: u32,
}

/// One entry of a rank's control in one step.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The step that it stands in: below 0 ahead of the first, beyond the last what is left of it.
    pub round: i64,
    /// Whether it is run only where the update of the step before was right, or only where it was wrong.
    pub only: Option<bool>,
    /// The body, from its first instruction.
    pub at: At,
    pub body: BodyId,
}

/// One rank.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Whether it computes and communicates at once.
    pub overlaps: bool,
    pub entries: Vec<Entry>,
    /// Of each body its instructions.
    pub bodies: Vec<Vec<Operation>>,
}

/// All ranks of `program` in order, over so many steps, on the devices of `cluster`.
pub fn read(program: &Program, cluster: &Cluster, steps: u32) -> Vec<Reading> {
    let mut ranks = vec![];
    for (id, class) in program.classes() {
        for position in 0..class.mesh.size() {
            let device = cluster.kind_of(class.devices[position]).expect("the cluster has it");
            let operation = |it: &Instruction| operation(program, (id, class, position), it);
            let body = |body: &Body| body.instructions.iter().map(operation).collect();
            ranks.push(Reading {
                overlaps: device.lanes_overlap,
                entries: entries(program, (id, class, position), steps),
                bodies: class.bodies.iter().map(body).collect(),
            });
        }
    }
    ranks
}

/// The control once for each step, once more for each step that the program runs ahead, and once more for
/// what is left of the last; of these the entries that belong to one of the steps.
fn entries(program: &Program, (id, class, position): Place<'_>, steps: u32) -> Vec<Entry> {
    let (steps, microbatches) = (i64::from(steps), program.microbatches as i64);
    let mut entries = vec![];
    for round in -i64::from(program.ahead)..=steps {
        for (only, listed) in listed(class) {
            let Listed { body, microbatch, shift, age, occurrence } = listed;
            let of = round + i64::from(shift);
            // Nothing is run of steps before the first or after the last.
            if of < 0 || of >= steps {
                continue;
            }
            let microbatch = microbatch.map(|it| of * microbatches + i64::from(it));
            let at = At {
                rank: Rank(class.first_rank.0 + position as u32),
                class: id,
                position,
                body,
                index: 0,
                microbatch: microbatch.map(|it| it as u32),
                step: round.max(0) as u32,
                age,
                occurrence,
            };
            entries.push(Entry { round, only, at, body });
        }
    }
    entries
}

/// A step's entries, both arms of guards among them.
fn listed(class: &Class) -> Vec<(Option<bool>, Listed)> {
    let mut all = vec![];
    for part in &class.control {
        match part {
            Control::Run(entry) => all.push((None, *entry)),
            Control::Guard(guard) => {
                all.extend(guard.then.iter().map(|entry| (Some(true), *entry)));
                all.extend(guard.otherwise.iter().map(|entry| (Some(false), *entry)));
            }
            Control::Serve(_) => unreachable!("the reference knows no servers"),
        }
    }
    all
}

type Place<'p> = (ClassId, &'p Class, usize);

fn operation(
    program: &Program,
    (id, class, position): Place<'_>,
    instruction: &Instruction,
) -> Operation {
    let thing = |tensor: TensorId| match class.tensor(tensor).copies {
        Copies::PerMicrobatch => Thing::Value(tensor),
        Copies::One | Copies::Versions(_) => Thing::Shared(tensor),
    };
    let mut needs: Vec<Thing> = instruction.reads.iter().map(|it| thing(it.tensor)).collect();
    let mut makes: Vec<Thing> = instruction.writes.iter().map(|it| thing(it.to.tensor)).collect();
    needs.extend(&makes);
    // What all micro-batches share is written again only once it is free.
    let freed = instruction.frees.iter().map(|&tensor| thing(tensor));
    makes.extend(freed.filter(|it| matches!(it, Thing::Shared(_))));
    let of_route = |route: RouteId, mine: &dyn Fn(&shardloom_program::Message) -> bool| {
        let messages = program.route(route).messages.iter().enumerate();
        messages.filter(|(_, it)| mine(it)).map(|(number, _)| number).collect()
    };
    let group = program.exchange(class, position, instruction).map(|exchange| exchange.group);
    let kind = match (&instruction.action, group) {
        (&Action::Send { route }, _) => {
            Kind::Send { route, messages: of_route(route, &|it| it.from == position) }
        }
        (&Action::Receive { route }, _) => {
            Kind::Receive { route, messages: of_route(route, &|it| it.to == position) }
        }
        (Action::Test, _) => Kind::Test,
        (_, Some(queue)) => {
            Kind::Collective { members: program.members(id, position, &queue), queue }
        }
        (_, None) => Kind::Own,
    };
    let in_step = matches!(instruction.action, Action::Collective { .. })
        && matches!(needs.first(), Some(Thing::Shared(_)));
    Operation { kind, needs, makes, in_step }
}
