//! What the reference reads of a program: for each rank the entries of its control over some steps, and
//! of each instruction what it touches, in which queue it stands, and who else takes part.
//!
//! Nothing else here looks at the program's types.

use shardloom_cluster::Cluster;
use shardloom_plan::Communication;
use shardloom_program::timeline::Picos;
use shardloom_program::{
    Action, Body, BodyId, Class, ClassId, Content, Control, Copies, Entry as Listed, Group,
    Instruction, Keep, Point, Program, Rank, RouteId, TensorId,
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
    /// Says whether a step averages.
    Due,
    /// Messages out, one after another: their numbers in the route.
    /// Whether a message is of a micro-batch is its content's affair, and not that of where it is sent.
    Send { route: RouteId, messages: Vec<usize>, of_microbatch: bool },
    /// Messages in, all of them: their numbers in the route.
    Receive { route: RouteId, messages: Vec<usize>, of_microbatch: bool },
    /// A collective of these ranks.
    /// `queue` is the group, and whether the collective keeps replicas equal.
    Collective { queue: (Group, bool), members: Vec<Rank> },
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Operation {
    pub kind: Kind,
    /// What has to be ready: all that it reads, adds to or overwrites.
    pub needs: Vec<Thing>,
    /// What it changes or frees.
    pub changes: Vec<Thing>,
    /// What is ready once it is over.
    pub makes: Vec<Thing>,
    /// Whether it waits until computation has come to where it stands.
    pub in_step: bool,
    /// Reductions, by where they stand, whose last runs have to be over before it begins whole gradients.
    pub reductions: Vec<(BodyId, usize)>,
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
    /// How many times as long computation takes beside a collective, where they do.
    pub beside_collectives: f64,
    /// Whether it has a thread for collectives.
    pub has_thread: bool,
    /// Whether a step is over before the next begins.
    pub flushes: bool,
    /// Whether its host waits for messages.
    pub waits_for_messages: bool,
    /// What its host waits after the end of a step, if it waits for it.
    pub pause: Option<Picos>,
    pub steps: u32,
    pub entries: Vec<Entry>,
    /// Of each body its instructions.
    pub bodies: Vec<Vec<Operation>>,
}

impl Reading {
    /// Steps that are over by the time that a rank comes to this one.
    pub fn ends_before(&self, round: impl Into<Option<i64>>) -> i64 {
        round.into().map_or(0, |round| round.clamp(0, i64::from(self.steps)))
    }
}

/// All ranks of `program` in order, over so many steps, on the devices of `cluster`.
pub fn read(program: &Program, cluster: &Cluster, steps: u32) -> Vec<Reading> {
    let host = cluster.stack().host;
    let mut ranks = vec![];
    for (id, class) in program.classes() {
        for position in 0..class.mesh.size() {
            let device = cluster.kind_of(class.devices[position]).expect("the cluster has it");
            let operation = |it: &Instruction| operation(program, (id, class, position), it);
            let body = |(id, body): (u32, &Body)| {
                let instructions = body.instructions.iter();
                let operation =
                    |it| Operation { reductions: reductions(class, id, it), ..operation(it) };
                instructions.map(operation).collect()
            };
            ranks.push(Reading {
                overlaps: device.lanes_overlap,
                beside_collectives: cluster.stack().beside_collectives,
                has_thread: program.communication == Communication::Thread,
                flushes: program.ahead == 0 && class.late() == 0,
                waits_for_messages: host.waits_for_messages,
                pause: host.waits_for_steps.then(|| Picos::from_seconds(host.step_seconds)),
                steps,
                entries: entries(program, (id, class, position), steps),
                bodies: (0..).zip(&class.bodies).map(body).collect(),
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
            Control::Serve(_) | Control::AsReceived(_) => {
                unreachable!("the reference knows no servers")
            }
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
    let freed = || instruction.frees.iter().map(|&tensor| thing(tensor));
    let changes = makes.iter().copied().chain(freed()).collect();
    // What all micro-batches share is written again only once it is free.
    makes.extend(freed().filter(|it| matches!(it, Thing::Shared(_))));
    let of_route = |route: RouteId, mine: &dyn Fn(&shardloom_program::Message) -> bool| {
        let messages = program.route(route).messages.iter().enumerate();
        messages.filter(|(_, it)| mine(it)).map(|(number, _)| number).collect()
    };
    let group = program.exchange(class, position, instruction).map(|exchange| exchange.group);
    let kind = match (&instruction.action, group) {
        (&Action::Send { route }, _) => {
            let messages = of_route(route, &|it| it.from == position);
            Kind::Send { route, messages, of_microbatch: !program.route(route).is_of_server() }
        }
        (&Action::Receive { route }, _) => {
            let messages = of_route(route, &|it| it.to == position);
            Kind::Receive { route, messages, of_microbatch: !program.route(route).is_of_server() }
        }
        (Action::Test, _) => Kind::Test,
        (Action::Due { .. }, _) => Kind::Due,
        (_, Some(group)) => {
            let members = program.members(id, position, &group);
            let bucket = class.tensor(instruction.reads[0].tensor).bucket;
            let keeps_equal = match (&group, bucket) {
                (Group::Mesh(axes), Some(bucket)) => {
                    let bucket = class.bucket(bucket);
                    let replicas = [&bucket.replicas[..], &bucket.own].concat();
                    !axes.is_empty() && axes.iter().all(|axis| replicas.contains(axis))
                }
                _ => false,
            };
            Kind::Collective { members, queue: (group, keeps_equal) }
        }
        (_, None) => Kind::Own,
    };
    let in_step = matches!(instruction.action, Action::Collective { .. })
        && matches!(needs.first(), Some(Thing::Shared(_)));
    Operation { kind, needs, changes, makes, in_step, reductions: vec![] }
}

/// What an instruction that adds to whole gradients waits for so that there are not too many: the only thing
/// that is taken from the program's points, as nothing that it touches tells.
fn reductions(class: &Class, body: u32, instruction: &Instruction) -> Vec<(BodyId, usize)> {
    let is_whole = |tensor: TensorId| {
        let tensor = class.tensor(tensor);
        tensor.content == Content::Gradient && tensor.keep == Keep::Transient
    };
    if !instruction.writes.iter().any(|write| is_whole(write.to.tensor)) {
        return vec![];
    }
    let place = |point: &Point| match *point {
        Point::Here(index) => Some((BodyId(body), index as usize)),
        Point::Latest(body, index) => Some((body, index as usize)),
        Point::Queue(_) | Point::Microbatch(..) => None,
    };
    let reduces = |&(body, index): &(BodyId, usize)| {
        let other = &class.body(body).instructions[index];
        matches!(other.action, Action::Collective { .. })
            && other.frees.iter().any(|&tensor| is_whole(tensor))
    };
    instruction.after.iter().filter_map(place).filter(reduces).collect()
}
