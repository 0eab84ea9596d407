//! How much memory a rank needs: the sum over its tensors, by following its control.

use serde::Serialize;
use shardloom_plan::Kept;
use smallvec::SmallVec;

use crate::allocation::{Allocated, allocated};
use crate::live_copies::LiveCopies;
use crate::outstanding::{Follower, Moment};
use crate::{
    Allocation, BodyKind, Class, Content, Copies, Extent, Instruction, Keep, Program, Shape,
    Tensor, TensorId,
};

/// What a rank holds all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PersistentBytes {
    /// Weights that operators read, or their shards, in all versions, with what corrections for delayed
    /// gradients keep of them.
    pub weights: u64,
    /// Gradients, or their shards, with what a way of keeping replicas equal keeps of them.
    pub gradients: u64,
    /// Optimizer state and master weights, or their shards.
    pub state: u64,
    /// What belongs to no parameter.
    pub other: u64,
}

impl PersistentBytes {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.state + self.other
    }
}

/// A rank's memory over a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What it holds all the time.
    pub persistent: PersistentBytes,
    /// The most that it holds at once, persistent bytes included.
    pub peak_bytes: u64,
}

/// Tracks the bytes that live while instructions run in order.
///
/// The simulator and the memory bound of a search both count with it, and an executor that allocates
/// at the first write of a tensor and frees where an instruction says so, and of collectives where they are
/// [waited for](crate::Outstanding), agrees, but for what kernels
/// use as scratch. A message belongs to no rank from the end of its send to its receive: how many are on
/// their way depends on when others run, which no order of one rank's instructions can tell.
#[derive(Clone, Debug)]
pub struct MemoryTracker<'a> {
    class: &'a Class,
    /// What is to know of each tensor, side by side: deep models have so many that looking for it in several places
    /// takes longer than counting.
    tracked: Vec<Tracked>,
    live_bytes: u64,
    peak_bytes: u64,
    /// Activations among what lives, and lived at the first time of the most.
    activation_bytes: u64,
    peak_activation_bytes: u64,
}

/// One tensor.
#[derive(Clone, Debug)]
struct Tracked {
    /// Its size, or that of one of its copies.
    bytes: u64,
    /// Those of its copies that there are; of a tensor without copies the first, while it is there.
    live: LiveCopies,
    is_transient: bool,
    has_copies: bool,
    is_activation: bool,
}

impl Tracked {
    fn allocation(&self, tensor: TensorId, microbatch: Option<u32>) -> Option<Allocation> {
        let microbatch = microbatch.filter(|_| self.has_copies);
        self.is_transient.then_some(Allocation { tensor, microbatch })
    }

    fn activation_bytes(&self) -> u64 {
        if self.is_activation { self.bytes } else { 0 }
    }
}

