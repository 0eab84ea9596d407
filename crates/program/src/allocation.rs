//! Which tensors come and go on a rank while it runs instructions.
//!
//! A transient tensor is allocated by the first instruction that writes it, and freed by the one that
//! says so. The [memory tracker](crate::MemoryTracker) counts it, the [buffer plan](crate::buffers)
//! gives it a place, and the executor takes that place.

use crate::{Action, Class, Collective, Copies, Instruction, Keep, TensorId};

/// A tensor that comes and goes, with the micro-batch whose copy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation {
    /// The tensor.
    pub tensor: TensorId,
    /// Its micro-batch; none of tensors that have one copy.
    pub microbatch: Option<u32>,
}

/// A tensor that is allocated, unless it is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub what: Allocation,
    /// Whose bytes it takes over; that one is gone then.
    pub from: Option<Allocation>,
}

impl Class {
    /// A tensor's allocation by an entry of a micro-batch; none of what is there all the time.
    pub fn allocation(&self, tensor: TensorId, microbatch: Option<u32>) -> Option<Allocation> {
        let spec = self.tensor(tensor);
        let microbatch = microbatch.filter(|_| spec.copies == Copies::PerMicrobatch);
        (spec.keep == Keep::Transient).then_some(Allocation { tensor, microbatch })
    }

    /// What is allocated before `instruction` runs. What is there already stays.
    pub(crate) fn allocated_by<'a>(
        &'a self,
        instruction: &'a Instruction,
        microbatch: Option<u32>,
    ) -> impl Iterator<Item = Allocated> + 'a {
        allocated(instruction, move |tensor| self.allocation(tensor, microbatch))
    }

    /// What is freed after `instruction` ran.
    pub(crate) fn freed_by<'a>(
        &'a self,
        instruction: &'a Instruction,
        microbatch: Option<u32>,
    ) -> impl Iterator<Item = Allocation> + 'a {
        instruction.frees.iter().filter_map(move |&tensor| self.allocation(tensor, microbatch))
    }

    /// What an allocation is, for people.
    pub fn allocation_text(&self, Allocation { tensor, microbatch }: Allocation) -> String {
        let of = microbatch.map_or(String::new(), |it| format!(" of micro-batch {it}"));
        format!("{}{of}", self.tensor(tensor).name)
    }
}

/// What is allocated before `instruction` runs, where `allocation` says what a tensor's is.
pub(crate) fn allocated(
    instruction: &Instruction,
    allocation: impl Fn(TensorId) -> Option<Allocation>,
) -> impl Iterator<Item = Allocated> {
    let mut moved = moved(instruction).and_then(&allocation);
    instruction.writes.iter().filter_map(move |write| {
        let what = allocation(write.to.tensor)?;
        Some(Allocated { what, from: moved.take() })
    })
}

/// The tensor that an all-reduce or a copy turns into its result, because nobody reads it afterwards.
fn moved(instruction: &Instruction) -> Option<TensorId> {
    let all_reduce =
        matches!(instruction.action, Action::Collective { kind: Collective::AllReduce(_), .. });
    let moves = instruction.is_move() || (all_reduce && !instruction.is_in_place());
    let read = instruction.reads.first()?.tensor;
    (moves && instruction.frees.contains(&read)).then_some(read)
}
