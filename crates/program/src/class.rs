//! The program: classes of ranks, what they hold and what they run.

use serde::{Deserialize, Serialize};
use std::ops::Range;

use shardloom_cluster::DeviceId;
use shardloom_collectives::chunk;
use shardloom_graph::work::Pass;
use shardloom_graph::{Extents, Graph, ValueId};
use shardloom_plan::{Axis, Communication, Corrections, Mesh, Negotiation, Optimizer, Precision};

use crate::sync::Held;
use crate::{
    Action, Content, Control, Group, Instruction, Layout, Queue, Route, RouteId, Tensor, TensorId,
};
use shardloom_schedule::Instance;

/// A participant of the program, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

/// Identifies a class of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

/// Identifies a parameter of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(pub u32);

/// Identifies a bucket of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId(pub u32);

/// Identifies a body of a class.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyId(pub u32);

/// A parameter where it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightParam {
    /// The graph's parameter.
    pub value: ValueId,
    /// Its bucket.
    pub bucket: BucketId,
    /// Where it begins in the bucket, in elements.
    pub offset: usize,
    /// How it is spread over the mesh.
    pub layout: Layout,
    /// Local shape.
    pub shape: Vec<usize>,
    /// Rows of the whole parameter seen as a matrix.
    pub rows: usize,
    /// Columns of the whole parameter seen as a matrix.
    pub columns: usize,
    /// How many of its first axes are its rows then.
    pub row_axes: usize,
    /// Which of its local elements lie in the bucket: all of them, but where a server holds a range of them.
    pub part: Range<usize>,
}

impl WeightParam {
    /// Its elements in the bucket.
    pub fn elements(&self) -> usize {
        self.part.len()
    }

    /// Whether all of its local elements are in the bucket.
    pub fn is_whole(&self) -> bool {
        self.part.len() == self.shape.iter().product::<usize>()
    }

    /// Which of its local elements those are that lie in a range of its bucket.
    pub fn local(&self, of_bucket: &Range<usize>) -> Range<usize> {
        let local = |at| at - self.offset + self.part.start;
        local(of_bucket.start)..local(of_bucket.end)
    }

    /// Where it lies in its bucket.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }
}

/// A range of a bucket that a server updates and owns, or the gradients of which it sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRange {
    /// Elements of the bucket.
    pub range: Range<usize>,
    /// The class of the server.
    pub server: ClassId,
    /// The classes of further servers that have a replica of it, the first to take its place first.
    pub replicas: Vec<ClassId>,
}

impl ServedRange {
    /// A range that has no replicas.
    pub fn of(range: Range<usize>, server: ClassId) -> ServedRange {
        ServedRange { range, server, replicas: vec![] }
    }
}

/// A worker that updates by itself, among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// How many workers there are.
    pub workers: usize,
    /// Which of them it is, from 0.
    pub worker: usize,
    /// Micro-batches of a step that it gets.
    pub microbatches: usize,
}

/// Parameters that are gathered, reduced and updated together, contiguous in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// For people: the blocks it covers.
    pub name: String,
    /// Local elements.
    pub elements: usize,
    /// Its parameters, in order.
    pub params: Vec<ParamId>,
    /// Mesh axes over which replicas train on different samples or positions: gradients are partial,
    /// and those along `shards` may have shares of the bucket.
    pub replicas: Vec<Axis>,
    /// Those of `replicas` along which shares of the bucket are dealt; along the others ranks have the same.
    pub shards: Vec<Axis>,
    /// Those of `shards` along which shares of a second copy of its weights are dealt, none if there is no such copy.
    pub second_shards: Vec<Axis>,
    /// Mesh axes along which replicas have weights of their own, none of width one: nothing of the bucket is
    /// alike along them, though its weights are averaged over them.
    pub own: Vec<Axis>,
    /// Further mesh axes over which gradients are partial (a norm's gain under sequence parallelism).
    pub partial: Vec<Axis>,
    /// Mesh axes over which all ranks hold the same, `replicas` included.
    pub copies: Vec<Axis>,
    /// Mesh axes that split its parameters.
    pub splits: Vec<Axis>,
    /// Classes that all hold it (tied weights), this one included; empty if only this one does.
    pub classes: Vec<ClassId>,
    /// Whether its parameters are frozen: they have no gradients, and no update changes them.
    pub is_frozen: bool,
    /// Whether ranks of this class count its gradients towards the norm of all, where several classes hold it:
    /// one does, or, where each finds that norm by itself, all.
    pub owned_here: bool,
    /// The ranges that make it up, in order, where servers own it, and ranks of this class only get its weights from
    /// there and send them their gradients, or what their own updates have changed; otherwise none.
    pub served: Vec<ServedRange>,
    /// Where the class is a worker that updates it by itself and sends servers what that has changed, which worker
    /// it is: what its optimizer keeps is another on each.
    pub apart: Option<Apart>,
    /// The ranges of its gradients, in order, that servers sum over all workers and send back; the workers sum
    /// the rest among themselves. None where there are no such servers.
    pub summed: Vec<ServedRange>,
    /// The server that owns it, and its bucket there, where ranks of this class only have a replica, which they
    /// update with the gradients that the owner has added up.
    pub replica_of: Option<(ClassId, BucketId)>,
    /// The tensors that ranks hold of it.
    pub held: Held,
}

