//! How the members of a group agree that a collective starts, and that it ended.
//!
//! The protocol and why it is sound are in the crate's README.
#![expect(unsafe_code, reason = "members read each other's slots between barriers")]

use std::{
    cell::UnsafeCell,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::roster::Roster;
use crate::{Call, FabricError, Operation};

/// Set in the count of arrivals once a barrier has been given up.
const ABANDONED: u64 = 1 << 63;

/// What the members of one group share.
struct Rendezvous {
    roster: Arc<Roster>,
    members: Box<[u32]>,
    /// Arrivals at all barriers so far, and [`ABANDONED`]. Barrier k (from 1) of n
    /// members is complete when n * k have arrived.
    arrivals: AtomicU64,
    /// Why the barrier was abandoned; locked while [`ABANDONED`] is being set.
    cause: Mutex<Option<FabricError>>,
    slots: Box<[Slot]>,
}

/// What one member shows the others; on cache lines of its own.
#[repr(align(128))]
struct Slot {
    /// Barriers the member has arrived at.
    barriers: AtomicU64,
    /// Written for odd and even meetings in turn: a member that is quick to enter the
    /// next meeting overwrites nothing that a slow one still reads.
    published: [UnsafeCell<Published>; 2],
}

/// A member's call and the buffer it lends to the collective.
#[derive(Clone, Copy)]
pub(super) struct Published {
    pub(super) call: Call,
    pub(super) buffer: *mut (),
}

// SAFETY: the pointers are only carried here; whoever follows one answers for it.
// Each `published` cell is written by one thread while no other reads it: see
// `Participant::meet` and `Participant::published`.
unsafe impl Sync for Rendezvous {}
// SAFETY: as above.
unsafe impl Send for Rendezvous {}

/// One member's side. There is exactly one per position, and it is not `Clone`.
pub(super) struct Participant {
    shared: Arc<Rendezvous>,
    position: usize,
    barriers: u64,
    meetings: u64,
}

/// The participants of a new group, in order of position.
pub(super) fn rendezvous(roster: &Arc<Roster>, members: &[u32]) -> Vec<Participant> {
    let nothing =
        || UnsafeCell::new(Published { call: Call::Barrier, buffer: std::ptr::null_mut() });
    let slot = |_| Slot { barriers: AtomicU64::new(0), published: [nothing(), nothing()] };
    let shared = Arc::new(Rendezvous {
        roster: Arc::clone(roster),
        members: members.into(),
        arrivals: AtomicU64::new(0),
        cause: Mutex::new(None),
        slots: (0..members.len()).map(slot).collect(),
    });
    (0..members.len())
        .map(|position| Participant {
            shared: Arc::clone(&shared),
            position,
            barriers: 0,
            meetings: 0,
        })
        .collect()
}

impl Participant {
    pub(super) fn roster(&self) -> &Roster {
        &self.shared.roster
    }

    pub(super) fn members(&self) -> &[u32] {
        &self.shared.members
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn rank(&self) -> u32 {
        self.shared.members[self.position]
    }

    /// Publishes and waits for all members to do so.
    ///
    /// After an error this meeting never completes: nobody has seen, or will see, the
    /// buffer published for it.
    pub(super) fn meet(&mut self, published: Published) -> Result<(), FabricError> {
        if let Some(cause) = self.broken() {
            return Err(cause);
        }
        self.meetings += 1;
        let cell = &self.shared.slots[self.position].published[(self.meetings % 2) as usize];
        // SAFETY: only this participant writes this cell. Others read it in the
        // meeting before last, and did so before they arrived at the last one; that
        // one is complete, else the group were broken. They read it again only once
        // this meeting is complete, which needs the arrival below.
        unsafe { *cell.get() = published };
        if !self.arrive() {
            return Err(self.cause());
        }
        let roster = self.roster();
        let met =
            roster.wakeup(self.rank()).wait(Some(roster.timeout()), || match self.arrived() {
                Arrival::Complete => Some(Ok(())),
                Arrival::Abandoned => Some(Err(self.cause())),
                Arrival::Pending => {
                    let gone = self.gone_before_arriving(published.call)?;
                    Some(self.abandon(self.barriers, gone))
                }
            });
        met.unwrap_or_else(|| {
            let waiting_for = self.absent().collect();
            self.abandon(self.barriers, self.timeout(published.call, waiting_for))
        })
    }

    /// What a member published for the meeting this participant is in.
    pub(super) fn published(&self, position: usize) -> Published {
        let cell = &self.shared.slots[position].published[(self.meetings % 2) as usize];
        // SAFETY: `meet` returned, so this meeting is complete and the write happened
        // before it. The member writes this cell again only for the meeting after
        // next, which it can enter only after this one has arrived at the next.
        unsafe { *cell.get() }
    }

    /// Waits for all members to be done with each other's buffers.
    ///
    /// It has no timeout and no error: every member that met comes here after a
    /// bounded amount of work, and a buffer must not be given back before.
    pub(super) fn part(&mut self) {
        let arrived = self.arrive();
        assert!(arrived, "a meeting that all members entered is not abandoned");
        self.roster().wakeup(self.rank()).wait(None, || match self.arrived() {
            Arrival::Complete => Some(()),
            _ => None,
        });
    }

    /// Breaks the group from within a meeting; its next barrier will not complete.
    /// Returns the error that did: this one, or an earlier one.
    pub(super) fn break_off(&self, error: FabricError) -> FabricError {
        match self.abandon(self.barriers + 1, error) {
            Err(cause) => cause,
            Ok(()) => unreachable!("this member has not arrived at the next barrier"),
        }
    }

    /// Why the group is broken, if it is.
    pub(super) fn broken(&self) -> Option<FabricError> {
        let arrivals = self.shared.arrivals.load(Ordering::Acquire);
        (arrivals & ABANDONED != 0).then(|| self.cause())
    }

    pub(super) fn timeout(&self, call: Call, waiting_for: Vec<u32>) -> FabricError {
        FabricError::Timeout {
            rank: self.rank(),
            operation: self.operation(call),
            waiting_for,
            after: self.roster().timeout(),
        }
    }

    pub(super) fn peer_gone(&self, call: Call, peer: u32, reason: &str) -> FabricError {
        FabricError::PeerGone {
            rank: self.rank(),
            operation: self.operation(call),
            peer,
            reason: reason.to_owned(),
        }
    }

    fn operation(&self, call: Call) -> Operation {
        Operation::Collective { call, members: self.members().to_vec() }
    }

    /// Arrivals that complete the barrier of this number.
    fn complete(&self, barrier: u64) -> u64 {
        self.shared.members.len() as u64 * barrier
    }

    /// Arrives at the next barrier, unless the group was abandoned. The last one to
    /// arrive wakes the others.
    fn arrive(&mut self) -> bool {
        let shared = &*self.shared;
        let arrivals = shared.arrivals.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            (seen & ABANDONED == 0).then_some(seen + 1)
        });
        let Ok(before) = arrivals else { return false };
        self.barriers += 1;
        shared.slots[self.position].barriers.store(self.barriers, Ordering::Release);
        if before + 1 == self.complete(self.barriers) {
            self.ring_others();
        }
        true
    }

    fn arrived(&self) -> Arrival {
        let seen = self.shared.arrivals.load(Ordering::Acquire);
        // Complete comes first: a later barrier may be abandoned already.
        if seen & !ABANDONED >= self.complete(self.barriers) {
            Arrival::Complete
        } else if seen & ABANDONED != 0 {
            Arrival::Abandoned
        } else {
            Arrival::Pending
        }
    }

    /// Gives a barrier up for everyone, unless it is complete.
    fn abandon(&self, barrier: u64, error: FabricError) -> Result<(), FabricError> {
        let shared = &*self.shared;
        let mut cause = shared.cause.lock().unwrap_or_else(PoisonError::into_inner);
        let complete = self.complete(barrier);
        let abandoned = shared.arrivals.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
            (seen < complete).then_some(seen | ABANDONED)
        });
        match abandoned {
            Ok(_) => {
                *cause = Some(error.clone());
                drop(cause);
                self.ring_others();
                Err(error)
            }
            Err(seen) if seen & !ABANDONED >= complete => Ok(()),
            Err(_) => Err(cause.clone().expect("the cause is set with the flag")),
        }
    }

    fn cause(&self) -> FabricError {
        let cause = self.shared.cause.lock().unwrap_or_else(PoisonError::into_inner);
        cause.clone().expect("the cause is set with the flag")
    }

    fn ring_others(&self) {
        for &member in self.members().iter().filter(|&&member| member != self.rank()) {
            self.roster().wakeup(member).wake();
        }
    }

    /// Members that have not arrived at this participant's barrier.
    fn absent(&self) -> impl Iterator<Item = u32> {
        let slots = self.shared.slots.iter().zip(self.members());
        slots.filter_map(|(slot, &rank)| {
            (slot.barriers.load(Ordering::Acquire) < self.barriers).then_some(rank)
        })
    }

    /// The error of waiting for a member that will not come, or on behalf of a rank that has left itself.
    /// A member may have come and left since `arrived` was asked; `abandon` finds the barrier complete then.
    fn gone_before_arriving(&self, call: Call) -> Option<FabricError> {
        let roster = self.roster();
        let mut needed = self.absent().chain([self.rank()]);
        needed.find_map(|peer| Some(self.peer_gone(call, peer, roster.gone(peer)?)))
    }
}

