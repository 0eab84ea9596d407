//! How much memory a rank needs, by walking its stream.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_plan::Prediction;

use crate::{
    Action, Bucket, BucketId, Change, Class, Instruction, Message, Operand, ParamId, Placement,
    Program, RouteId, SlotId, StreamItem,
};

/// What a rank holds all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistentBytes {
    /// Weights, or their shards.
    pub weights: u64,
    /// Gradients, or their shards.
    pub gradients: u64,
    /// Optimizer state and master weights, or their shards.
    pub state: u64,
}

impl PersistentBytes {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.state
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

/// Something whose bytes come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tenant {
    Slot(SlotId, Option<u32>),
    /// What a collective or a message needs, while it runs, beside the slot that it reads or writes.
    Staging(SlotId, Option<u32>),
    /// Weights moved along their velocity for the instruction that runs.
    Moved,
    Weights(BucketId),
    Gradients(BucketId),
    /// What an update has changed, as it was before.
    Backup(BucketId),
}

/// Tracks the bytes that live while instructions run in order.
///
/// The simulator and the memory bound of a search both count with it, and an executor that allocates
/// at the first write of a tensor and frees where an instruction says so agrees, but for what kernels
/// use as scratch. A message belongs to no rank from the end of its send to its receive: how many are on
/// their way depends on when others run, which no order of one rank's instructions can tell.
#[derive(Clone, Debug)]
pub struct Ledger<'a> {
    program: &'a Program,
    class: &'a Class,
    position: usize,
    tenants: BTreeMap<Tenant, u64>,
    live_bytes: u64,
    peak_bytes: u64,
}