impl Bucket {
    /// Whether it is a table that servers hold, of which ranks of this class look up rows.
    pub fn is_looked_up(&self) -> bool {
        !self.served.is_empty() && self.held.replicated.rows().is_some()
    }

    /// Whether ranks of the class are those that update it, or would if it were not frozen.
    pub fn is_updated_here(&self) -> bool {
        let is_held = self.served.is_empty() || self.apart.is_some();
        is_held && (self.is_frozen || self.held.replicated.gradients.is_some())
    }
}

/// What a body is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BodyKind {
    /// A stage's forward pass.
    Forward,
    /// A stage's backward pass.
    Backward,
    /// The input gradients of a stage's backward pass.
    BackwardInput,
    /// Its weight gradients.
    BackwardWeight,
    /// Between passes: synchronisation for which devices would stand idle later.
    Synchronisation,
    /// After the last pass of a step: remaining synchronisation and the update.
    Epilogue,
    /// Between pieces of the first pass of a step: the update of what the next piece is the first to use, with the
    /// gradients of the step before.
    PartOfUpdate,
    /// Averages the weights of replicas that have their own, or is about whether that is due.
    Averaging,
    /// A stage's forward pass that keeps nothing.
    Evaluation,
    /// Early in a step: whether the update that ended the step before was right.
    Test,
    /// Frees what is held until it is known whether an update was right.
    Release,
    /// Where it was not: what it changed becomes what it was, and passes that ran since are dropped.
    Rollback,
    /// The update of the step before once more, with what was not known when it was made.
    Redo,
}

/// Which of a device's stages a body belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The chunk, where the device holds several stages whose pipelines run the same way.
    pub chunk: Option<u32>,
    /// Whether its pipeline runs towards lower devices.
    pub reverse: bool,
}

/// A run of instructions: a pass, or a piece of one that overlaps with another.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// What it is for.
    pub kind: BodyKind,
    /// Of which stage.
    pub part: Part,
    /// Its instructions, in order of issue.
    pub instructions: Vec<Instruction>,
}

/// A stage that ranks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldStage {
    /// Which.
    pub instance: Instance,
    /// Whether its pipeline runs towards lower devices.
    pub reverse: bool,
}

/// Ranks that run the same instructions on different parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The stages that its ranks hold.
    pub stages: Vec<HeldStage>,
    /// Which of the replicas of its stage it is, where several take micro-batches in turn; which of the
    /// servers.
    pub replica: Option<u32>,
    /// The mesh of its ranks.
    pub mesh: Mesh,
    /// Its first rank; position p of the mesh is `first_rank + p`.
    pub first_rank: Rank,
    /// The device of each position.
    pub devices: Vec<DeviceId>,
    /// What its ranks hold.
    pub tensors: Vec<Tensor>,
    /// Its parameters.
    pub params: Vec<WeightParam>,
    /// Its buckets.
    pub buckets: Vec<Bucket>,
    /// The groups that it runs collectives in, by the number of their [queue](crate::Queue).
    pub communicators: Vec<Group>,
    /// Its bodies.
    pub bodies: Vec<Body>,
    /// What a rank does in a step.
    pub control: Vec<Control>,
    /// How many updates there are, on average over a step's micro-batches, between a forward pass and
    /// the update with its gradient.
    pub delay: f64,
    /// The forward passes that keep nothing, for validation, in the order of the pipeline.
    pub evaluation: Vec<BodyId>,
}

