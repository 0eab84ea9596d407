//! Whose bytes come and go on a rank while it runs instructions.
//!
//! The one place that says what an instruction needs memory for: the [`Ledger`](crate::Ledger) counts
//! it, the [buffer plan](crate::buffers) gives it a place, and the executor takes that place.

use crate::{
    Action, BucketId, Change, Class, Group, Instruction, Operand, ParamId, Program, SlotId,
};

/// Something whose bytes come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// A value of a micro-batch.
    Slot(SlotId, Option<u32>),
    /// What a change of layout needs, while it runs, beside the slots that it reads and writes; booked
    /// under the slot that it writes.
    Staging(SlotId, Option<u32>),
    /// A weight moved along its velocity for the instruction that runs: the n-th that it reads.
    Moved(u32),
    /// All of a sharded bucket's weights, while they are gathered.
    Weights(BucketId),
    /// All of a bucket's gradients, where only shards are kept.
    Gradients(BucketId),
    /// A copy of the rank's share of a bucket's gradients, while tied weights' are added up.
    Share(BucketId),
    /// The optimizer's statistics of a bucket, while their sums are formed.
    Statistics(BucketId),
    /// What the update of a bucket has changed, as it was before, until the update is validated.
    Backup(BucketId),
}

/// A tenant that moves in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub tenant: Tenant,
    pub bytes: u64,
    /// Whose bytes it takes over; that one is gone then.
    pub from: Option<Tenant>,
}

/// The comings and goings on one position of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenancy<'a> {
    pub program: &'a Program,
    pub class: &'a Class,
    pub position: usize,
}

