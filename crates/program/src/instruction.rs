//! What a device can be told to do.

use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, Reduction, ValueId};
use shardloom_plan::Axis;

use crate::{Assignment, BucketId, ClassId, Layout, ParamId, RouteId, SlotId};

/// A tensor on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// One micro-batch's value.
    Slot(SlotId),
    /// A weight, in its bucket.
    Weight(ParamId),
    /// A weight's accumulated gradient, in its bucket.
    Gradient(ParamId),
    /// The squared norm of the step's gradients, of as many stages as are known: a number in double
    /// precision, which moves as [`Operand::NORM_WORDS`] words.
    Norm,
}

impl Operand {
    /// How many 4-byte words a norm moves as.
    pub const NORM_WORDS: usize = 2;
}

/// A tensor that an instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where to.
    pub to: Operand,
    /// Whether it is added onto what is there. A gradient's first write in a step overwrites all the
    /// same.
    pub accumulate: bool,
}

/// A change of layout along one mesh axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Keep one's own part along a tensor axis; local.
    Slice {
        /// Tensor axis.
        axis: usize,
    },
    /// Combine partial tensors everywhere.
    AllReduce(Reduction),
    /// Combine partial tensors, each keeping its part along a tensor axis.
    ReduceScatter {
        /// Tensor axis.
        axis: usize,
        /// How parts combine.
        reduction: Reduction,
    },
    /// Join the parts along a tensor axis.
    AllGather {
        /// Tensor axis.
        axis: usize,
    },
    /// Exchange the split of one tensor axis for that of another.
    AllToAll {
        /// Tensor axis that is joined.
        from: usize,
        /// Tensor axis that is split.
        to: usize,
    },
}

/// Ranks that act together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// The ranks of one class that differ only along these mesh axes.
    Mesh(Vec<Axis>),
    /// The ranks at the same mesh position of these classes.
    Homes(Vec<ClassId>),
    /// All ranks.
    World,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Writes this device's part of the micro-batch's input `value` from the data.
    Load {
        /// The graph's input.
        value: ValueId,
        /// How it is spread over the mesh.
        layout: Layout,
    },
    /// Runs one pass of an operator. Reads and writes stand in the order of the operator's inputs and
    /// outputs, or of its gradient rule's reads and produced gradients.
    Compute {
        /// The operator.
        op: OpId,
        /// Which pass.
        pass: Pass,
        /// Which mesh axes split its loops.
        assignment: Assignment,
        /// Whether a forward operator runs a second time.
        again: bool,
    },
    /// Changes the layout of its read along one mesh axis into its write.
    Redistribute {
        /// The change.
        change: Change,
        /// Over which mesh axis.
        axis: Axis,
    },
    /// `write += read`, elementwise.
    Add,
    /// `write = read`.
    Copy,
    /// Sends its read to another class.
    Send {
        /// Between whom, and which parts.
        route: RouteId,
    },
    /// Receives its write from another class.
    Receive {
        /// Between whom, and which parts.
        route: RouteId,
    },
    /// Reports its read as this micro-batch's part of the loss.
    Loss,
    /// Gathers a bucket's weights from their shards.
    Gather {
        /// The bucket.
        bucket: BucketId,
    },
    /// Drops a bucket's gathered weights.
    Release {
        /// The bucket.
        bucket: BucketId,
    },
    /// Combines a bucket's gradients over `group`, leaving them whole everywhere or, if `scatter`, each
    /// member's shard with that member, added to what earlier micro-batches left there.
    Reduce {
        /// The bucket.
        bucket: BucketId,
        /// Over whom.
        group: Group,
        /// Whether each member keeps only its shard.
        scatter: bool,
    },
    /// The squared norm of gradients: each rank's own share, then a sum over `group`. That of all ranks
    /// clips, and decides whether the step is taken.
    Norm {
        /// Over whom: all ranks, or those of one class, whose norm goes on to other classes.
        group: Group,
    },
    /// Keeps a copy of what the update of a bucket is about to change, because the norm of all gradients
    /// is not known yet.
    Backup {
        /// The bucket.
        bucket: BucketId,
    },
    /// With the norm of all gradients known, decides whether the update that was made before is right.
    /// If it is not, weights and optimizer state are put back, and whatever this step has computed is
    /// dropped. The copies are freed in either case.
    Validate,
    /// One round of the optimizer's statistics of a bucket: each owner's share, then a sum over owners.
    Statistics {
        /// The bucket.
        bucket: BucketId,
        /// Which round, from 0.
        round: usize,
        /// The ranks that own parts of the bucket's parameters.
        owners: Group,
    },
    /// Updates the rank's share of a bucket's weights.
    Update {
        /// The bucket.
        bucket: BucketId,
    },
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// What it does.
    pub action: Action,
    /// What it reads.
    pub reads: Vec<Operand>,
    /// What it writes.
    pub writes: Vec<Write>,
    /// Slots that nobody reads after it.
    pub frees: Vec<SlotId>,
}

impl Instruction {
    /// Whether it is a copy of something that nobody reads afterwards, which takes neither time nor
    /// memory.
    pub fn is_move(&self) -> bool {
        matches!((&self.action, self.reads.first()), (Action::Copy, Some(Operand::Slot(slot)))
            if self.frees.contains(slot))
    }

    /// An instruction without operands.
    pub(crate) fn bare(action: Action) -> Instruction {
        Instruction { action, reads: vec![], writes: vec![], frees: vec![] }
    }
}
