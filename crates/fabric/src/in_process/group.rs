#![expect(unsafe_code, reason = "a buffer is lent to the members of the group")]

use std::{collections::HashMap, ptr, sync::Arc};

use shardloom_collectives::{Algorithm, CollectiveError, Kind, Reduction, plan};

use super::{
    reduce::Element,
    registry::Seat,
    rendezvous::Published,
    shared_memory::{LentBuffers, NoUnwinding},
    stepwise::{Messaging, Script},
    stock::Stock,
};
use crate::{Call, FabricError, counters::LiveCounters};

/// Scripts a group keeps. Callers mostly use a few sizes again and again; those that
/// do not must not fill the memory.
const CACHED_SCRIPTS: usize = 256;

/// A communicator: some ranks that carry out collectives together.
///
/// All members make the same calls in the same order; a call starts when all have made
/// it. [`Algorithm::Direct`] reduces straight in shared memory, in ascending order of
/// position; every other algorithm follows its step list over messages, in the list's
/// order. Both are deterministic, and an all-reduce leaves bitwise the same on every
/// member. What a kind needs before and leaves afterwards is said at [`Kind`], chunks
/// are those of [`chunk`](shardloom_collectives::chunk).
///
/// # Errors
///
/// Every collective may fail with [`FabricError::Timeout`], [`FabricError::PeerGone`]
/// or [`FabricError::Mismatch`], on all members alike, and the group is then of no
/// further use; or with [`FabricError::Collective`] where no such collective exists.
/// What the buffer holds after the former is not defined; after the latter, and after
/// a mismatch, it is untouched.
#[derive(Debug)]
pub struct Group {
    pub(super) seat: Seat,
    pub(super) counters: Arc<LiveCounters>,
    scripts: HashMap<(Kind, Algorithm, usize), Arc<Script>>,
    /// What there is to send messages in, by the position that they go to.
    stocked: Vec<Stock>,
}

impl Group {
    pub(super) fn new(seat: Seat, counters: Arc<LiveCounters>) -> Self {
        let stocked = vec![Stock::default(); seat.participant.members().len()];
        Self { seat, counters, scripts: HashMap::new(), stocked }
    }

    /// Ranks of the group, by position.
    pub fn members(&self) -> &[u32] {
        self.seat.participant.members()
    }

    /// This rank's position among the members.
    pub fn position(&self) -> u32 {
        self.seat.participant.position() as u32
    }

    /// Carries out a collective on the members' buffers, in place, by an algorithm. What of
    /// a buffer it leaves undefined holds partial results. `reduction` is passed over where
    /// `kind` reduces nothing; roots are positions in the group.
    ///
    /// # Errors
    ///
    /// See [`Group`].
    pub fn collective(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        reduction: Reduction,
        buffer: &mut [f32],
    ) -> Result<(), FabricError> {
        let reduction = match kind {
            Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. } => reduction,
            Kind::AllGather | Kind::AllToAll | Kind::Broadcast { .. } => Reduction::Sum,
        };
        if algorithm == Algorithm::Direct {
            self.exchange_directly(kind, reduction, buffer)
        } else {
            self.exchange_by_messages(kind, algorithm, reduction, buffer)
        }
    }

    /// Reduces a few numbers that control the run (losses, norms, votes) in double
    /// precision, always directly: in ascending order of position.
    ///
    /// # Errors
    ///
    /// See [`Group`].
    pub fn all_reduce_f64(
        &mut self,
        buffer: &mut [f64],
        reduction: Reduction,
    ) -> Result<(), FabricError> {
        self.exchange_directly(Kind::AllReduce, reduction, buffer)
    }

    /// Waits until all members have called it.
    ///
    /// # Errors
    ///
    /// See [`Group`].
    pub fn barrier(&mut self) -> Result<(), FabricError> {
        self.agree(Call::Barrier, ptr::null_mut())?;
        self.counters.count_collective(0);
        Ok(())
    }

    fn exchange_by_messages(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        reduction: Reduction,
        buffer: &mut [f32],
    ) -> Result<(), FabricError> {
        let call =
            Call::Exchange { kind, algorithm, reduction, elements: buffer.len(), element_bits: 32 };
        let script = self.script(kind, algorithm, buffer.len());
        self.agree(call, ptr::null_mut())?;
        let script = script?;
        let Seat { participant, channels, empties } = &self.seat;
        let messaging = Messaging { participant, channels, empties, call, reduction };
        script.follow(&messaging, &mut self.stocked, buffer)?;
        self.counters.count_collective((script.sent_elements * size_of::<f32>()) as u64);
        Ok(())
    }

    fn exchange_directly<T: Element>(
        &mut self,
        kind: Kind,
        reduction: Reduction,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let algorithm = Algorithm::Direct;
        let (elements, element_bits) = (buffer.len(), 8 * size_of::<T>() as u32);
        let call = Call::Exchange { kind, algorithm, reduction, elements, element_bits };
        let script = self.script(kind, algorithm, elements);
        let no_unwinding = NoUnwinding::from_here_on();
        self.agree(call, buffer.as_mut_ptr().cast())?;
        // Members that made equal calls fail alike, so none of them goes on.
        let script = script?;
        // SAFETY: all members made this very call, so each has published the start of
        // a `&mut [T]` of this length; `T` is known by its size. Each holds on to its
        // buffer without touching it until `part` returns, and cannot unwind before.
        // All come here, and do one share each.
        unsafe {
            LentBuffers::<T>::of(&self.seat.participant, elements).do_own_share(kind, reduction);
        }
        self.seat.participant.part();
        drop(no_unwinding);
        self.counters.count_collective((script.sent_elements * size_of::<T>()) as u64);
        Ok(())
    }

    /// Waits until all members have called, and checks that they called the same.
    /// On an error no member touches any other's buffer.
    pub(super) fn agree(&mut self, call: Call, buffer: *mut ()) -> Result<(), FabricError> {
        let participant = &mut self.seat.participant;
        participant.meet(Published { call, buffer })?;
        let members = participant.members();
        let first = participant.published(0).call;
        let differing = members.iter().enumerate().find_map(|(position, &rank)| {
            let other = participant.published(position).call;
            (other != first).then_some((rank, other))
        });
        match differing {
            None => Ok(()),
            Some((other_rank, other_call)) => Err(participant.break_off(FabricError::Mismatch {
                members: members.to_vec(),
                rank: members[0],
                call: first,
                other_rank,
                other_call,
            })),
        }
    }

    fn script(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        elements: usize,
    ) -> Result<Arc<Script>, CollectiveError> {
        let key = (kind, algorithm, elements);
        if let Some(script) = self.scripts.get(&key) {
            return Ok(Arc::clone(script));
        }
        let participant = &self.seat.participant;
        let list = plan(kind, algorithm, participant.members().len() as u32, elements)?;
        let script = match algorithm {
            Algorithm::Direct => Script::new(&list, participant.position()),
            _ => Script::for_messages(&list, participant.position()),
        };
        let script = Arc::new(script);
        if self.scripts.len() >= CACHED_SCRIPTS {
            self.scripts.clear();
        }
        self.scripts.insert(key, Arc::clone(&script));
        Ok(script)
    }
}
