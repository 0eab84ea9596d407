//! How much memory a program's static buffer plan takes.

use serde::Serialize;
use shardloom_program::Program;
use shardloom_program::buffers::{BufferPlan, MessagePlan};

/// The buffers of all ranks of a program, assigned ahead. What a rank holds all the time (weights,
/// gradients, optimizer state) comes on top.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Buffers {
    /// Ranks that do the same, in order of rank.
    pub ranks: Vec<RankBuffers>,
    /// Bytes of all buffers of messages between stages, over all ranks: as many as can be under way at
    /// once, so that no sender waits.
    pub message_bytes: u64,
}

/// The buffers of ranks that do the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankBuffers {
    /// The first of them.
    pub rank: u32,
    /// How many there are.
    pub multiplicity: u64,
    /// Bytes of the arena that holds all that comes and goes on each of them.
    pub arena_bytes: u64,
    /// The most of it that is in use at once, in bytes; each tensor takes whole cache lines.
    pub used_bytes: u64,
}

impl Buffers {
    /// The buffers of `program`: some tenths of a second of planning for ranks with ten thousands of
    /// tensors in a step.
    pub fn of(program: &Program) -> Buffers {
        let of_class = |class| {
            let BufferPlan { arena_bytes, peak_bytes, .. } = BufferPlan::new(program, class);
            RankBuffers {
                rank: class.first_rank.0,
                multiplicity: class.mesh.size() as u64,
                arena_bytes,
                used_bytes: peak_bytes,
            }
        };
        Buffers {
            ranks: program.classes.iter().map(of_class).collect(),
            message_bytes: MessagePlan::new(program).bytes(program),
        }
    }
}
