//! How much memory a rank needs, by walking its stream.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_plan::Prediction;

use crate::tenant::{Arrival, Tenancy, Tenant};
use crate::{BodyKind, Bucket, BucketId, Class, Instruction, ParamId, Program, StreamItem};

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

/// Tracks the bytes that live while instructions run in order.
///
/// The simulator and the memory bound of a search both count with it, and an executor that allocates
/// at the first write of a tensor and frees where an instruction says so agrees, but for what kernels
/// use as scratch. A message belongs to no rank from the end of its send to its receive: how many are on
/// their way depends on when others run, which no order of one rank's instructions can tell.
#[derive(Clone, Debug)]
pub struct Ledger<'a> {
    tenancy: Tenancy<'a>,
    tenants: BTreeMap<Tenant, u64>,
    live_bytes: u64,
    peak_bytes: u64,
}

impl<'a> Ledger<'a> {
    /// A ledger that counts what `position` of `class` holds all the time.
    pub fn new(program: &'a Program, class: &'a Class, position: usize) -> Ledger<'a> {
        let live_bytes = class.persistent_bytes(program, position).total();
        Ledger {
            tenancy: Tenancy { program, class, position },
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
        let tenancy = self.tenancy;
        tenancy.arrivals(instruction, microbatch, |Arrival { tenant, bytes, from }| {
            if let Some(from) = from {
                self.move_out(from);
            }
            self.move_in(tenant, bytes);
        });
    }

    /// Counts what `instruction` frees, after it ran.
    pub fn end(&mut self, instruction: &Instruction, microbatch: Option<u32>) {
        let tenancy = self.tenancy;
        tenancy.departures(instruction, microbatch, |tenant| self.move_out(tenant));
    }

    /// Counts that all micro-batches under way are dropped, to be begun again.
    pub fn drop_microbatches(&mut self) {
        let dropped: Vec<Tenant> = self.tenants.keys().copied().collect();
        let of_microbatch = |tenant: &Tenant| matches!(tenant, Tenant::Slot(..));
        dropped.into_iter().filter(of_microbatch).for_each(|tenant| self.move_out(tenant));
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

    /// Of the bytes that forward passes on `position` leave in use, the share that is still in use after
    /// input gradients, for weight gradients to free; 1 where backward passes run whole.
    pub fn kept_share(&self, program: &Program, position: usize) -> f64 {
        let mut ledger = Ledger::new(program, self, position);
        let (mut left, mut freed_last, mut splits) = (0, 0, false);
        for (_, StreamItem { body, microbatch, .. }) in
            program.unrolled(self, 1).filter(|(_, item)| !item.amends)
        {
            let before = ledger.live_bytes() as i64;
            for instruction in &self.body(body).instructions {
                ledger.begin(instruction, microbatch);
                ledger.end(instruction, microbatch);
            }
            let more = ledger.live_bytes() as i64 - before;
            match self.body(body).kind {
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
