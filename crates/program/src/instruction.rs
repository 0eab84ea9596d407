//! What a device can be told to do.
//!
//! Every tensor that an instruction touches is among its operands: what it reads, what it writes, what
//! it is the last to touch.

use std::num::NonZeroU32;

use shardloom_collectives::Algorithm;
use shardloom_graph::work::Pass;
use shardloom_graph::{OpId, Reduction, ValueId};
use shardloom_plan::{Axis, Compression, Mesh};

use crate::{
    Assignment, Class, ClassId, Content, Layout, Mode, Point, Queue, RouteId, TensorId, View, Write,
};

/// What must hold after a collective. Tensor axes are of local tensors; a flat tensor has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Parts are combined, and everybody has the result.
    AllReduce(Reduction),
    /// Parts are combined, and each member keeps its share along a tensor axis.
    ReduceScatter {
        /// Tensor axis.
        axis: usize,
        /// How parts combine.
        reduction: Reduction,
    },
    /// Shares along a tensor axis are joined.
    AllGather {
        /// Tensor axis.
        axis: usize,
    },
    /// The split of one tensor axis is exchanged for that of another.
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
    Classes(Vec<ClassId>),
    /// All ranks.
    World,
}

impl Group {
    /// How many ranks it has in a class with this mesh, where there are `ranks` in all.
    pub fn size(&self, mesh: &Mesh, ranks: usize) -> usize {
        match self {
            Group::Mesh(axes) => mesh.span(axes),
            Group::Classes(classes) => classes.len(),
            Group::World => ranks,
        }
    }
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
    /// Writes which rows of a table this rank's samples look up, as the data say: different ones, in ascending order,
    /// and behind them none. In an entry of a micro-batch those of this micro-batch.
    LoadRows {
        /// The graph's parameter.
        table: ValueId,
        /// Otherwise those of these micro-batches of the step, which are all of the rank's.
        microbatches: Vec<u32>,
    },
    /// Writes where each index that it reads first stands among the rows of a table that it reads second.
    FindRows,
    /// Takes the rows of a table that it reads second out of the weights that it reads first.
    TakeRows,
    /// Runs one pass of an operator. Reads and writes stand in the order of the operator's inputs and
    /// outputs, or of its gradient rule's reads and produced gradients.
    Kernel {
        /// The operator.
        op: OpId,
        /// Which pass.
        pass: Pass,
        /// Which mesh axes split its loops.
        assignment: Assignment,
        /// Whether a forward operator runs a second time.
        again: bool,
    },
    /// Keeps this device's part of its read along a tensor axis.
    Slice {
        /// Tensor axis.
        axis: usize,
        /// The mesh axis that it is split over from now on.
        over: Axis,
    },
    /// Combines or exchanges its read over a group into its first write. A second write is where parts
    /// lie side by side meanwhile. Further reads are how many rows there are before and afterwards, where
    /// that is known only while running. Where it reads and writes the same tensor, it works in place. What is
    /// [negotiated](Queue::Negotiated) writes besides what negotiation needs: where members tell each other of
    /// their requests, and where several requests' parts lie side by side.
    Collective {
        /// What must hold afterwards.
        kind: Collective,
        /// Over whom.
        group: Group,
        /// By which algorithm.
        algorithm: Algorithm,
    },
    /// `write += read`, elementwise.
    Add,
    /// `write = read - write`, elementwise: weights before an update become what it has changed.
    Difference,
    /// Each write becomes the read in the same place.
    Copy,
    /// Sends its read to another class. [Rows](crate::Route::moves_rows) it sends as many as there are; it reads
    /// second which ones, unless it sends just that.
    Send {
        /// Between whom, and which parts.
        route: RouteId,
    },
    /// Receives its write from another class, and reads of rows which ones come.
    Receive {
        /// Between whom, and which parts.
        route: RouteId,
    },
    /// Publishes what it reads for the ranks of a group to [fetch](Action::Fetch) without its taking part: each
    /// write becomes the read in the same place, all of them at once for who fetches.
    Publish {
        /// For whom.
        group: Group,
    },
    /// Copies what another rank of a group has published last: each write becomes what that rank published in the
    /// same place. Whose that is [is drawn](crate::Program::partner) for each rank and step. It waits until the
    /// other has published something in the row of steps.
    Fetch {
        /// From one of whom.
        group: Group,
    },
    /// Reports its read as this micro-batch's part of the loss.
    Report,
    /// Moves a weight along its velocity: reads the weight and what its velocity follows from, writes the
    /// moved weight.
    Extrapolate {
        /// Whether to where the weight is expected to be when its gradient is applied, or back to where
        /// the forward pass had it.
        forward: bool,
    },
    /// The squared norm of the gradients that it reads, each element counted by the one rank that
    /// [owns](crate::Class::owned) it.
    Norm,
    /// This rank's share of a round of the optimizer's statistics: reads gradients, weights, the sums of
    /// the round before if there is one and, where it is used, the norm; writes the statistics and, as
    /// some optimizers take their state on already here, its state.
    Statistics {
        /// Which round, from 0.
        round: usize,
    },
    /// Updates its writes (weights, what corrections keep, optimizer state) with the gradients that it
    /// reads. Where there are master weights, it updates those and not the weights that operators read.
    Optimizer,
    /// Its write becomes its read in the write's format, rounded to nearest, ties to even: the weights that
    /// operators read, made of the master weights that were updated.
    Cast,
    /// Compresses a bucket's gradients, or goes on with what was exchanged of them: reads those (of the first
    /// round; later what was exchanged or is left) and what the way keeps, writes what is exchanged next and
    /// what it keeps. What that is [the way](crate::sync::Compressed) says.
    Compress {
        /// How.
        how: Compression,
        /// Which round, from 0.
        round: u8,
    },
    /// Makes a bucket's gradients, summed over its replicas, of what all have exchanged.
    Decompress {
        /// How they were compressed.
        how: Compression,
    },
    /// Sums equal rows of a table's gradient, in place: reads and writes which rows there are and the values for
    /// them, and writes their order, which nobody else reads. Afterwards different rows stand first, in ascending
    /// order, and behind them none.
    SumRows,
    /// Weights of a replica that has its own become `(1 - rate)` of what they were and `rate` of the mean: writes
    /// them, reads the sum over replicas, of which there are so many.
    Average {
        /// The share of the mean.
        rate: f64,
        /// How many weights were summed up.
        replicas: u32,
    },
    /// Says whether something is due that is done in each so-many-th step: writes a flag, which holds where
    /// the number of the step, counted from 1 since the start of the run, is a multiple of it. So it is the same
    /// on all ranks.
    Due {
        /// Steps from one time to the next.
        every: NonZeroU32,
    },
    /// With the norm of all gradients, which it reads, says whether the update that was made before is
    /// right: writes a flag, which does not hold if gradients had to be clipped or are not finite.
    Test,
    /// Does nothing but free.
    Free,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// What it does.
    pub action: Action,
    /// What it reads.
    pub reads: Vec<View>,
    /// What it writes.
    pub writes: Vec<Write>,
    /// Tensors that nobody reads after it.
    pub frees: Vec<TensorId>,
    /// In which queue it runs.
    pub queue: Queue,
    /// What must have ended in other queues before it starts. Of its own queue it follows what was issued
    /// before.
    pub after: Vec<Point>,
}