impl Tenancy<'_> {
    /// Who moves in before `instruction` runs. Somebody who is there already stays.
    pub fn arrivals(
        &self,
        instruction: &Instruction,
        microbatch: Option<u32>,
        mut arrive: impl FnMut(Arrival),
    ) {
        let mut arrive = |tenant, bytes, from| arrive(Arrival { tenant, bytes, from });
        let slot = |slot: SlotId| Tenant::Slot(slot, microbatch);
        let mut moved = moved(instruction);
        for write in &instruction.writes {
            match write.to {
                Operand::Slot(to) => {
                    let bytes = self.class.slot(to).bytes as u64;
                    arrive(slot(to), bytes, moved.take().map(slot));
                }
                Operand::Gradient(param) => {
                    let bucket = self.class.param(param).bucket;
                    if self.is_kept_in_shards(param) {
                        let bytes = self.bytes(bucket, self.program.precision.gradients.bytes());
                        arrive(Tenant::Gradients(bucket), bytes, None);
                    }
                }
                Operand::Weight(_) | Operand::Norm => {}
            }
        }
        if self.program.extrapolates(self.class, instruction).is_some() {
            for (index, read) in (0u32..).zip(&instruction.reads) {
                let Operand::Weight(param) = *read else { continue };
                let elements = self.class.param(param).elements();
                let bytes = elements * self.program.precision.compute.bytes();
                arrive(Tenant::Moved(index), bytes as u64, None);
            }
        }
        if let Some((tenant, bytes)) = self.passing(instruction, microbatch) {
            arrive(tenant, bytes, None);
        }
        if let Action::Gather { bucket } = instruction.action
            && self.program.shard.weights()
        {
            let bytes = self.bytes(bucket, self.program.precision.compute.bytes());
            arrive(Tenant::Weights(bucket), bytes, None);
        }
        if let Action::Backup { bucket } = instruction.action {
            let bytes = self.class.backup_bytes(self.program, bucket, self.position);
            arrive(Tenant::Backup(bucket), bytes, None);
        }
    }

    /// Who moves out after `instruction` ran.
    pub fn departures(
        &self,
        instruction: &Instruction,
        microbatch: Option<u32>,
        mut depart: impl FnMut(Tenant),
    ) {
        for &slot in &instruction.frees {
            depart(Tenant::Slot(slot, microbatch));
        }
        if self.program.extrapolates(self.class, instruction).is_some() {
            for (index, read) in (0u32..).zip(&instruction.reads) {
                if matches!(read, Operand::Weight(_)) {
                    depart(Tenant::Moved(index));
                }
            }
        }
        if let Some((tenant, _)) = self.passing(instruction, microbatch) {
            depart(tenant);
        }
        match instruction.action {
            Action::Release { bucket } => depart(Tenant::Weights(bucket)),
            Action::Reduce { bucket, scatter: true, .. } => depart(Tenant::Gradients(bucket)),
            Action::Validate => self.class.buckets().for_each(|(id, _)| depart(Tenant::Backup(id))),
            _ => {}
        }
    }

    /// Who is there only while a collective runs, and with how many bytes.
    fn passing(&self, instruction: &Instruction, microbatch: Option<u32>) -> Option<(Tenant, u64)> {
        match &instruction.action {
            Action::Redistribute { change, .. } => {
                let (read, written) = (instruction.reads.first()?, instruction.writes.first()?.to);
                let (Operand::Slot(read), Operand::Slot(written)) = (*read, written) else {
                    return None;
                };
                let bytes = self.staging_bytes(*change, read, written)?;
                Some((Tenant::Staging(written, microbatch), bytes))
            }
            Action::Reduce { bucket, group: Group::Homes(_), .. } => {
                // ZeRO-1 leaves the reduced shard in the whole gradient.
                let shard = self.program.shard;
                let class = self.class;
                let spec = class.bucket(*bucket);
                let copied = shard.state() && !shard.gradients() && class.replicated(spec);
                copied.then(|| {
                    let elements = class.shard_range(spec, self.position).len();
                    let bytes = elements * self.program.precision.gradients.bytes();
                    (Tenant::Share(*bucket), bytes as u64)
                })
            }
            Action::Statistics { bucket, round, .. } => {
                let elements = self.program.statistics_elements(self.class, *bucket, *round);
                Some((Tenant::Statistics(*bucket), 4 * elements as u64))
            }
            _ => None,
        }
    }

    /// Bytes that a change of layout needs only while it runs, if any. Collectives take and leave parts
    /// side by side: a tensor that is joined along an axis inside it is copied, and one that is cut is
    /// cut and reduced in a copy.
    fn staging_bytes(&self, change: Change, read: SlotId, written: SlotId) -> Option<u64> {
        let (read, written) = (self.class.slot(read), self.class.slot(written));
        let inside = |axis: usize| written.shape[..axis].iter().any(|&extent| extent > 1);
        match change {
            Change::ReduceScatter { .. } => Some(read.bytes as u64),
            Change::AllGather { axis } | Change::AllToAll { from: axis, .. } => {
                inside(axis).then_some(written.bytes as u64)
            }
            Change::Slice { .. } | Change::AllReduce(_) => None,
        }
    }

    /// Whether only shards of a parameter's gradient last.
    fn is_kept_in_shards(&self, param: ParamId) -> bool {
        let bucket = self.class.bucket(self.class.param(param).bucket);
        self.program.shard.gradients() && self.class.replicated(bucket)
    }

    fn bytes(&self, bucket: BucketId, element_bytes: usize) -> u64 {
        (self.class.bucket(bucket).elements * element_bytes) as u64
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
    /// What a tenant is, for people.
    pub fn tenant_text(&self, tenant: Tenant) -> String {
        let of = |microbatch: Option<u32>| {
            microbatch.map_or(String::new(), |it| format!(" of micro-batch {it}"))
        };
        let bucket = |id: BucketId| &self.bucket(id).name;
        match tenant {
            Tenant::Slot(slot, microbatch) => format!("{}{}", self.slot(slot).name, of(microbatch)),
            Tenant::Staging(slot, microbatch) => {
                format!("parts of {}{}", self.slot(slot).name, of(microbatch))
            }
            Tenant::Moved(index) => format!("the moved weight read {index}"),
            Tenant::Weights(id) => format!("the gathered weights of {}", bucket(id)),
            Tenant::Gradients(id) => format!("the whole gradients of {}", bucket(id)),
            Tenant::Share(id) => format!("a share of the gradients of {}", bucket(id)),
            Tenant::Statistics(id) => format!("the statistics of {}", bucket(id)),
            Tenant::Backup(id) => format!("what the update of {} changed", bucket(id)),
        }
    }
}
