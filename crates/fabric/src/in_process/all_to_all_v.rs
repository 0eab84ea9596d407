//! An all-to-all of unequal parts: members copy what is theirs out of each other's buffers.
//!
//! Between meeting and parting what members send is only read, by all, and what they receive is only
//! touched by themselves.
#![expect(unsafe_code, reason = "members read what others send where it lies")]

use std::{ptr, slice};

use super::{group::Group, shared_memory::NoUnwinding};
use crate::{Call, FabricError};

/// What a member lends to the others; each list of counts has one for each member.
struct Lent {
    send: *const f32,
    sends: *const usize,
    receives: *const usize,
}

impl Group {
    /// Sends to each member the next `sends` elements of `send`, and receives from each the next `receives`
    /// elements of `receive`, by position, the own part included.
    ///
    /// # Errors
    ///
    /// [`FabricError::Counts`] on all members alike if one sends another number of elements than is
    /// expected; otherwise see [`Group`]. `receive` is then untouched.
    ///
    /// # Panics
    ///
    /// If there are not as many counts as members, or buffers of other sizes than their sums.
    pub fn all_to_all_v(
        &mut self,
        send: &[f32],
        sends: &[usize],
        receive: &mut [f32],
        receives: &[usize],
    ) -> Result<(), FabricError> {
        let members = self.members().len();
        let own = self.position() as usize;
        for (counts, elements) in [(sends, send.len()), (receives, receive.len())] {
            assert!(
                counts.len() == members && counts.iter().sum::<usize>() == elements,
                "{elements} elements are exchanged by counts {counts:?} among {members} members"
            );
        }
        let lent = Lent { send: send.as_ptr(), sends: sends.as_ptr(), receives: receives.as_ptr() };
        let no_unwinding = NoUnwinding::from_here_on();
        self.agree(Call::AllToAllV, ptr::from_ref(&lent).cast_mut().cast())?;
        let participant = &mut self.seat.participant;
        let other = |position: usize| -> &Lent {
            // SAFETY: all members made this very call, so each has published a `Lent` of its own, which
            // stays where it is until all have parted, and which nobody writes.
            unsafe { &*participant.published(position).buffer.cast::<Lent>().cast_const() }
        };
        let counts = |counts: *const usize| -> &[usize] {
            // SAFETY: each member lends lists of as many counts as there are members, checked above, until
            // all have parted, and nobody writes them.
            unsafe { slice::from_raw_parts(counts, members) }
        };
        let pairs = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
        let differing = pairs
            .map(|(from, to)| (from, to, counts(other(from).sends)[to]))
            .map(|(from, to, sent)| (from, to, sent, counts(other(to).receives)[from]))
            .find(|(_, _, sent, expected)| sent != expected);
        if differing.is_none() {
            let mut rest = receive;
            for (from, &count) in receives.iter().enumerate() {
                let (part, tail) = rest.split_at_mut(count);
                rest = tail;
                let first: usize = counts(other(from).sends)[..own].iter().sum();
                // SAFETY: `from` lends as many elements as its counts sum up to, checked there, of which
                // these are the ones for this member; nobody writes them before all have parted.
                part.copy_from_slice(unsafe {
                    slice::from_raw_parts(other(from).send.add(first), count)
                });
            }
        }
        participant.part();
        drop(no_unwinding);
        if let Some((from, to, sent, expected)) = differing {
            let members = self.members().to_vec();
            let (from, to) = (members[from], members[to]);
            return Err(FabricError::Counts { members, from, to, sent, expected });
        }
        let elements = send.len() - sends[own];
        self.counters.count_collective((elements * size_of::<f32>()) as u64);
        Ok(())
    }
}
