//! Communication between ranks.

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_kernels::Format;
use shardloom_kernels::device::HostSliceMut;

use super::bench::{Bench, Clock, Parcel};
use super::operand::{Operand, Warmth};
use crate::Result;

/// Seconds of a collective over `elements` among groups of `members` ranks, all groups at once; ranks
/// that no group is left for stand by.
///
/// # Errors
/// If communication fails.
pub(super) fn collective(
    algorithm: Algorithm,
    kind: Kind,
    members: u32,
    elements: usize,
    bench: &mut Bench,
) -> Result<f64> {
    let (rank, ranks) = (bench.endpoint.rank(), bench.endpoint.ranks());
    let first = rank / members * members;
    let own: Vec<u32> = (first..first + members).collect();
    let mut group = match first + members <= ranks {
        true => Some(bench.endpoint.group(&own)?),
        false => None,
    };
    let memory = bench.memory.clone();
    let mut buffer = Operand::new(&memory, Format::F32, vec![elements], Warmth::Warm, 0);
    bench.seconds(Clock::Wall, |call| {
        let Some(group) = &mut group else { return Ok(()) };
        let mut outcome = Ok(());
        memory.device().lend(buffer.view_mut(call), &mut |elements| {
            if let HostSliceMut::F32(buffer) = elements {
                outcome = group.collective(kind, algorithm, Reduction::Sum, buffer);
            }
        });
        Ok(outcome?)
    })
}

/// Seconds from the sending of a tensor of `elements` until its receiver has it: copied into the
/// message's buffer and out of it, as between stages. Ranks play in pairs; one without a partner, with
/// itself.
///
/// # Errors
/// If communication fails.
pub(super) fn message(elements: usize, bench: &mut Bench) -> Result<f64> {
    const TAG: u64 = 0;
    let (rank, ranks) = (bench.endpoint.rank(), bench.endpoint.ranks());
    let partner = if rank ^ 1 < ranks { rank ^ 1 } else { rank };
    let memory = bench.memory.clone();
    let mut tensor = memory.alloc_zeroed(Format::F32, elements);
    // The rank with the ball begins.
    let mut ball = (rank <= partner).then(|| memory.alloc_zeroed(Format::F32, elements));
    let own = std::sync::Arc::clone(&bench.endpoint);
    let there_and_back = bench.seconds(Clock::Wall, |_| {
        for _ in 0..2 {
            let throws = ball.is_some();
            if let Some(mut buffer) = ball.take() {
                memory.device().copy(tensor.view(), buffer.view_mut());
                own.send(partner, TAG, Parcel(buffer))?;
            }
            if !throws || partner == rank {
                let buffer = own.receive(partner, TAG)?.0;
                memory.device().copy(buffer.view(), tensor.view_mut());
                ball = Some(buffer);
            }
        }
        Ok(())
    })?;
    Ok(there_and_back / 2.0)
}