/// What each device does, in which order, to train one step after another.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The classes; ranks are numbered through them.
    pub classes: Vec<Class>,
    /// The ways between classes.
    pub routes: Vec<Route>,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Global norm to which gradients are clipped.
    pub clip_norm: Option<f64>,
    /// Samples of one step.
    pub global_batch: usize,
    /// Samples of one micro-batch over all replicas.
    pub microbatch_samples: usize,
    /// Micro-batches of one step.
    pub microbatches: usize,
    /// How many steps some rank runs ahead of the one it updates weights for; 0 with a flush.
    pub ahead: u32,
    /// What makes up for delayed gradients.
    pub corrections: Corrections,
    /// The mesh axes over which the batch is split.
    pub batch_axes: Vec<Axis>,
    /// Whether ranks have a thread for collectives.
    pub communication: Communication,
    /// How ranks agree on the order of reductions that have none.
    pub negotiation: Option<Negotiation>,
}

impl Program {
    /// Whether an update that was made without looking at a step's norm, whose square this is, is right:
    /// gradients are finite and need no clipping. If it does not hold of the gradients of some stages, it
    /// holds of those of all neither.
    pub fn needs_no_norm(&self, squared_norm: f64) -> bool {
        squared_norm.is_finite() && self.clip_norm.is_none_or(|most| squared_norm.sqrt() <= most)
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.classes.iter().map(|class| class.mesh.size()).sum()
    }

    /// One class.
    pub fn class(&self, id: ClassId) -> &Class {
        &self.classes[id.0 as usize]
    }

    /// One route.
    pub fn route(&self, id: RouteId) -> &Route {
        &self.routes[id.0 as usize]
    }

    /// All classes with their ids.
    pub fn classes(&self) -> impl Iterator<Item = (ClassId, &Class)> {
        self.classes.iter().enumerate().map(|(index, class)| (ClassId(index as u32), class))
    }

    /// Whether ranks of a class have no stage and are on devices of some that have, as servers may be.
    pub fn is_colocated(&self, id: ClassId) -> bool {
        let class = self.class(id);
        let has_one = |other: &Class| class.devices.iter().any(|it| other.devices.contains(it));
        let mut others = self.classes.iter().filter(|other| !other.stages.is_empty());
        class.stages.is_empty() && others.any(has_one)
    }

    /// The device of each rank.
    pub fn devices(&self) -> Vec<u32> {
        let device = |rank| {
            let (class, position) = self.locate(Rank(rank));
            self.class(class).devices[position].0
        };
        (0..self.ranks() as u32).map(device).collect()
    }

    /// The class of `rank` and its position in the mesh.
    pub fn locate(&self, rank: Rank) -> (ClassId, usize) {
        let index = self.classes.partition_point(|class| class.first_rank <= rank) - 1;
        (ClassId(index as u32), (rank.0 - self.classes[index].first_rank.0) as usize)
    }

    /// How many updates late the gradients are that a bucket of `class` is updated with, on average. Where
    /// several classes hold it, which must update it alike, it is that of the latest of their gradients.
    pub fn update_delay(&self, class: &Class, bucket: BucketId) -> f64 {
        let others = class.bucket(bucket).classes.iter();
        others.map(|&other| self.class(other).delay).fold(class.delay, f64::max)
    }

    /// Whether servers have replicas of what others own.
    pub fn has_replicas(&self) -> bool {
        let mut buckets = self.classes.iter().flat_map(|class| &class.buckets);
        buckets.any(|bucket| bucket.replica_of.is_some())
    }

