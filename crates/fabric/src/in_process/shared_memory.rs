//! Direct collectives: members work in each other's buffers, without messages.
//!
//! Who may touch which range between two barriers, and why no two members touch the
//! same one, is in the crate's README.
#![expect(unsafe_code, reason = "members work in buffers lent to the group as pointers")]

use std::{marker::PhantomData, ops::Range, process, slice, thread};

use shardloom_collectives::{Kind, Reduction, chunk};

use super::rendezvous::Participant;
use crate::{Format, Reduce, view::Element};

/// Elements reduced at a time: the running block stays in the first-level cache while
/// it goes over all members' buffers.
const BLOCK: usize = 1024;

/// The buffers of all members of one meeting, in order of position.
pub(super) struct LentBuffers<'a, T> {
    participant: &'a Participant,
    arithmetic: &'a dyn Reduce,
    format: Format,
    elements: usize,
    own: usize,
    of: PhantomData<*mut T>,
}

impl<'a, T: Element> LentBuffers<'a, T> {
    /// The buffers published for the meeting that `participant` is in.
    ///
    /// # Safety
    ///
    /// Every member published, for this meeting, a pointer from a `&mut [T]` of
    /// `elements` elements that it lends, untouched, until it has parted.
    pub(super) unsafe fn of(
        participant: &'a Participant,
        arithmetic: &'a dyn Reduce,
        format: Format,
        elements: usize,
    ) -> Self {
        let own = participant.position();
        Self { participant, arithmetic, format, elements, own, of: PhantomData }
    }

    /// Does this member's share of a collective.
    ///
    /// # Safety
    ///
    /// Every member calls this once between meeting and parting, with the same
    /// arguments; nothing else touches the buffers meanwhile.
    pub(super) unsafe fn do_own_share(&self, kind: Kind, reduction: Reduction) {
        // SAFETY: passed on. One member only works on each range (README, "Who
        // touches what"); for each kind the ranges are:
        unsafe {
            match kind {
                // The own chunk of all buffers.
                Kind::AllReduce => self.reduce_own_chunk(reduction, 0..self.members()),
                // The own chunk of all buffers, written in the own one only.
                Kind::ReduceScatter => self.reduce_own_chunk(reduction, self.own..self.own + 1),
                // The own chunk of all buffers, written in the root's only.
                Kind::Reduce { root } => {
                    let root = root.0 as usize;
                    self.reduce_own_chunk(reduction, root..root + 1);
                }
                // Reads chunk i of buffer i, which nobody writes; writes the rest of
                // the own buffer, which nobody else touches.
                Kind::AllGather => {
                    for from in self.others() {
                        self.copy(from, self.chunk(from));
                    }
                }
                // Reads the root's buffer, which nobody writes; writes the own one,
                // which nobody else touches.
                Kind::Broadcast { root } => {
                    let root = root.0 as usize;
                    if root != self.own {
                        self.copy(root, 0..self.elements);
                    }
                }
                // Of the two chunks that two members exchange, the lower member
                // swaps the first half, the other one the second.
                Kind::AllToAll => self.exchange(),
            }
        }
    }

    fn members(&self) -> usize {
        self.participant.members().len()
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.members()).filter(|&member| member != self.own)
    }

    fn chunk(&self, index: usize) -> Range<usize> {
        chunk(self.elements, self.members(), index)
    }

    /// Reduces the own chunk over all members in ascending order, block by block, and
    /// writes each block to the targets while the lines it goes to are still cached.
    ///
    /// # Safety
    ///
    /// Until parting, this member alone writes the own chunk of any buffer, and reads
    /// it of buffers that it writes.
    unsafe fn reduce_own_chunk(&self, reduction: Reduction, targets: Range<usize>) {
        let mut block = [T::default(); BLOCK];
        let own = self.chunk(self.own);
        for first in own.clone().step_by(BLOCK) {
            let range = first..own.end.min(first + BLOCK);
            let block = &mut block[..range.len()];
            // SAFETY: nobody else writes this range, by the contract above.
            block.copy_from_slice(unsafe { self.read(0, range.clone()) });
            for member in 1..self.members() {
                // SAFETY: as above.
                let part = unsafe { self.read(member, range.clone()) };
                let (into, part) = (T::view_mut(self.format, block), T::view(self.format, part));
                self.arithmetic.reduce(reduction, into, part);
            }
            for target in targets.clone() {
                // SAFETY: nobody else touches this range, by the contract above, and
                // the slices read from it are no longer in use.
                unsafe { self.write(target, range.clone()) }.copy_from_slice(block);
            }
        }
    }

    /// Copies a range of another member's buffer to the same place of the own one.
    ///
    /// # Safety
    ///
    /// Until parting, nobody writes the range in the other buffer and nobody else
    /// touches it in the own one; `from` is not the own position.
    unsafe fn copy(&self, from: usize, range: Range<usize>) {
        // SAFETY: the contract above; the two buffers are two live `&mut`, so disjoint.
        let (source, target) =
            unsafe { (self.read(from, range.clone()), self.write(self.own, range)) };
        target.copy_from_slice(source);
    }

    /// Swaps this member's half of each pair of chunks.
    ///
    /// # Safety
    ///
    /// Every member does the same, and nobody does anything else with the buffers.
    unsafe fn exchange(&self) {
        for other in self.others() {
            let half = chunk(self.chunk(other).len(), 2, usize::from(self.own > other));
            let half_of = |index: usize| {
                let start = self.chunk(index).start;
                start + half.start..start + half.end
            };
            // SAFETY: chunk `other` of the own buffer and chunk `own` of the other one
            // are touched by these two members only, and each has its own half; the
            // two buffers are disjoint.
            let (mine, theirs) = unsafe {
                (self.write(self.own, half_of(other)), self.write(other, half_of(self.own)))
            };
            mine.swap_with_slice(theirs);
        }
    }

    /// Where a member's buffer begins.
    fn start(&self, member: usize) -> *mut T {
        self.participant.published(member).buffer.cast()
    }

    /// # Safety
    ///
    /// Nobody writes this range of this member's buffer while the slice is in use.
    unsafe fn read(&self, member: usize, range: Range<usize>) -> &[T] {
        debug_assert!(range.start <= range.end && range.end <= self.elements);
        // SAFETY: within the lent buffer; the rest is the caller's promise.
        unsafe { slice::from_raw_parts(self.start(member).add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// Nobody else touches this range of this member's buffer while the slice is in
    /// use, and no other slice of it is.
    #[expect(clippy::mut_from_ref, reason = "the buffers are lent, not owned")]
    unsafe fn write(&self, member: usize, range: Range<usize>) -> &mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.elements);
        // SAFETY: within the lent buffer; the rest is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.start(member).add(range.start), range.len()) }
    }
}

/// Ends the process if a member would unwind, and so free a buffer, while others may
/// still work in it. Nothing between publishing and parting panics; this makes that a
/// matter of liveness, not of memory safety.
pub(super) struct NoUnwinding {
    already_unwinding: bool,
}

impl NoUnwinding {
    pub(super) fn from_here_on() -> Self {
        // A collective in a destructor that runs during a panic is in order.
        Self { already_unwinding: thread::panicking() }
    }
}

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        if thread::panicking() && !self.already_unwinding {
            process::abort();
        }
    }
}
