use std::{
    hint,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

/// Polls before yielding, where every rank may have a core: some tens of microseconds.
const SPINS: u32 = 2000;
/// Polls that give the core to another thread before parking.
const YIELDS: u32 = 50;

/// Where the threads of one rank wait, whatever for.
///
/// Whoever changes something a rank may wait for rings its bell afterwards. No ring
/// is lost: the waiter announces itself, then polls; the ringer makes its change,
/// then looks for waiters. Of the two orders of these four, with a sequentially
/// consistent fence in the middle of each pair, either the poll sees the change or
/// the ringer sees the waiter, and counts its ring. The waiter sleeps only if no ring
/// was counted since before that poll.
///
/// A poll runs without the lock, as it may itself ring: two ranks that give up at once
/// and tell each other would otherwise each hold what the other needs.
#[derive(Debug)]
pub(super) struct Doorbell {
    spins: u32,
    sleepers: AtomicUsize,
    /// Rings that found someone waiting.
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Doorbell {
    /// A bell whose waiters spin only if every rank can have a core to itself.
    pub(super) fn new(cores_for_everyone: bool) -> Self {
        Self {
            spins: if cores_for_everyone { SPINS } else { 0 },
            sleepers: AtomicUsize::new(0),
            rings: Mutex::new(0),
            rung: Condvar::new(),
        }
    }

    /// Wakes the waiters to poll again.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            *self.rings() += 1;
            self.rung.notify_all();
        }
    }

    fn rings(&self) -> MutexGuard<'_, u64> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls until there is something, or `timeout` has passed since the wait became
    /// a long one; `None` waits for ever. Spins, then yields, then parks.
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        for _ in 0..self.spins {
            if let Some(found) = poll() {
                return Some(found);
            }
            hint::spin_loop();
        }
        // A timeout beyond what the clock can express is as good as none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        for _ in 0..YIELDS {
            if let Some(found) = poll() {
                return Some(found);
            }
            thread::yield_now();
        }
        self.park(deadline, poll)
    }

    fn park<T>(&self, deadline: Option<Instant>, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut heard = *self.rings();
        let found = loop {
            if let Some(found) = poll() {
                break Some(found);
            }
            match self.sleep(heard, deadline) {
                Some(rings) => heard = rings,
                None => break None,
            }
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Sleeps until there are more rings than `heard`, and how many there are; `None` if
    /// the deadline passes first.
    fn sleep(&self, heard: u64, deadline: Option<Instant>) -> Option<u64> {
        let mut rings = self.rings();
        while *rings == heard {
            rings = match deadline {
                None => self.rung.wait(rings).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.rung.wait_timeout(rings, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Some(*rings)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, mpsc};

    use super::*;

    #[test]
    fn two_parked_ranks_may_ring_each_other_from_their_polls_at_once() {
        let bells = Arc::new([Doorbell::new(false), Doorbell::new(false)]);
        let both_poll = Arc::new(Barrier::new(2));
        let (finished, finishes) = mpsc::channel();
        for own in [0, 1] {
            let (bells, both_poll) = (Arc::clone(&bells), Arc::clone(&both_poll));
            let finished = finished.clone();
            thread::spawn(move || {
                let found = bells[own].park(None, || {
                    both_poll.wait();
                    bells[1 - own].ring();
                    Some(own)
                });
                finished.send(found)
            });
        }
        // Far more than it takes: only a deadlock makes it pass.
        let patience = Duration::from_secs(60);
        for _ in 0..2 {
            assert!(finishes.recv_timeout(patience).expect("neither holds the other up").is_some());
        }
    }

    #[test]
    fn a_ring_during_a_poll_leads_to_another_poll() {
        let bell = Doorbell::new(false);
        let mut polls = 0;
        let deadline = Instant::now().checked_add(Duration::from_secs(60));
        let found = bell.park(deadline, || {
            polls += 1;
            // What is found now came right after the poll had looked.
            bell.ring();
            (polls == 2).then_some(polls)
        });
        assert_eq!(found, Some(2));
    }

    #[test]
    fn a_wait_without_a_ring_ends_at_its_deadline() {
        let bell = Doorbell::new(false);
        assert_eq!(bell.wait(Some(Duration::ZERO), || None::<()>), None);
        assert_eq!(bell.sleepers.load(Ordering::Relaxed), 0);
    }
}
