//! Communication between ranks.

use std::cmp::Ordering;

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Collective, Format, Pool};
use shardloom_kernels as kernels;

use crate::Result;
use crate::bench::{Bench, Clock, Part, Timed};
use crate::operand::{Operand, Warmth};

/// Seconds of a collective over `elements` among groups of `members` ranks, all groups at once; ranks
/// that no group is left for stand by.
///
/// # Errors
/// If communication fails.
pub(crate) fn collective(
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
    let buffer = Operand::new(&memory, kernels::Format::F32, vec![elements], Warmth::Warm, 0);
    let (mut idle, reduction) = (Some(buffer), Reduction::Sum);
    bench.seconds(Clock::Wall, |_, call| {
        let Some(group) = &mut group else { return Ok(()) };
        let buffer = idle.take().expect("what is lent comes back");
        let collective = Collective::Equal { kind, algorithm, reduction };
        let (after, outcome) = group.run(collective, Timed(Part::Copy(buffer, call)));
        if let Part::Copy(buffer, _) = after.0 {
            idle = Some(buffer);
        }
        Ok(outcome?)
    })
}

/// What a rank does with one of the two messages of a call.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Send,
    Receive,
    Both,
}

/// Seconds from the sending of a tensor of `elements` until its receiver has it: copied into the
/// message's buffer and out of it, as between stages. Ranks play in pairs; one without a partner, with
/// itself.
///
/// # Errors
/// If communication fails.
pub(crate) fn message(elements: usize, bench: &mut Bench) -> Result<f64> {
    const TAG: u64 = 0;
    let (rank, ranks) = (bench.endpoint.rank(), bench.endpoint.ranks());
    let partner = if rank ^ 1 < ranks { rank ^ 1 } else { rank };
    let memory = bench.memory.clone();
    let mut tensor = memory.alloc_zeroed(kernels::Format::F32, elements);
    // One on its way, and one to be filled meanwhile.
    let pool = Pool { to: partner, format: Format::F32, elements, ready: 2, most: 2 };
    let pool = bench.endpoint.pool(pool)?;
    let there_and_back = bench.seconds(Clock::Wall, |endpoint, _| {
        let there_and_back = match rank.cmp(&partner) {
            Ordering::Less => [Role::Send, Role::Receive],
            Ordering::Greater => [Role::Receive, Role::Send],
            Ordering::Equal => [Role::Both; 2],
        };
        for role in there_and_back {
            if role != Role::Receive {
                let mut message = endpoint.message(pool, TAG)?;
                memory.device().download(tensor.view(), message.view_mut());
                endpoint.send(message)?;
            }
            if role != Role::Send {
                let message = endpoint.receive(partner, TAG)?;
                memory.device().upload(message.view(), tensor.view_mut());
            }
        }
        Ok(())
    })?;
    Ok(there_and_back / 2.0)
}
