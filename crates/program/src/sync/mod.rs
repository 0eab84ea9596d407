//! Ways of keeping replicas of parameters equal, one file each.
//!
//! A way decides which tensors ranks hold of a bucket and which instructions stand around their uses.
//! Whatever else wants to know what a rank holds (memory, simulation, execution, checkpoints) reads the
//! program's tensors.

mod all_reduce;
mod averaging;
mod compressed;
mod frozen;
mod hybrid;
mod negotiation;
mod roles;
mod served_rows;
mod server;
mod sparse;
mod summing;
mod ways;
mod zero;

use std::fmt::Debug;

use shardloom_collectives::Algorithm;
use shardloom_graph::Reduction;
use shardloom_plan::{Axis, Mesh, Precision, Push, Servers, Summation};

pub use all_reduce::AllReduce;
pub use compressed::Compressed;
pub use frozen::Frozen;
pub use hybrid::Hybrid;
pub(crate) use roles::{Role, require_same_servers, roles};
pub use served_rows::{AnsweredRows, AskedRows};
pub(crate) use server::AddedTo;
pub use server::Server;
pub use sparse::Sparse;
pub use summing::Summing;
pub(crate) use ways::{ParameterGroupId, Ways, way};
pub use zero::Zero;

use crate::{
    Action, BucketId, ClassId, Collective, Content, Copies, Extent, Format, Group, Initial,
    Instruction, Keep, Matrix, Shape, Tensor, TensorId, View, Window,
};

/// A bucket of parameters whose tensors are yet to be decided.
#[derive(Clone, Debug)]
pub struct Unheld<'a> {
    /// Its number in its class.
    pub id: BucketId,
    /// For people: the blocks it covers.
    pub name: &'a str,
    /// Local elements.
    pub elements: usize,
    /// Its parameters, in order.
    pub matrices: Vec<Matrix>,
    /// Mesh axes over which replicas train on different samples or positions, none of width one.
    pub replicas: &'a [Axis],
    /// The grid of the class's ranks.
    pub mesh: Mesh,
    /// Those of them along which the plan has replicas share what they can share.
    pub shards: &'a [Axis],
    /// Those of these along which replicas share a second copy of the weights; none if there is no such copy.
    pub second_shards: &'a [Axis],
    /// Further mesh axes over which its gradients are partial.
    pub partial: &'a [Axis],
    /// Classes that all hold it; none if only one does.
    pub classes: &'a [ClassId],
    /// If it is a table whose gradient is rows and values, how large that is.
    pub lookups: Option<Lookups>,
    /// Number formats of its parameters.
    pub precision: Precision,
}

/// What is read of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookups {
    /// The most rows that a rank reads from one update to the next, each as often as it is read; of a server's piece
    /// the most that a worker asks for.
    pub rows: usize,
    /// A rank's elements of a row.
    pub columns: usize,
    /// Who holds it.
    pub holder: Holder,
}

/// Who holds a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The ranks that read it, all of it that they read of.
    Readers,
    /// Servers, which the rank asks for rows.
    Servers,
    /// The rank, a server, which so many workers ask for rows of its piece.
    Server {
        /// How many.
        workers: usize,
    },
}

/// The tensors that ranks hold of a bucket for the sake of its replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Replicated {
    /// The weights that last: all of them, or shards to gather from.
    pub weights: TensorId,
    /// The weights that operators read, all of them; the same as those that last, or gathered for use.
    pub used: TensorId,
    /// Their gradients; none of frozen parameters.
    pub gradients: Option<Gradients>,
    /// The rows of a table that operators read, where the rank has not all of it.
    pub looked_up: Option<LookedUp>,
    /// The weights that the rank updates, or would if they were not frozen.
    pub updated: View,
    /// What the way keeps or exchanges besides, in an order of its own.
    pub own: Vec<TensorId>,
}

/// The gradients that ranks hold of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradients {
    /// Those that operators add to, of all weights.
    pub written: TensorId,
    /// The reduced ones that the optimizer reads: of those weights that the rank updates.
    pub reduced: View,
    /// Which rows of a table they are of, where they are not of all of it.
    pub rows: Option<Rows>,
}

impl Replicated {
    /// The gradients of a bucket that is trained.
    ///
    /// # Panics
    /// If its parameters are frozen, which have none.
    pub fn expect_gradients(&self) -> Gradients {
        self.gradients.expect("only what is trained has its gradients asked for")
    }

