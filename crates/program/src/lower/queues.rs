//! Which queue each instruction runs in, and where it waits for others.
//!
//! An instruction waits for whatever another queue does to a tensor before it: a read for the last write, a
//! write for the last write and the reads since, and so does who frees it. Within a body that is a place in it.
//! Across bodies it is the last run of each body that touches the tensor: for a tensor of a micro-batch the last for
//! the same micro-batch, otherwise the last of all. Collectives of what lasts (gathers of weights, reductions of
//! gradients) and fetches of published weights also wait until computation has come to where they stand: where that
//! is was decided when they were put there.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use shardloom_plan::Communication;
use smallvec::SmallVec;

use super::whole_gradients;
use crate::class::{Body, BodyId, Bucket, Program};
use crate::{
    Action, Content, Copies, Group, Instruction, Mode, Point, Queue, Route, Tensor, TensorId, Write,
};

impl Program {
    /// Gives every instruction its queue and its points: by what instructions touch, and where ranks have a
    /// communication thread also by how many buckets' whole gradients may be there at once. Lowering ends
    /// with it; whoever changes bodies afterwards calls it again.
    pub fn assign_queues(&mut self) {
        for class in &mut self.classes {
            let repeats = class.tests_updates();
            let held = (class.tensors.as_slice(), class.buckets.as_slice());
            class.communicators = assign(held, &self.routes, &mut class.bodies, repeats);
        }
        if self.communication == Communication::Thread {
            whole_gradients::bound(self);
        }
    }
}

/// The groups of the class's collectives, in the order of their queues: one for each group, and a second for
/// what keeps replicas equal where values pass within the same group too, as context parallelism's keys and
/// the gradients of its ranks do. What a pass waits for is then not behind what it does not. `repeats` says
/// whether passes may be run again that were dropped.
fn assign(
    (tensors, buckets): (&[Tensor], &[Bucket]),
    routes: &[Route],
    bodies: &mut [Body],
    repeats: bool,
) -> Vec<Group> {
    let mut communicators: Vec<(Group, Use)> = vec![];
    for instruction in bodies.iter_mut().flat_map(|body| &mut body.instructions) {
        let used = match is_of_replicas(instruction, tensors, buckets) {
            _ if is_request(instruction, tensors) => Use::Requests,
            true => Use::Replicas,
            false => Use::Values,
        };
        instruction.queue = queue(&instruction.action, routes, used, &mut communicators);
    }
    let lasting = lasting_touches(tensors, bodies);
    let mut here = vec![Touches::default(); tensors.len()];
    for (index, body) in bodies.iter_mut().enumerate() {
        let body_id = BodyId(index as u32);
        let queues: Vec<Queue> = body.instructions.iter().map(|it| it.queue).collect();
        let queue_of = |number: u32| queues[number as usize];
        let mut progress = Progress::new(Queue::count(communicators.len()));
        let mut touched = vec![];
        for (number, instruction) in (0..).zip(&mut body.instructions) {
            let before = (here.as_slice(), lasting.as_slice());
            instruction.after = progress.points(instruction, queue_of, (tensors, repeats), before);
            note(instruction, tensors, number, body_id, |tensor, touch| {
                here[tensor.0 as usize].add(touch);
                touched.push(tensor);
            });
        }
        touched.into_iter().for_each(|tensor| here[tensor.0 as usize] = Touches::default());
    }
    communicators.into_iter().map(|(group, _)| group).collect()
}

/// What passes within a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Values of micro-batches, and whatever is of no bucket.
    Values,
    /// What keeps replicas equal.
    Replicas,
    /// The same, in an order that is agreed on while running.
    Requests,
}

/// Whether members of the group agree while running when it is carried out.
fn is_request(instruction: &Instruction, tensors: &[Tensor]) -> bool {
    let mut writes = instruction.writes.iter().map(|it| &tensors[it.to.tensor.0 as usize]);
    writes.any(|it| it.content == Content::Negotiation)
}

/// Whether an instruction is a collective over the replicas of a bucket, or some of them, equal or not.
fn is_of_replicas(instruction: &Instruction, tensors: &[Tensor], buckets: &[Bucket]) -> bool {
    let Action::Collective { group: Group::Mesh(axes), .. } = &instruction.action else {
        return false;
    };
    let bucket = tensors[instruction.reads[0].tensor.0 as usize].bucket;
    bucket.is_some_and(|bucket| {
        let Bucket { replicas, own, .. } = &buckets[bucket.0 as usize];
        !axes.is_empty() && axes.iter().all(|axis| replicas.contains(axis) || own.contains(axis))
    })
}