    /// Whether ranks of `class` own a tensor of theirs among the classes that hold such a one of the same
    /// bucket: the first of them does.
    pub fn owns(&self, class: ClassId, tensor: TensorId) -> bool {
        let node = self.class(class);
        let tensor = node.tensor(tensor);
        let Some(bucket) = tensor.bucket.map(|id| node.bucket(id)) else { return true };
        if !bucket.served.is_empty() || bucket.replica_of.is_some() {
            // A worker that updates by itself has all but the weights.
            return bucket.apart.is_some() && tensor.content != Content::Weight;
        }
        let value = |class: &Class, bucket: &Bucket| {
            bucket.params.first().map(|&param| class.param(param).value)
        };
        let holds = |other: &Class| {
            other.tensors.iter().any(|theirs| {
                let same = |id| value(other, other.bucket(id)) == value(node, bucket);
                theirs.content == tensor.content && theirs.bucket.is_some_and(same)
            })
        };
        let first = bucket.classes.iter().find(|&&other| holds(self.class(other)));
        first.is_none_or(|&first| first == class)
    }

    /// The messages of a route by their number in it, each with who sends it to whom.
    pub fn transfers(&self, route: RouteId) -> impl Iterator<Item = (usize, Rank, Rank)> {
        let Route { from, to, messages, .. } = self.route(route);
        let [from, to] = [from, to].map(|&class| self.class(class).first_rank.0);
        let rank = |first, position: usize| Rank(first + position as u32);
        let messages = messages.iter().enumerate();
        messages.map(move |(index, it)| (index, rank(from, it.from), rank(to, it.to)))
    }

    /// The ranks of the group that `position` of `class` belongs to, in the group's order.
    pub fn members(&self, class: ClassId, position: usize, group: &Group) -> Vec<Rank> {
        let at = |class: &Class, position: usize| Rank(class.first_rank.0 + position as u32);
        match group {
            Group::Mesh(axes) => {
                let class = self.class(class);
                let members = class.mesh.members_along(position, axes);
                members.into_iter().map(|position| at(class, position)).collect()
            }
            Group::Classes(classes) => {
                classes.iter().map(|&class| at(self.class(class), position)).collect()
            }
            Group::World => (0..self.ranks() as u32).map(Rank).collect(),
        }
    }

    /// After so many steps each of them has been one that averages weights, and the next begin alike: the
    /// steps from one average to the next, or one.
    pub fn period(&self) -> u32 {
        let bodies = self.classes.iter().flat_map(|class| &class.bodies);
        let periods = bodies.flat_map(|body| &body.instructions).filter_map(|it| match it.action {
            Action::Due { every } => Some(every.get()),
            _ => None,
        });
        periods.max().unwrap_or(1)
    }

    /// The extents of one micro-batch over all replicas.
    pub fn microbatch_extents(&self, graph: &Graph) -> Extents {
        Extents::global(graph, self.microbatch_samples)
    }
}

impl Class {
    /// All instructions of all bodies, with where they stand.
    pub fn instructions(&self) -> impl Iterator<Item = (BodyId, usize, &Instruction)> + Clone {
        let bodies = (0..).map(BodyId).zip(&self.bodies);
        bodies.flat_map(|(id, body)| {
            body.instructions.iter().enumerate().map(move |(index, it)| (id, index, it))
        })
    }

    /// The requests of a communicator in the order of their numbers: where they stand.
    pub fn requests(&self, communicator: u16) -> Vec<(BodyId, usize)> {
        let queue = Queue::Negotiated(communicator);
        let all = self.instructions().filter(|(_, _, it)| it.queue == queue);
        all.map(|(body, index, _)| (body, index)).collect()
    }

    /// The stages that its ranks hold, for people: `stage 2`, `stages 0, 7`, or with several pipelines
    /// `stages 0, 3<`, those that run the reverse way marked so; with replicas that take micro-batches in
    /// turn `stage 0, replica 1`.
    pub fn place(&self) -> String {
        let name = |HeldStage { instance, reverse }: &HeldStage| {
            format!("{}{}", instance.stage, if *reverse { "<" } else { "" })
        };
        let mut names: Vec<String> = self.stages.iter().map(name).collect();
        if self.stages.is_empty() {
            let number = self.replica.map_or(String::new(), |it| format!(" {it}"));
            let kind = match self.sums() {
                true if self.holds_tables() => "table",
                true => "summing",
                false => "parameter",
            };
            return format!("{kind} server{number}");
        }
        // Several pipelines may come to the same stage.
        names.dedup();
        let noun = if names.len() > 1 { "stages" } else { "stage" };
        let replica = self.replica.map_or_else(String::new, |it| format!(", replica {it}"));
        format!("{noun} {}{replica}", names.join(", "))
    }