/// How a barrier looks to a member that has arrived.
enum Arrival {
    Complete,
    Abandoned,
    Pending,
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant")
            .field("members", &self.members())
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Numbers from 0 to below `bound`, from the middle of a linear congruence.
    fn drawn(state: &mut u64, bound: usize) -> usize {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % bound
    }

    /// Members come to barriers and give them up in any order. A barrier is complete once all have come to it, and
    /// stays so; from the first that is given up before, nobody comes to any, and all hear of that one's reason.
    #[test]
    fn barriers_are_complete_once_all_came_and_given_up_for_all_before_that() {
        let (mut completed, mut too_late) = (0, 0);
        for (seed, members) in (0..60).flat_map(|seed| [1, 2, 3, 4].map(|members| (seed, members)))
        {
            let state = &mut (1000 * seed + members as u64);
            let ranks: Vec<u32> = (10..10 + members as u32).collect();
            let roster = Arc::new(Roster::new(20, Duration::from_secs(120)));
            let mut all = rendezvous(&roster, &ranks);
            // How often each has come, and why they come no more.
            let mut came = vec![0_u64; members];
            let mut reason: Option<FabricError> = None;
            for step in 0..40 {
                let at = drawn(state, members);
                let all_came = came.iter().copied().min().expect("a member");
                let waits = came[at] > all_came;
                if drawn(state, 12) > 0 {
                    if waits {
                        continue;
                    }
                    assert_eq!(all[at].arrive(), reason.is_none(), "{seed}, step {step}");
                    came[at] += u64::from(reason.is_none());
                } else {
                    // It waits for those that are missing, or has not come to the next one.
                    let own = all[at].timeout(Call::Barrier, vec![step]);
                    let first = reason.get_or_insert(own.clone()).clone();
                    let told = match waits {
                        true => all[at].abandon(came[at], own).expect_err("some are missing"),
                        false => all[at].break_off(own),
                    };
                    assert_eq!(told, first, "{seed}, step {step}");
                    // What all came to before is not given up any more.
                    if came[at] > 0 && !waits {
                        let later = all[at].timeout(Call::Barrier, vec![100]);
                        assert_eq!(all[at].abandon(came[at], later), Ok(()), "{seed}, step {step}");
                        too_late += 1;
                    }
                }
                let all_came = came.iter().copied().min().expect("a member");
                completed = all_came.max(completed);
                for (member, &own) in all.iter().zip(&came) {
                    assert_eq!(member.broken(), reason, "{seed}, step {step}");
                    let found = match member.arrived() {
                        Arrival::Complete => "complete",
                        Arrival::Abandoned => "abandoned",
                        Arrival::Pending => "pending",
                    };
                    let expected = match (own <= all_came, &reason) {
                        (true, _) => "complete",
                        (false, Some(_)) => "abandoned",
                        (false, None) => "pending",
                    };
                    assert_eq!(found, expected, "{seed}, step {step}");
                    let missing = came.iter().zip(&ranks).filter(|(it, _)| **it < own);
                    let missing: Vec<u32> = missing.map(|(_, rank)| *rank).collect();
                    assert_eq!(member.absent().collect::<Vec<_>>(), missing, "{seed}, step {step}");
                }
            }
        }
        assert!(completed > 5 && too_late > 20, "{completed} in a row, {too_late} too late");
    }
}