fn queue(
    action: &Action,
    routes: &[Route],
    used: Use,
    communicators: &mut Vec<(Group, Use)>,
) -> Queue {
    match action {
        Action::Send { route } => match routes[route.0 as usize].priority {
            Some(_) => Queue::Prioritised,
            None => Queue::Send,
        },
        Action::Receive { .. } | Action::Fetch { .. } => Queue::Receive,
        Action::Collective { group, .. } => {
            let same = |known: &(Group, Use)| known.0 == *group && known.1 == used;
            let number = communicators.iter().position(same).unwrap_or_else(|| {
                communicators.push((group.clone(), used));
                communicators.len() - 1
            });
            match used {
                Use::Requests => Queue::Negotiated(number as u16),
                Use::Values | Use::Replicas => Queue::Communicator(number as u16),
            }
        }
        _ => Queue::Compute,
    }
}

/// How an instruction touches a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touch {
    body: BodyId,
    instruction: u32,
    queue: Queue,
    writes: bool,
}

/// The last write of a tensor, and the reads since, of each queue with an order the last.
#[derive(Clone, Debug, Default)]
struct Touches {
    write: Option<Touch>,
    reads: Vec<Touch>,
}

impl Touches {
    fn add(&mut self, touch: Touch) {
        if touch.writes {
            self.write = Some(touch);
            self.reads.clear();
            return;
        }
        // Of a queue with an order the last read implies those before.
        self.reads.retain(|read| read.queue != touch.queue || !touch.queue.is_ordered());
        self.reads.push(touch);
    }

    /// Those that an instruction of `queue` has to wait for.
    fn before(&self, queue: Queue, writes: bool) -> impl Iterator<Item = Touch> + '_ {
        let reads = self.reads.iter().filter(move |_| writes);
        // What is sent by priority is behind nothing of its queue, so who frees it waits for all that send it.
        let is_behind = move |touch: &Touch| touch.queue == queue && queue != Queue::Prioritised;
        self.write.iter().chain(reads).copied().filter(move |touch| !is_behind(touch))
    }
}

/// Tells how an instruction touches each of its operands.
fn note(
    instruction: &Instruction,
    tensors: &[Tensor],
    number: u32,
    body: BodyId,
    mut tell: impl FnMut(TensorId, Touch),
) {
    let queue = instruction.queue;
    let mut touch =
        |tensor, writes| tell(tensor, Touch { body, instruction: number, queue, writes });
    instruction.reads.iter().for_each(|read| touch(read.tensor, false));
    instruction.writes.iter().for_each(|write| touch(write.to.tensor, true));
    // What several entries share is there anew when it is written again.
    let shared = instruction.frees.iter().filter(|&&it| is_shared(tensors, it));
    shared.for_each(|&tensor| touch(tensor, true));
}

/// For each tensor the last touches of every body.
fn lasting_touches(tensors: &[Tensor], bodies: &[Body]) -> Vec<Vec<Touches>> {
    let mut all: Vec<Vec<Touches>> = vec![vec![]; tensors.len()];
    for (index, body) in bodies.iter().enumerate() {
        let body_id = BodyId(index as u32);
        for (number, instruction) in (0..).zip(&body.instructions) {
            note(instruction, tensors, number, body_id, |tensor, touch| {
                let of_bodies = &mut all[tensor.0 as usize];
                let same = of_bodies.last_mut().filter(|it| it.body() == Some(body_id));
                match same {
                    Some(touches) => touches.add(touch),
                    None => {
                        let mut touches = Touches::default();
                        touches.add(touch);
                        of_bodies.push(touches);
                    }
                }
            });
        }
    }
    all
}

impl Touches {
    fn is_empty(&self) -> bool {
        self.write.is_none() && self.reads.is_empty()
    }

    fn body(&self) -> Option<BodyId> {
        self.write.iter().chain(&self.reads).map(|touch| touch.body).next()
    }
}

fn is_shared(tensors: &[Tensor], tensor: TensorId) -> bool {
    tensors[tensor.0 as usize].copies != Copies::PerMicrobatch
}

/// How many instructions of the body each queue is through with, by its number.
type Clocks = SmallVec<[u32; 8]>;

/// What keeps an order: a queue, or an instruction by itself of a queue that has none.
type Line = (Queue, u32);

/// A body as far as it has come: what its queues have waited for, they need not wait for again.
struct Progress {
    /// Of each instruction when it ends: those that are over, itself included.
    ended: Vec<Clocks>,
    /// Of each queue those of its last instruction.
    last: Vec<Clocks>,
    /// For each queue of another body, or each instruction there of a queue without an order: up to where it was
    /// waited for, and by which instruction here. Whether that was for the last run of all or for the same
    /// micro-batch comes first.
    waited: FxHashMap<(bool, BodyId, Line), (u32, u32)>,
}