    /// Which rows of a table its gradients are of, where they are not of all of it.
    pub fn rows(&self) -> Option<Rows> {
        self.gradients?.rows
    }
}

/// The rows that gradients are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Of the gradients that operators write: one for each that they have read.
    pub written: TensorId,
    /// Of the reduced gradients: different ones, in ascending order.
    pub reduced: TensorId,
}

/// Rows of a table that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookedUp {
    /// Which ones.
    pub rows: TensorId,
    /// Their weights.
    pub weights: TensorId,
}

/// The tensors that ranks hold of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// What they hold for the sake of its replicas.
    pub replicated: Replicated,
    /// What an update changes besides those weights: first master weights, from which those weights are made
    /// then; what corrections for delayed gradients keep; the optimizer's state.
    pub state: Vec<TensorId>,
    /// The optimizer's statistics, one tensor for each round.
    pub statistics: Vec<TensorId>,
    /// Where the weights of replicas that have their own are summed up, for their mean, or those of one of them are.
    pub summed: Option<TensorId>,
    /// Where such a replica's weights are for others to fetch.
    pub published: Option<TensorId>,
    /// Copies of what an update changes, where updates are validated later: of the updated weights, and of
    /// each of `state`.
    pub backups: Vec<TensorId>,
}

/// What uses weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseBy {
    /// A forward pass of training.
    Forward,
    /// A backward pass, or half of one.
    Backward,
    /// An evaluation.
    Evaluation,
}

/// A way of keeping replicas equal.
pub trait Synchronisation: Debug {
    /// The tensors that ranks hold of `bucket`, added to `tensors`.
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated;

    /// What makes the weights that operators of such a pass read out of those that last, some time before each run of
    /// uses; none if they are the same.
    fn before_use(&self, _: &Unheld<'_>, _: &Replicated, _: UseBy) -> Option<Instruction> {
        None
    }

    /// What is kept of the weights that were made so, right before the first of these uses.
    fn at_first_use(&self, _: &Unheld<'_>, _: &Replicated, _: UseBy) -> Option<Instruction> {
        None
    }

    /// What sums gradients over mesh axes that are no replicas, once they are whole: an all-reduce in most ways.
    fn over_partial(
        &self,
        bucket: &Unheld<'_>,
        held: &Replicated,
        algorithm: Algorithm,
    ) -> Vec<Instruction> {
        let group = Group::Mesh(bucket.partial.to_vec());
        let whole = View::whole(held.expect_gradients().written);
        let is_summed = !bucket.partial.is_empty();
        is_summed.then(|| all_reduce(group, algorithm, whole)).into_iter().collect()
    }

    /// What sums gradients over the classes that hold them, after that of [`Synchronisation::before_update`]: an
    /// all-reduce in most ways.
    fn over_classes(
        &self,
        bucket: &Unheld<'_>,
        held: &Replicated,
        algorithm: Algorithm,
    ) -> Vec<Instruction> {
        let group = Group::Classes(bucket.classes.to_vec());
        let is_summed = !bucket.classes.is_empty();
        let reduced = held.expect_gradients().reduced;
        is_summed.then(|| all_reduce(group, algorithm, reduced)).into_iter().collect()
    }

    /// What reduces the gradients that operators added to over replicas, once they are whole.
    fn after_gradient(&self, _: &Unheld<'_>, _: &Replicated) -> Vec<Instruction> {
        vec![]
    }

    /// What follows the last of these before an update, where some of it is not done after each pass that
    /// adds to gradients.
    fn after_last_gradient(&self, _: &Unheld<'_>, _: &Replicated) -> Vec<Instruction> {
        vec![]
    }

    /// What makes the reduced gradients of what was exchanged for them, before an update or, where they are summed
    /// over several classes, before that.
    fn before_update(&self, _: &Unheld<'_>, _: &Replicated) -> Vec<Instruction> {
        vec![]
    }

    /// Whether weights are gathered block by block, so that no bucket has more than one block.
    fn gathers_blocks(&self) -> bool {
        false
    }

    /// Whether gradients are reduced after each pass that adds to them, and not only after the last before
    /// an update.
    fn reduces_each_pass(&self) -> bool {
        false
    }

    /// What makes all weights those that were updated, after the update.
    fn after_update(&self, _: &Unheld<'_>, _: &Replicated) -> Vec<Instruction> {
        vec![]
    }

