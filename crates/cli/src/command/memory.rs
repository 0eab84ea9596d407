//! Whether a plan fits into memory, and what it is that fills it.

use serde::Serialize;
use shardloom::program::MemoryUse;
use shardloom::program::quantity::bytes;
use shardloom::sim::{Fit, MemoryFit};

/// The memory of a rank, or of a folded class of ranks, by the first of them.
#[derive(Serialize)]
pub struct Memory {
    rank: u32,
    /// Of a class the rank whose device is fullest.
    fullest_rank: u32,
    /// The most that is held at once, and what the device has.
    peak_bytes: u64,
    memory_bytes: u64,
    /// What that leaves; below 0 where it does not fit.
    margin_bytes: i64,
    fit: Fit,
    /// Of the peak, what is there all the time.
    weight_bytes: u64,
    gradient_bytes: u64,
    state_bytes: u64,
    other_bytes: u64,
    /// Activations and their gradients.
    activation_bytes: u64,
    /// The rest: what is gathered, reduced or worked with for a time.
    buffer_bytes: u64,
}

impl Memory {
    /// Of one rank.
    fn of(it: &MemoryFit) -> Memory {
        Memory {
            rank: it.rank,
            fullest_rank: it.fullest_rank,
            peak_bytes: it.peak_bytes,
            memory_bytes: it.memory_bytes,
            margin_bytes: it.margin_bytes(),
            fit: it.fit(),
            weight_bytes: it.persistent.weights,
            gradient_bytes: it.persistent.gradients,
            state_bytes: it.persistent.state,
            other_bytes: it.persistent.other,
            activation_bytes: it.activation_bytes,
            buffer_bytes: it.buffer_bytes(),
        }
    }

    /// Of all ranks.
    pub fn all(ranks: &[MemoryFit]) -> Vec<Memory> {
        ranks.iter().map(Memory::of).collect()
    }
}

/// The verdict on a rank with its margin, and what its peak is made of.
pub fn described(it: &MemoryFit) -> String {
    let parts = [
        ("weights", it.persistent.weights),
        ("gradients", it.persistent.gradients),
        ("optimizer state", it.persistent.state),
        ("other", it.persistent.other),
        ("activations", it.activation_bytes),
        ("buffers", it.buffer_bytes()),
    ];
    let (verdict, rank) = (it.verdict(), it.fullest_rank);
    let (peak, all) = (bytes(it.peak_bytes), bytes(it.memory_bytes));
    format!("{verdict}; rank {rank} holds {peak} of {all}: {}", listed(&parts))
}

/// What the peak of a rank is made of, whatever its device has.
pub fn held(rank: usize, it: &MemoryUse) -> String {
    let MemoryUse { persistent, peak_bytes } = *it;
    let parts = [
        ("weights", persistent.weights),
        ("gradients", persistent.gradients),
        ("optimizer state", persistent.state),
        ("other", persistent.other),
        ("activations and buffers", peak_bytes.saturating_sub(persistent.total())),
    ];
    format!("rank {rank} holds {}: {}", bytes(peak_bytes), listed(&parts))
}

/// The parts that there are, with their sizes.
fn listed(parts: &[(&str, u64)]) -> String {
    let parts = parts.iter().filter(|&&(_, size)| size > 0);
    let parts: Vec<String> = parts.map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use shardloom::program::PersistentBytes;

    use super::*;

    #[test]
    fn verdicts_have_margins_and_parts() {
        let gib = 1 << 30;
        let said = |peak: u64| {
            let persistent = PersistentBytes {
                weights: 10 * gib,
                gradients: 20 * gib,
                state: 30 * gib,
                other: 0,
            };
            let memory_bytes = 80 * gib;
            let peak_bytes = peak * gib;
            let activation_bytes = 5 * gib;
            described(&MemoryFit {
                rank: 2,
                fullest_rank: 3,
                peak_bytes,
                memory_bytes,
                persistent,
                activation_bytes,
            })
        };
        assert_eq!(
            said(70),
            "fits, 10.0 GiB (12.5%) to spare; rank 3 holds 70.0 GiB of 80.0 GiB: weights 10.0 GiB, \
             gradients 20.0 GiB, optimizer state 30.0 GiB, activations 5.00 GiB, buffers 5.00 GiB"
        );
        assert!(said(78).starts_with("close, 2.00 GiB (2.5%) to spare; rank 3 holds 78.0 GiB"));
        assert!(said(100).starts_with("does not fit, 20.0 GiB (25.0%) too much; rank 3"));
    }

    #[test]
    fn without_a_device_a_rank_is_said_to_hold_its_parts() {
        let persistent = PersistentBytes { weights: 10, gradients: 20, state: 0, other: 0 };
        let it = MemoryUse { persistent, peak_bytes: 37 };
        let said = "rank 1 holds 37 B: weights 10 B, gradients 20 B, activations and buffers 7 B";
        assert_eq!(held(1, &it), said);
    }
}