impl Progress {
    fn new(queues: usize) -> Progress {
        let none = Clocks::from_elem(0, queues);
        Progress { ended: vec![], last: vec![none; queues], waited: FxHashMap::default() }
    }

    /// What the next instruction waits for, given what its body has done before it and what bodies leave
    /// behind.
    fn points(
        &mut self,
        instruction: &Instruction,
        queues: impl Fn(u32) -> Queue,
        (tensors, repeats): (&[Tensor], bool),
        (here, lasting): (&[Touches], &[Vec<Touches>]),
    ) -> Vec<Point> {
        let queue = instruction.queue;
        let mut clocks = match queue {
            // It follows nothing of its queue.
            other if !other.is_ordered() => Clocks::from_elem(0, self.last.len()),
            _ => self.last[queue.index()].clone(),
        };
        let mut points = vec![];
        let follows_computation = match instruction.action {
            Action::Collective { .. } => {
                instruction.reads.first().is_some_and(|read| is_shared(tensors, read.tensor))
            }
            // Whom it fetches from waits for what was published before it.
            Action::Fetch { .. } => true,
            _ => false,
        };
        if follows_computation {
            points.push(Point::Queue(Queue::Compute));
            join(&mut clocks, &self.last[Queue::Compute.index()]);
        }
        let reads = instruction.reads.iter().map(|read| (read.tensor, false));
        // What a micro-batch's tensor is first set to comes before all else that touches it, but for what
        // was dropped.
        let first = |write: &&Write| {
            let tensor = write.to.tensor;
            let is_new = here[tensor.0 as usize].is_empty() && !is_shared(tensors, tensor);
            write.mode == Mode::Set && is_new && !repeats
        };
        let writes = instruction.writes.iter().filter(|write| !first(write));
        let writes = writes.map(|write| (write.to.tensor, true));
        // What is freed has to be through with by all queues.
        let frees = instruction.frees.iter().map(|&tensor| (tensor, true));
        let (mut places, mut elsewhere) = (Touched::new(), Touched::new());
        for (tensor, writes) in reads.chain(writes).chain(frees) {
            let at = tensor.0 as usize;
            places.extend(here[at].before(queue, writes).map(|touch| (false, touch)));
            // What this body has written was itself after what others did.
            if here[at].write.is_none() {
                let latest = is_shared(tensors, tensor);
                let touches = lasting[at].iter().flat_map(|it| it.before(queue, writes));
                elsewhere.extend(touches.map(|touch| (latest, touch)));
            }
        }
        // Those that come last imply the most.
        places.sort_unstable_by_key(|(_, touch)| Reverse(touch.instruction));
        for (_, Touch { instruction: place, queue: other, .. }) in places {
            // That one of what has no order is over says nothing of others.
            if !other.is_ordered() || clocks[other.index()] <= place {
                join(&mut clocks, &self.ended[place as usize]);
                points.push(Point::Here(place));
            }
        }
        elsewhere.retain(|(_, touch)| !(follows_computation && touch.queue == Queue::Compute));
        elsewhere.sort_unstable_by_key(|(_, touch)| Reverse((touch.body, touch.instruction)));
        let number = self.ended.len() as u32;
        for (latest, Touch { body, instruction: place, queue: other, .. }) in elsewhere {
            // Of what has no order each instruction is waited for by itself.
            let line: Line = (other, if other.is_ordered() { 0 } else { place });
            let known = self.waited.entry((latest, body, line));
            let is_implied = |&(until, by): &(u32, u32)| {
                let has_followed = || queues(by).is_ordered() && clocks[queues(by).index()] > by;
                until >= place && (by == number || has_followed())
            };
            match known {
                Entry::Occupied(known) if is_implied(known.get()) => continue,
                Entry::Occupied(mut known) if known.get().0 < place => {
                    known.insert((place, number));
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(unknown) => {
                    unknown.insert((place, number));
                }
            }
            points.push(match latest {
                true => Point::Latest(body, place),
                false => Point::Microbatch(body, place),
            });
        }
        clocks[queue.index()] = number + 1;
        self.last[queue.index()] = clocks.clone();
        self.ended.push(clocks);
        points.sort_unstable();
        points.dedup();
        points
    }
}

/// Touches of other instructions, and whether the last run of all counts.
type Touched = SmallVec<[(bool, Touch); 8]>;

fn join(clocks: &mut Clocks, others: &Clocks) {
    for (clock, &other) in clocks.iter_mut().zip(others) {
        *clock = (*clock).max(other);
    }
}