    /// Whether ranks update what they hold; where they do not, servers do.
    fn updates_here(&self) -> bool {
        self.servers().is_none_or(|servers| servers.push == Push::Deltas)
    }

    /// Whether classes that hold the same parameters update them alike, with gradients that are summed over all; those
    /// with servers that hold the weights have gradients of their own.
    fn updates_alike(&self) -> bool {
        self.servers().is_none()
    }

    /// Whether each class gets all gradients of its buckets, by what follows as soon as one is whole: then none are left
    /// to be summed over classes later, and no class asks others for the norm.
    fn completes_gradients(&self) -> bool {
        self.summation().is_some()
    }

    /// Who holds tables whose gradients are rows and values, for ranks that read them.
    fn holder_of_tables(&self) -> Holder {
        match self.summation() {
            Some(_) => Holder::Servers,
            None => Holder::Readers,
        }
    }

    /// The servers that hold and update buckets for the ranks that train, as [`Server`]'s do; none for most
    /// ways. They are those of the plan's `sync`.
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// The servers that sum gradients for the ranks that train, as [`Summing`]'s do; none for most ways. They
    /// are those of the plan's `sync`.
    fn summation(&self) -> Option<Summation> {
        None
    }
}

impl Unheld<'_> {
    /// How many replicas there are.
    pub fn members(&self) -> usize {
        self.mesh.span(self.replicas)
    }

    /// The mesh axes over which ranks have parts of its gradients, replicas or not.
    pub fn partial_axes(&self) -> Vec<Axis> {
        let mut axes = [self.replicas, self.partial].concat();
        self.mesh.sort(&mut axes);
        axes
    }

    /// A flat tensor of this bucket.
    pub fn flat(
        &self,
        name: &str,
        extent: Extent,
        format: Format,
        keep: Keep,
        content: Content,
    ) -> Tensor {
        Tensor {
            name: format!("{} {name}", self.name),
            shape: Shape::Flat(extent),
            format,
            keep,
            copies: Copies::One,
            content,
            bucket: Some(self.id),
        }
    }

    /// The weights of this bucket that last. They are saved, unless the optimizer updates a copy in full
    /// precision, from which they are rebuilt.
    pub fn weights(&self, extent: Extent) -> Tensor {
        let keep = match self.precision.master {
            true => Keep::Resident,
            false => Keep::State(Initial::Drawn),
        };
        let format = Format::of_number(self.precision.compute);
        self.flat("weights", extent, format, keep, Content::Weight)
    }

    /// All weights of this bucket while they are used, gathered from shares.
    pub fn gathered_weights(&self) -> Tensor {
        let format = Format::of_number(self.precision.compute);
        let whole = Extent::Exactly(self.elements);
        self.flat("gathered weights", whole, format, Keep::Transient, Content::Weight)
    }

    /// The rank's share of a second copy of the weights of this bucket.
    pub fn second_weights(&self) -> Tensor {
        let format = Format::of_number(self.precision.compute);
        let (extent, content) = (Extent::SecondShare, Content::SecondWeight);
        self.flat("second copy of weights", extent, format, Keep::Resident, content)
    }

    /// Gradients of this bucket.
    pub fn gradients(&self, name: &str, extent: Extent, keep: Keep) -> Tensor {
        let format = Format::of_number(self.precision.gradients);
        self.flat(name, extent, format, keep, Content::Gradient)
    }

    /// A collective over the replicas of this bucket.
    pub fn over_replicas(
        &self,
        kind: Collective,
        algorithm: Algorithm,
        read: View,
        write: View,
    ) -> Instruction {
        let group = Group::Mesh(self.replicas.to_vec());
        Instruction::new(Action::Collective { kind, group, algorithm }, [read], [write])
    }
}

/// A sum over a group, in place.
fn all_reduce(group: Group, algorithm: Algorithm, of: View) -> Instruction {
    Instruction::new(Action::Collective { kind: SUM, group, algorithm }, [of], [of])
}

/// The sum over members.
pub(crate) const SUM: Collective = Collective::AllReduce(Reduction::Sum);

/// The rank's share of a flat tensor.
pub(crate) fn share(tensor: TensorId) -> View {
    View { tensor, window: Window::Share }
}

/// Adds a tensor to a list.
pub(crate) fn add(tensors: &mut Vec<Tensor>, tensor: Tensor) -> TensorId {
    tensors.push(tensor);
    TensorId(tensors.len() as u32 - 1)
}
