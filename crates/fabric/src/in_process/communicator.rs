#![expect(unsafe_code, reason = "a buffer is lent to the members of the group")]

use std::{fmt, ptr, sync::Arc};

use shardloom_collectives::{Algorithm, CollectiveError, Kind, Reduction};

use super::{
    messaging::Messaging,
    registry::Membership,
    rendezvous::Published,
    shared_memory::{LentBuffers, NoUnwinding},
};
use crate::{
    Call, Collective, FabricError, Format, Reduce,
    by_messages::{Counts, Script, Scripts, Stock},
    counters::LiveCounters,
    in_line,
    operation::disagreement,
    view::Element,
};

/// What carries out the collectives of one member of a group.
///
/// [`Algorithm::Direct`] reduces straight in shared memory, in ascending order of position; every other
/// algorithm follows its step list over messages, in the list's order.
pub(super) struct Communicator {
    membership: Membership,
    counters: Arc<LiveCounters>,
    arithmetic: Arc<dyn Reduce>,
    scripts: Scripts,
    /// What there is to send messages in, by the position that they go to.
    stocked: Vec<Stock>,
}

impl Communicator {
    pub(super) fn new(
        membership: Membership,
        counters: Arc<LiveCounters>,
        arithmetic: Arc<dyn Reduce>,
    ) -> Self {
        let stocked = vec![Stock::default(); membership.participant.members().len()];
        Self { membership, counters, arithmetic, scripts: Scripts::default(), stocked }
    }

    fn exchange_counted<T: Element>(
        &mut self,
        counts: Counts<'_>,
        format: Format,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        let call = Call::AllToAllV { format };
        self.agree(call, ptr::null_mut())?;
        let Membership { participant, channels, empties } = &self.membership;
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
        let call = Call::exchange(kind, algorithm, reduction, (buffer.len(), format));
        let script = self.script(kind, algorithm, buffer.len(), size_of::<T>());
        self.agree(call, ptr::null_mut())?;
        let script = script?;
        let Membership { participant, channels, empties } = &self.membership;
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
        let call = Call::exchange(kind, algorithm, reduction, (elements, format));
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
            let participant = &self.membership.participant;
            LentBuffers::<T>::of(participant, &*self.arithmetic, format, elements)
                .do_own_share(kind, reduction);
        }
        self.membership.participant.part();
        drop(no_unwinding);
        self.counters.count_collective((script.sent_elements * size_of::<T>()) as u64);
        Ok(())
    }

    /// Waits until all members have called, and checks that they called the same.
    /// On an error no member touches any other's buffer.
    fn agree(&mut self, call: Call, buffer: *mut ()) -> Result<(), FabricError> {
        let participant = &mut self.membership.participant;
        participant.meet(Published { call, buffer })?;
        let members = participant.members();
        let calls = (0..members.len()).map(|position| participant.published(position).call);
        match disagreement(members, calls) {
            None => Ok(()),
            Some(mismatch) => Err(participant.break_off(mismatch)),
        }
    }

    fn script(
        &mut self,
        kind: Kind,
        algorithm: Algorithm,
        elements: usize,
        element_bytes: usize,
    ) -> Result<Arc<Script>, CollectiveError> {
        let participant = &self.membership.participant;
        let (members, position) = (participant.members().len(), participant.position());
        let key = (kind, algorithm, elements, element_bytes);
        self.scripts.get(key, members, |list| match algorithm {
            Algorithm::Direct => Script::new(list, position),
            _ => Script::for_messages(list, position, element_bytes),
        })
    }
}

impl in_line::Communicator for Communicator {
    fn members(&self) -> &[u32] {
        self.membership.participant.members()
    }

    fn position(&self) -> usize {
        self.membership.participant.position()
    }

    fn carry_out<T: Element>(
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
        if algorithm == Algorithm::Direct {
            self.exchange_directly(kind, reduction, format, buffer)
        } else {
            self.exchange_by_messages(kind, algorithm, reduction, format, buffer)
        }
    }

    fn barrier(&mut self) -> Result<(), FabricError> {
        self.agree(Call::Barrier, ptr::null_mut())?;
        self.counters.count_collective(0);
        Ok(())
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("membership", &self.membership).finish_non_exhaustive()
    }
}