    /// Whether it is a server that holds tables of which workers look up rows.
    pub fn holds_tables(&self) -> bool {
        self.sums() && !self.buckets.is_empty()
    }

    /// Whether it is a server that sums gradients, or holds tables, in the order of its control: it holds no stage
    /// and answers no clients.
    pub fn sums(&self) -> bool {
        self.stages.is_empty() && self.serves().is_none()
    }

    /// One parameter.
    pub fn param(&self, id: ParamId) -> &WeightParam {
        &self.params[id.0 as usize]
    }

    /// Whether it fetches what others publish, for which nobody waits within a row of steps.
    pub fn fetches(&self) -> bool {
        self.instructions().any(|(_, _, it)| matches!(it.action, Action::Fetch { .. }))
    }

    /// How many versions of its weights a rank holds.
    pub fn versions(&self) -> u32 {
        1 + self.entries().map(|entry| entry.age).max().unwrap_or(0)
    }

    /// One bucket.
    pub fn bucket(&self, id: BucketId) -> &Bucket {
        &self.buckets[id.0 as usize]
    }

    /// All buckets with their ids.
    pub fn buckets(&self) -> impl Iterator<Item = (BucketId, &Bucket)> {
        self.buckets.iter().enumerate().map(|(index, bucket)| (BucketId(index as u32), bucket))
    }

    /// One body.
    pub fn body(&self, id: BodyId) -> &Body {
        &self.bodies[id.0 as usize]
    }

    /// The mesh axes along which ranks compute different parts of the loss; along the others they
    /// compute the same. None if the class does not compute the loss.
    pub fn loss_axes(&self, graph: &Graph) -> Option<Vec<Axis>> {
        let loss = graph.value(graph.loss()).producer?;
        let instructions = self.bodies.iter().flat_map(|body| &body.instructions);
        instructions.into_iter().find_map(|instruction| {
            let Action::Kernel { op, pass: Pass::Forward, assignment, .. } = &instruction.action
            else {
                return None;
            };
            let partial = (*op == loss).then(|| assignment.output(graph, loss, 0).partial)?;
            Some(partial.into_iter().map(|(axis, _)| axis).collect())
        })
    }

    /// How many replicas have weights of their own of what is in `bucket`, or update it by themselves, and which of
    /// them `position` is.
    pub fn own_replica(&self, bucket: &Bucket, position: usize) -> (usize, usize) {
        match bucket.apart {
            Some(Apart { workers, worker, .. }) => (workers, worker),
            None => (self.mesh.span(&bucket.own), self.mesh.index_along(position, &bucket.own)),
        }
    }

    /// The share of `bucket` that `position` has where the bucket is dealt to those that share it.
    pub fn shard_range(&self, bucket: &Bucket, position: usize) -> Range<usize> {
        let parts = self.mesh.span(&bucket.shards);
        chunk(bucket.elements, parts, self.mesh.index_along(position, &bucket.shards))
    }

    /// The share of a second copy of the weights of `bucket` that `position` has.
    pub fn second_shard_range(&self, bucket: &Bucket, position: usize) -> Range<usize> {
        let parts = self.mesh.span(&bucket.second_shards);
        chunk(bucket.elements, parts, self.mesh.index_along(position, &bucket.second_shards))
    }

    /// The elements of `bucket` that `position` owns: each element that several ranks hold equal copies of
    /// has one owner, which saves it and counts it towards norms, and it lies in the owner's share.
    pub fn owned(&self, bucket: &Bucket, position: usize) -> Range<usize> {
        match bucket.owned_here {
            true => self.owned_within(bucket, position),
            false => 0..0,
        }
    }

    /// The same among the ranks of this class.
    pub fn owned_within(&self, bucket: &Bucket, position: usize) -> Range<usize> {
        let share = self.shard_range(bucket, position);
        let (mut parts, mut index) = (1, 0);
        for &axis in bucket.copies.iter().filter(|axis| !bucket.shards.contains(axis)) {
            let width = self.mesh.width(axis);
            (parts, index) = (parts * width, index * width + self.mesh.coordinate(position, axis));
        }
        let part = chunk(share.len(), parts, index);
        share.start + part.start..share.start + part.end
    }
}
