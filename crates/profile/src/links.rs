//! Communication between ranks.

use std::cmp::Ordering;

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Collective, Format, Group, Pool};
use shardloom_kernels as kernels;

use crate::Result;
use crate::bench::{Bench, Clock, Part, Timed};
use crate::operand::{Operand, Warmth};
use crate::sites::Pairs;

/// Seconds of a collective over `elements` among groups of `members` ranks of one machine, all groups at
/// once; ranks that no group is left for stand by.
///
/// # Errors
/// If communication fails.
pub(crate) fn collective(
    algorithm: Algorithm,
    kind: Kind,
    members: u32,
    elements: usize,
    bench: &mut Bench,
) -> Result<Option<f64>> {
    let rank = bench.endpoint.rank();
    let beside = bench.sites.beside(rank);
    let first = beside.start + (rank - beside.start) / members * members;
    let own: Vec<u32> = (first..first + members).collect();
    let mut group = match first + members <= beside.end {
        true => Some(bench.endpoint.group(&own)?),
        false => None,
    };
    let takes_part = group.is_some();
    let memory = bench.memory.clone();
    let buffer = Operand::new(&memory, kernels::Format::F32, vec![elements], Warmth::Warm, 0);
    let (mut idle, reduction) = (Some(buffer), Reduction::Sum);
    bench.seconds_of(takes_part, Clock::Wall, |_, call| {
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
/// message's buffer and out of it, as between stages. Ranks without a partner stand by; one without a neighbour on
/// its machine exchanges messages with itself.
///
/// All ranks of two machines at once send one way only, until all that was sent is there: pairs that are not in
/// step would else use both directions of what they share.
///
/// # Errors
/// If communication fails.
pub(crate) fn message(elements: usize, pairs: Pairs, bench: &mut Bench) -> Result<Option<f64>> {
    let rank = bench.endpoint.rank();
    let mut together = match pairs {
        Pairs::Within | Pairs::Alone => None,
        Pairs::Together => {
            let both = bench.sites.both(rank);
            both.contains(&rank).then(|| bench.endpoint.group(&both)).transpose()?
        }
    };
    let all = match bench.sites.partner(rank, pairs) {
        Some(partner) => exchange(elements, (partner, pairs), together.as_deref_mut(), bench),
        None => bench.seconds_of(false, Clock::Wall, |_, _| Ok(())),
    }?;
    Ok(all.map(|seconds| seconds / pairs.messages() as f64))
}

/// Seconds of all messages of so many elements that two ranks exchange at a time; of those of all ranks of two machines,
/// until they all have received.
fn exchange(
    elements: usize,
    (partner, pairs): (u32, Pairs),
    mut together: Option<&mut (dyn Group<Timed> + 'static)>,
    bench: &mut Bench,
) -> Result<Option<f64>> {
    const TAG: u64 = 0;
    let rank = bench.endpoint.rank();
    let memory = bench.memory.clone();
    let mut tensor = memory.alloc_zeroed(kernels::Format::F32, elements);
    // One on its way, and one to be filled meanwhile.
    let (format, priority) = (Format::F32, None);
    let pool = Pool { to: partner, format, elements, ready: 2, most: 2, priority };
    let pool = bench.endpoint.pool(pool)?;
    let there_and_back = match rank.cmp(&partner) {
        Ordering::Less => [Role::Send, Role::Receive],
        Ordering::Greater => [Role::Receive, Role::Send],
        Ordering::Equal => [Role::Both; 2],
    };
    let roles = &there_and_back[..pairs.messages()];
    let counts = bench.sites.tells(rank, partner);
    bench.seconds_of(counts, Clock::Wall, |endpoint, _| {
        for &role in roles {
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
        match &mut together {
            Some(group) => Ok(group.barrier()?),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use shardloom_fabric::InProcess;

    use super::*;
    use crate::Sites;
    use crate::bench;
    use crate::machine::Machine;
    use crate::tests::{hasty, machine};

    /// Of ranks on machines, the last of another kind: which of them are told a time of messages.
    fn told(machines: &[(&str, u32)], pairs: Pairs) -> Vec<bool> {
        let sites = Sites::of(machines).expect("in order");
        let told = Mutex::new(vec![false; machines.len()]);
        let machine = Machine { sites, ..machine() };
        bench::run(&InProcess, &machine, hasty().repeats, &mut |_, _| (), |bench| {
            let found = message(4, pairs, bench)?;
            assert!(found.is_none_or(|seconds| seconds > 0.0));
            let rank = bench.endpoint.rank() as usize;
            told.lock().expect("nobody panics")[rank] = found.is_some();
            Ok(())
        })
        .expect("it runs");
        told.into_inner().expect("nobody panics")
    }

    #[test]
    fn ranks_without_a_partner_and_kinds_without_a_pair_are_told_no_time() {
        let three = [("a", 0), ("b", 0), ("c", 1)];
        assert_eq!(told(&three, Pairs::Alone), [true, true, false]);
        assert_eq!(told(&three, Pairs::Together), [true, true, false]);
        // One without a neighbour exchanges messages with itself.
        assert_eq!(told(&three, Pairs::Within), [true; 3]);
    }

    /// There and back, or one way while all others send, too.
    #[test]
    fn a_time_is_of_one_message() {
        let messages = [Pairs::Within, Pairs::Alone, Pairs::Together].map(Pairs::messages);
        assert_eq!(messages, [2, 2, 1]);
    }
}
