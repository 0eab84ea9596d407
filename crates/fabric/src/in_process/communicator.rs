#![expect(unsafe_code, reason = "a buffer is lent to the members of the group")]

use std::{collections::HashMap, fmt, ptr, sync::Arc};

use shardloom_collectives::{Algorithm, CollectiveError, Kind, Reduction, plan};

use super::{
    counted::Counts,
    messaging::Messaging,
    registry::Seat,
    rendezvous::Published,
    shared_memory::{LentBuffers, NoUnwinding},
    stepwise::Script,
    stock::Stock,
};
use crate::{
    Call, Collective, FabricError, Format, Lent, Reduce, ViewMut, counters::LiveCounters,
    view::Element,
};

/// Scripts a group keeps. Callers mostly use a few sizes again and again; those that
/// do not must not fill the memory.
const CACHED_SCRIPTS: usize = 256;

/// What carries out the collectives of one member of a group.
///
/// [`Algorithm::Direct`] reduces straight in shared memory, in ascending order of position; every other
/// algorithm follows its step list over messages, in the list's order.
pub(super) struct Communicator {
    seat: Seat,
    counters: Arc<LiveCounters>,
    arithmetic: Arc<dyn Reduce>,
    /// By kind, algorithm, elements and the bytes of one.
    scripts: HashMap<(Kind, Algorithm, usize, usize), Arc<Script>>,
    /// What there is to send messages in, by the position that they go to.
    stocked: Vec<Stock>,
}

impl Communicator {
    pub(super) fn new(
        seat: Seat,
        counters: Arc<LiveCounters>,
        arithmetic: Arc<dyn Reduce>,
    ) -> Self {
        let stocked = vec![Stock::default(); seat.participant.members().len()];
        Self { seat, counters, arithmetic, scripts: HashMap::new(), stocked }
    }

    pub(super) fn members(&self) -> &[u32] {
        self.seat.participant.members()
    }

    pub(super) fn position(&self) -> u32 {
        self.seat.participant.position() as u32
    }

    /// Carries out a collective on the buffers that members lend, in place.
    pub(super) fn carry_out(
        &mut self,
        collective: Collective<'_>,
        lent: &mut impl Lent,
    ) -> Result<(), FabricError> {
        let mut outcome = None;
        lent.lend(&mut |buffer| outcome = Some(self.carry_out_in(collective, buffer)));
        outcome.expect("what is lent is worked on once")
    }

    fn carry_out_in(
        &mut self,
        collective: Collective<'_>,
        buffer: ViewMut<'_>,
    ) -> Result<(), FabricError> {
        match buffer {
            ViewMut::F32(buffer) => self.carry_out_on(collective, Format::F32, buffer),
            ViewMut::F64(buffer) => self.carry_out_on(collective, Format::F64, buffer),
            ViewMut::Bf16(buffer) => self.carry_out_on(collective, Format::Bf16, buffer),
            ViewMut::F16(buffer) => self.carry_out_on(collective, Format::F16, buffer),
            ViewMut::U32(buffer) => self.carry_out_on(collective, Format::U32, buffer),
            ViewMut::U8(buffer) => self.carry_out_on(collective, Format::U8, buffer),
        }
    }

    fn carry_out_on<T: Element>(
        &mut self,
        collective: Collective<'_>,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let (kind, algorithm, reduction) = match collective {
            Collective::Equal { kind, algorithm, reduction } => (kind, algorithm, reduction),
            Collective::AllToAllV { sent, received } => {
                return self.exchange_counted(Counts { sent, received }, format, buffer);
            }
        };
        let reduction = match kind {
            Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. } => reduction,
            Kind::AllGather | Kind::AllToAll | Kind::Broadcast { .. } => Reduction::Sum,
        };
        if algorithm == Algorithm::Direct {
            self.exchange_directly(kind, reduction, format, buffer)
        } else {
            self.exchange_by_messages(kind, algorithm, reduction, format, buffer)
        }
    }

    /// Waits until all members have called it.
    pub(super) fn barrier(&mut self) -> Result<(), FabricError> {
        self.agree(Call::Barrier, ptr::null_mut())?;
        self.counters.count_collective(0);
        Ok(())
    }

    fn exchange_counted<T: Element>(
        &mut self,
        counts: Counts<'_>,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let call = Call::AllToAllV { format };
        self.agree(call, ptr::null_mut())?;
        let Seat { participant, channels, empties } = &self.seat;
        let messaging = Messaging { participant, channels, empties, call };
        counts.exchange(&messaging, &mut self.stocked, buffer)?;
        let sent = counts.sent_to_others(participant.position());
        self.counters.count_collective((sent * size_of::<T>()) as u64);
        Ok(())
    }

    fn exchange_by_messages<T: Element>(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        reduction: Reduction,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let call = Call::Exchange { kind, algorithm, reduction, elements: buffer.len(), format };
        let script = self.script(kind, algorithm, buffer.len(), size_of::<T>());
        self.agree(call, ptr::null_mut())?;
        let script = script?;
        let Seat { participant, channels, empties } = &self.seat;
        let messaging = Messaging { participant, channels, empties, call };
        let reduction = (&*self.arithmetic, reduction);
        script.follow(&messaging, &mut self.stocked, reduction, (format, buffer))?;
        self.counters.count_collective((script.sent_elements * size_of::<T>()) as u64);
        Ok(())
    }

    fn exchange_directly<T: Element>(
        &mut self,
        kind: Kind,
        reduction: Reduction,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let (algorithm, elements) = (Algorithm::Direct, buffer.len());
        let call = Call::Exchange { kind, algorithm, reduction, elements, format };
        let script = self.script(kind, algorithm, elements, size_of::<T>());
        let no_unwinding = NoUnwinding::from_here_on();
        self.agree(call, buffer.as_mut_ptr().cast())?;
        // Members that made equal calls fail alike, so none of them goes on.
        let script = script?;
        // SAFETY: all members made this very call, so each has published the start of
        // a `&mut [T]` of this length, as the format says which type `T` is. Each holds on to its
        // buffer without touching it until `part` returns, and cannot unwind before.
        // All come here, and do one share each.
        unsafe {
            let participant = &self.seat.participant;
            LentBuffers::<T>::of(participant, &*self.arithmetic, format, elements)
                .do_own_share(kind, reduction);
        }
        self.seat.participant.part();
        drop(no_unwinding);
        self.counters.count_collective((script.sent_elements * size_of::<T>()) as u64);
        Ok(())
    }

    /// Waits until all members have called, and checks that they called the same.
    /// On an error no member touches any other's buffer.
    fn agree(&mut self, call: Call, buffer: *mut ()) -> Result<(), FabricError> {
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
        element_bytes: usize,
    ) -> Result<Arc<Script>, CollectiveError> {
        let key = (kind, algorithm, elements, element_bytes);
        if let Some(script) = self.scripts.get(&key) {
            return Ok(Arc::clone(script));
        }
        let participant = &self.seat.participant;
        let list = plan(kind, algorithm, participant.members().len() as u32, elements)?;
        let script = match algorithm {
            Algorithm::Direct => Script::new(&list, participant.position()),
            _ => Script::for_messages(&list, participant.position(), element_bytes),
        };
        let script = Arc::new(script);
        if self.scripts.len() >= CACHED_SCRIPTS {
            self.scripts.clear();
        }
        self.scripts.insert(key, Arc::clone(&script));
        Ok(script)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("seat", &self.seat).finish_non_exhaustive()
    }
}