impl<'a> MemoryTracker<'a> {
    /// A tracker that begins with what `position` of `class` holds all the time.
    pub fn new(class: &'a Class, position: usize) -> MemoryTracker<'a> {
        let held = class.persistent_bytes(position).total();
        MemoryTracker::with_held(class, position, held)
    }

    /// A tracker that begins with `live_bytes`, where not all of that is there from the beginning.
    pub fn with_held(class: &'a Class, position: usize, live_bytes: u64) -> MemoryTracker<'a> {
        let tracked = class.tensors().map(|(id, tensor)| Tracked {
            bytes: class.tensor_bytes(id, position),
            live: LiveCopies::default(),
            is_transient: class.allocation(id, None).is_some(),
            has_copies: tensor.is_of_microbatch(),
            is_activation: tensor.is_activation(),
        });
        MemoryTracker {
            class,
            tracked: tracked.collect(),
            live_bytes,
            peak_bytes: live_bytes,
            activation_bytes: 0,
            peak_activation_bytes: 0,
        }
    }

    /// Bytes that live now.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The most that ever lived.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// The activations, and gradients of activations, among the most that ever lived.
    pub fn peak_activation_bytes(&self) -> u64 {
        self.peak_activation_bytes
    }

    /// Counts what `instruction` allocates, before it runs.
    pub fn begin(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        self.begin_counting(instruction, microbatch, |_| true);
    }

    /// Likewise, of those tensors only that `counts` says.
    pub fn begin_counting(
        &mut self,
        instruction: &Instruction,
        microbatch: Option<u32>,
        counts: impl Fn(&Tensor) -> bool,
    ) {
        let allocation = |tensor| self.tracked(tensor).allocation(tensor, microbatch);
        let all: SmallVec<[Allocated; 4]> = allocated(instruction, allocation).collect();
        for Allocated { what, from } in all {
            if let Some(from) = from {
                self.free(from);
            }
            if counts(self.class.tensor(what.tensor)) {
                self.allocate(what);
            }
        }
    }

    /// Counts `bytes` that are there for a moment besides what lives.
    pub fn pass(&mut self, bytes: u64) {
        let held = self.live_bytes.saturating_add(bytes);
        if held > self.peak_bytes {
            self.peak_bytes = held;
            self.peak_activation_bytes = self.activation_bytes;
        }
    }

    /// Holds `bytes` more, which belong to no tensor, until they are given back.
    pub fn hold(&mut self, bytes: u64) {
        self.live_bytes += bytes;
        self.pass(0);
    }

    /// Gives `bytes` back that were held.
    pub fn give_back(&mut self, bytes: u64) {
        self.live_bytes -= bytes;
    }

    /// Counts what `instruction` frees, after it ran.
    pub fn end(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        for &tensor in &instruction.frees {
            if let Some(freed) = self.tracked(tensor).allocation(tensor, microbatch) {
                self.free(freed);
            }
        }
    }

    fn tracked(&self, tensor: TensorId) -> &Tracked {
        &self.tracked[tensor.0 as usize]
    }

    fn allocate(&mut self, Allocation { tensor, microbatch }: Allocation) {
        let tracked = &mut self.tracked[tensor.0 as usize];
        if tracked.live.insert(microbatch.unwrap_or(0)) {
            self.live_bytes += tracked.bytes;
            self.activation_bytes += tracked.activation_bytes();
            self.pass(0);
        }
    }

    fn free(&mut self, Allocation { tensor, microbatch }: Allocation) {
        let tracked = &mut self.tracked[tensor.0 as usize];
        if tracked.live.remove(microbatch.unwrap_or(0)) {
            self.live_bytes -= tracked.bytes;
            self.activation_bytes -= tracked.activation_bytes();
        }
    }
}

impl Class {
    /// The tensors that ranks hold for the whole run.
    pub fn lasting(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors().filter(|(_, tensor)| tensor.keep != Keep::Transient)
    }

    /// What `position` holds all the time.
    pub fn persistent_bytes(&self, position: usize) -> PersistentBytes {
        let mut bytes = PersistentBytes::default();
        for (id, tensor) in self.lasting() {
            let copies = match tensor.copies {
                Copies::Versions(versions) => versions,
                Copies::One | Copies::PerMicrobatch => 1,
            };
            let held = match tensor.content {
                Content::Weight
                | Content::PublishedWeight
                | Content::LookedUp
                | Content::PreviousWeight
                | Content::WeightVelocity
                | Content::ExtrapolatedWeight
                | Content::SecondWeight => &mut bytes.weights,
                Content::Gradient
                | Content::Rows
                | Content::Synchronisation(_)
                | Content::OfRank(_) => &mut bytes.gradients,
                Content::MasterWeight | Content::OptimizerState(_) => &mut bytes.state,
                Content::Activation
                | Content::Staging
                | Content::Lookups
                | Content::Compressed
                | Content::SummedWeight
                | Content::WeightDelta
                | Content::Negotiation
                | Content::Statistics
                | Content::Norm
                | Content::Backup
                | Content::Flag => &mut bytes.other,
            };
            *held += u64::from(copies) * self.tensor_bytes(id, position);
        }
        bytes
    }

    /// The position that holds the most all the time, of several the first. Positions hold unlike shares of what is
    /// dealt to them, the first the largest; but what an optimizer keeps for whole parameters, such as sums over rows,
    /// is on whichever positions have a part of these.
    pub fn fullest_position(&self) -> usize {
        let of_whole = |tensor: &Tensor| {
            matches!(
                tensor.shape,
                Shape::Flat(Extent::OfParam { kept: Kept::PerParameter(_), shared: true, .. })
            )
        };
        if !self.lasting().any(|(_, tensor)| of_whole(tensor)) {
            return 0;
        }
        let total = |&position: &usize| self.persistent_bytes(position).total();
        (0..self.mesh.size()).rev().max_by_key(total).unwrap_or(0)
    }

    /// Of the bytes that forward passes on `position` leave in use, the share that is still in use after
    /// input gradients, for weight gradients to free; 1 where backward passes run whole.
    pub fn kept_share(&self, program: &Program, position: usize) -> f64 {
        let mut tracker = MemoryTracker::new(self, position);
        let (mut left, mut freed_last, mut splits) = (0, 0, false);
        for run in program.cursor(self, 1).runs(true) {
            let before = tracker.live_bytes() as i64;
            let body = self.body_of(&run.entry);
            for instruction in &body.instructions {
                tracker.begin(instruction, run.microbatch);
                tracker.end(instruction, run.microbatch);
            }
            let more = tracker.live_bytes() as i64 - before;
            match body.kind {
                BodyKind::Forward => left += more,
                BodyKind::BackwardWeight => {
                    freed_last -= more;
                    splits = true;
                }
                _ => {}
            }
        }
        match splits && left > 0 {
            true => (freed_last as f64 / left as f64).clamp(0.0, 1.0),
            false => 1.0,
        }
    }

    /// The memory of `position` over one step.
    pub fn memory_use(&self, program: &Program, position: usize) -> MemoryUse {
        let mut tracker = MemoryTracker::new(self, position);
        let mut follower = Follower::new(program, self);
        // Enough steps for the pipeline to be full once, and to begin with what another left behind.
        let steps = 2 * program.ahead + 1 + self.late();
        for run in program.cursor(self, steps).runs(true) {
            follower.run(&run, |moment| match moment {
                Moment::Start(issued, it) => tracker.begin(it, issued.microbatch),
                Moment::End(issued, it, _) => tracker.end(it, issued.microbatch),
            });
        }
        let persistent = self.persistent_bytes(position);
        MemoryUse { persistent, peak_bytes: tracker.peak_bytes() }
    }
}