impl Instruction {
    /// An instruction that overwrites what it writes. Lowering says at its end in which queue it runs, and
    /// after what.
    pub fn new(
        action: Action,
        reads: impl IntoIterator<Item = View>,
        writes: impl IntoIterator<Item = View>,
    ) -> Instruction {
        Instruction {
            action,
            reads: reads.into_iter().collect(),
            writes: writes.into_iter().map(Write::set).collect(),
            frees: vec![],
            queue: Queue::default(),
            after: vec![],
        }
    }

    /// The same with another mode of its writes.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Instruction {
        self.writes.iter_mut().for_each(|write| write.mode = mode);
        self
    }

    /// The same, after which nobody reads these tensors.
    #[must_use]
    pub fn freeing(mut self, tensors: impl IntoIterator<Item = TensorId>) -> Instruction {
        self.frees.extend(tensors);
        self
    }

    /// What it reads and writes.
    pub fn operands(&self) -> impl Iterator<Item = View> + '_ {
        self.reads.iter().copied().chain(self.writes.iter().map(|write| write.to))
    }

    /// Whether it is a copy of something that nobody reads afterwards, which takes neither time nor
    /// memory.
    pub fn is_move(&self) -> bool {
        matches!((&self.action, self.reads.as_slice()), (Action::Copy, [read])
            if self.frees.contains(&read.tensor))
    }

    /// Whether it exchanges rows, as many as turn out while running, whose counts before and after it reads.
    pub fn moves_rows(&self, class: &Class) -> bool {
        matches!(self.action, Action::Collective { .. }) && self.reads_rows(class)
    }

    /// Whether it first reads rows, as many as turn out while running.
    pub fn reads_rows(&self, class: &Class) -> bool {
        let read = self.reads.first().map(|read| class.tensor(read.tensor));
        read.is_some_and(|it| it.counts().is_some())
    }

    /// Whether it keeps what an update is about to change.
    pub fn backs_up(&self, class: &Class) -> bool {
        let mut writes = self.writes.iter().map(|write| class.tensor(write.to.tensor));
        self.action == Action::Copy && writes.any(|it| it.content == Content::Backup)
    }

    /// Whether it puts back what an update has changed.
    pub fn restores(&self, class: &Class) -> bool {
        let mut reads = self.reads.iter().map(|read| class.tensor(read.tensor));
        self.action == Action::Copy && reads.any(|it| it.content == Content::Backup)
    }

    /// Whether it is a collective that sums a tensor up in place.
    pub fn is_reduction(&self) -> bool {
        let sums = |kind: &Collective| *kind == Collective::AllReduce(Reduction::Sum);
        matches!(&self.action, Action::Collective { kind, .. } if sums(kind)) && self.is_in_place()
    }

    /// Whether members agree while running when it is carried out.
    pub fn is_negotiated(&self) -> bool {
        matches!(self.queue, Queue::Negotiated(_))
    }

    /// Whether it works on a tensor in place.
    pub fn is_in_place(&self) -> bool {
        match (self.reads.first(), self.writes.first()) {
            (Some(read), Some(write)) => read.tensor == write.to.tensor,
            _ => false,
        }
    }
}