impl<'a> Ledger<'a> {
    /// A ledger that counts what `position` of `class` holds all the time.
    pub fn new(program: &'a Program, class: &'a Class, position: usize) -> Ledger<'a> {
        let live_bytes = class.persistent_bytes(program, position).total();
        Ledger {
            program,
            class,
            position,
            tenants: BTreeMap::new(),
            live_bytes,
            peak_bytes: live_bytes,
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

    /// Counts what `instruction` allocates, before it runs.
    pub fn begin(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        if let Some(slot) = moved(instruction) {
            self.move_out(Tenant::Slot(slot, microbatch));
        }
        for write in &instruction.writes {
            match write.to {
                Operand::Slot(slot) => {
                    let bytes = self.class.slot(slot).bytes as u64;
                    self.move_in(Tenant::Slot(slot, microbatch), bytes);
                }
                Operand::Gradient(param) => self.gradient_written(param),
                Operand::Weight(_) | Operand::Norm => {}
            }
        }
        if let Action::Gather { bucket } = instruction.action
            && self.program.shard.weights()
        {
            let bytes = self.bytes(bucket, self.program.precision.compute.bytes());
            self.move_in(Tenant::Weights(bucket), bytes);
        }
        if let Action::Backup { bucket } = instruction.action {
            let bytes = self.class.backup_bytes(self.program, bucket, self.position);
            self.move_in(Tenant::Backup(bucket), bytes);
        }
        if let Some((slot, bytes)) = self.staging(instruction) {
            self.move_in(Tenant::Staging(slot, microbatch), bytes);
        }
        if self.program.extrapolates(self.class, instruction).is_some() {
            let elements = |read: &Operand| match *read {
                Operand::Weight(param) => self.class.param(param).elements(),
                Operand::Slot(_) | Operand::Gradient(_) | Operand::Norm => 0,
            };
            let elements: usize = instruction.reads.iter().map(elements).sum();
            let bytes = elements * self.program.precision.compute.bytes();
            self.move_in(Tenant::Moved, bytes as u64);
        }
    }

    /// The bytes that `instruction` needs only while it runs, booked under the slot that it is about.
    fn staging(&self, instruction: &Instruction) -> Option<(SlotId, u64)> {
        let read = || instruction.reads.first().copied();
        let written = || instruction.writes.first().map(|write| write.to);
        match instruction.action {
            Action::Redistribute { change, .. } => match (read()?, written()?) {
                (Operand::Slot(read), Operand::Slot(written)) => {
                    Some((written, self.staging_bytes(change, read, written)))
                }
                _ => None,
            },
            Action::Send { route } => match read()? {
                Operand::Slot(slot) => {
                    let sent = self.program.route(route).sent_by(self.position).collect();
                    let moves = instruction.frees.contains(&slot);
                    Some((slot, self.copied_bytes(route, sent, |it| &it.source, slot, moves)))
                }
                _ => None,
            },
            Action::Receive { route } => match written()? {
                Operand::Slot(slot) => {
                    let received = self.program.route(route).received_by(self.position).collect();
                    Some((slot, self.copied_bytes(route, received, |it| &it.target, slot, true)))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The largest of `messages` that is copied out of or into `slot`. One that is all of the slot is
    /// handed on as it is if the slot `moves`; of several such only the last.
    fn copied_bytes(
        &self,
        route: RouteId,
        messages: Vec<&Message>,
        part: impl Fn(&Message) -> &Placement,
        slot: SlotId,
        moves: bool,
    ) -> u64 {
        let shape = &self.class.slot(slot).shape;
        let last = messages.len().saturating_sub(1);
        let copied = messages.iter().enumerate().filter(|&(index, message)| {
            !(moves && index == last && part(message).extent == *shape)
        });
        let real_bytes = self.program.precision.compute.bytes();
        let route = self.program.route(route);
        copied.map(|(_, message)| route.message_bytes(message, real_bytes)).max().unwrap_or(0)
    }

    /// Bytes that a change of layout needs only while it runs. Collectives take and leave parts side by
    /// side: a tensor that is joined along an axis inside it is copied, and one that is cut is cut and
    /// reduced in a copy.
    fn staging_bytes(&self, change: Change, read: SlotId, written: SlotId) -> u64 {
        let (read, written) = (self.class.slot(read), self.class.slot(written));
        let inside = |axis: usize| written.shape[..axis].iter().any(|&extent| extent > 1);
        match change {
            Change::ReduceScatter { .. } => read.bytes as u64,
            Change::AllGather { axis } | Change::AllToAll { from: axis, .. } if inside(axis) => {
                written.bytes as u64
            }
            Change::AllGather { .. }
            | Change::AllToAll { .. }
            | Change::Slice { .. }
            | Change::AllReduce(_) => 0,
        }
    }

    /// Counts what `instruction` frees, after it ran.
    pub fn end(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        for &slot in &instruction.frees {
            self.move_out(Tenant::Slot(slot, microbatch));
        }
        if let Some((slot, _)) = self.staging(instruction) {
            self.move_out(Tenant::Staging(slot, microbatch));
        }
        self.move_out(Tenant::Moved);
        match instruction.action {
            Action::Release { bucket } => self.move_out(Tenant::Weights(bucket)),
            Action::Reduce { bucket, scatter: true, .. } => {
                self.move_out(Tenant::Gradients(bucket));
            }
            Action::Validate => {
                self.class.buckets().for_each(|(id, _)| self.move_out(Tenant::Backup(id)));
            }
            _ => {}
        }
    }

    /// Counts that all micro-batches under way are dropped, to be begun again.
    pub fn drop_microbatches(&mut self) {
        let dropped: Vec<Tenant> = self.tenants.keys().copied().collect();
        let of_microbatch = |tenant: &Tenant| matches!(tenant, Tenant::Slot(..));
        dropped.into_iter().filter(of_microbatch).for_each(|tenant| self.move_out(tenant));
    }

    fn gradient_written(&mut self, param: ParamId) {
        let bucket = self.class.param(param).bucket;
        let sharded = self.class.replicated(self.class.bucket(bucket));
        if self.program.shard.gradients() && sharded {
            let bytes = self.bytes(bucket, self.program.precision.gradients.bytes());
            self.move_in(Tenant::Gradients(bucket), bytes);
        }
    }

    fn bytes(&self, bucket: BucketId, element_bytes: usize) -> u64 {
        (self.class.bucket(bucket).elements * element_bytes) as u64
    }

    fn move_in(&mut self, tenant: Tenant, bytes: u64) {
        if self.tenants.insert(tenant, bytes).is_none() {
            self.live_bytes += bytes;
            self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        }
    }

    fn move_out(&mut self, tenant: Tenant) {
        if let Some(bytes) = self.tenants.remove(&tenant) {
            self.live_bytes -= bytes;
        }
    }
}

/// The slot that an all-reduce or a copy turns into its result, because nobody reads it afterwards.
fn moved(instruction: &Instruction) -> Option<SlotId> {
    let moves = instruction.is_move()
        || matches!(instruction.action, Action::Redistribute { change: Change::AllReduce(_), .. });
    match instruction.reads.first() {
        Some(Operand::Slot(slot)) if moves && instruction.frees.contains(slot) => Some(*slot),
        _ => None,
    }
}

impl Class {
    /// What `position` holds all the time.
    pub fn persistent_bytes(&self, program: &Program, position: usize) -> PersistentBytes {
        let precision = program.precision;
        let master = if precision.master { 4 } else { 0 };
        let mut bytes = PersistentBytes::default();
        for bucket in &self.buckets {
            let sharded = self.replicated(bucket);
            let shard = self.shard_range(bucket, position);
            let held = |is_sharded: bool| match sharded && is_sharded {
                true => shard.len() as u64,
                false => bucket.elements as u64,
            };
            let weights = held(program.shard.weights()) * precision.compute.bytes() as u64;
            bytes.weights += weights * u64::from(self.versions() + self.corrections(program));
            bytes.gradients += held(program.shard.gradients()) * precision.gradients.bytes() as u64;
            let per_parameter = program.optimizer.state_bytes_per_parameter() + master;
            bytes.state += held(program.shard.state()) * per_parameter as u64;
            bytes.state += self.factored_bytes(program, bucket, position);
        }
        bytes
    }

    /// What `position` copies before it updates a bucket, to be able to undo that: its share of the
    /// optimizer's state and of the weights, or of their master copy.
    pub fn backup_bytes(&self, program: &Program, bucket: BucketId, position: usize) -> u64 {
        let bucket = self.bucket(bucket);
        let precision = program.precision;
        let weight = if precision.master { 4 } else { precision.compute.bytes() };
        let per_parameter = program.optimizer.state_bytes_per_parameter() + weight;
        let elements = self.updated(program, bucket, position).len();
        (elements * per_parameter) as u64 + self.factored_bytes(program, bucket, position)
    }

    /// The elements of `bucket` that `position` updates.
    fn updated(&self, program: &Program, bucket: &Bucket, position: usize) -> Range<usize> {
        match self.replicated(bucket) && program.shard.state() {
            true => self.shard_range(bucket, position),
            false => 0..bucket.elements,
        }
    }

    /// Bytes of optimizer state that are not so many per parameter.
    fn factored_bytes(&self, program: &Program, bucket: &Bucket, position: usize) -> u64 {
        let share = self.updated(program, bucket, position);
        let elements = |&param: &ParamId| self.factored_elements(program, param, &share);
        4 * bucket.params.iter().map(elements).sum::<usize>() as u64
    }

    /// How many tensors like the weights make up for delayed gradients.
    pub fn corrections(&self, program: &Program) -> u32 {
        let corrections = &program.corrections;
        let velocity = self.delay > 0.0 && corrections.discrepancy.is_some();
        let previous = self.delay > 0.0 && corrections.prediction == Some(Prediction::Weights);
        u32::from(velocity) + u32::from(previous)
    }

    /// Elements of optimizer state that are not one per parameter, for a parameter of which the
    /// elements in `share` (of its bucket) are updated here.
    fn factored_elements(&self, program: &Program, param: ParamId, share: &Range<usize>) -> usize {
        let param = self.param(param);
        let end = param.offset + param.elements();
        let owned = share.end.min(end).saturating_sub(share.start.max(param.offset));
        if owned == 0 {
            return 0;
        }
        program.optimizer.factored_elements(param.rows, param.columns, owned)
    }

    /// The memory of `position` over one step.
    pub fn memory_use(&self, program: &Program, position: usize) -> MemoryUse {
        let mut ledger = Ledger::new(program, self, position);
        // Enough steps for the pipeline to be full once, and to begin with what another left behind.
        let steps = 2 * program.ahead + 1 + u32::from(self.ends_late());
        let usual = program.unrolled(self, steps).filter(|(_, item)| !item.amends);
        for (_, StreamItem { body, microbatch, .. }) in usual {
            for instruction in &self.body(body).instructions {
                ledger.begin(instruction, microbatch);
                ledger.end(instruction, microbatch);
            }
        }
        let persistent = self.persistent_bytes(program, position);
        MemoryUse { persistent, peak_bytes: ledger.peak_bytes() }
    }
}
