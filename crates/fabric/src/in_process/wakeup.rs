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
/// For how long a waiter yields: less than the time for which Linux gives a core to a thread that others wait for.
/// Where another program computes, each further yield would cost that time, while a waiter that sleeps is let in
/// soon after it was woken.
const YIELDING: Duration = Duration::from_millis(1);

/// Where the threads of one rank wait, whatever for.
///
/// Whoever changes something a rank may wait for wakes it afterwards. No wake-up
/// is lost: the waiter announces itself, then polls; the waker makes its change,
/// then looks for waiters. Of the two orders of these four, with a sequentially
/// consistent fence in the middle of each pair, either the poll sees the change or
/// the waker sees the waiter, and counts its wake-up. The waiter sleeps only if none
/// was counted since before that poll.
///
/// A poll runs without the lock, as it may itself wake others: two ranks that give up at once
/// and tell each other would otherwise each hold what the other needs.
#[derive(Debug)]
pub(super) struct Wakeup {
    spins: u32,
    parked: AtomicUsize,
    /// Wakes that found someone waiting.
    wakes: Mutex<u64>,
    woken: Condvar,
}

impl Wakeup {
    /// One whose waiters spin only if every rank can have a core to itself.
    pub(super) fn new(cores_for_everyone: bool) -> Self {
        Self {
            spins: if cores_for_everyone { SPINS } else { 0 },
            parked: AtomicUsize::new(0),
            wakes: Mutex::new(0),
            woken: Condvar::new(),
        }
    }

    /// Wakes the waiters to poll again.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) > 0 {
            *self.wakes() += 1;
            self.woken.notify_all();
        }
    }

    fn wakes(&self) -> MutexGuard<'_, u64> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
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
        let began = Instant::now();
        // A timeout beyond what the clock can express is as good as none.
        let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
        for _ in 0..YIELDS {
            if let Some(found) = poll() {
                return Some(found);
            }
            if began.elapsed() > YIELDING {
                break;
            }
            thread::yield_now();
        }
        self.park(deadline, poll)
    }

    fn park<T>(&self, deadline: Option<Instant>, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        self.parked.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut heard = *self.wakes();
        let found = loop {
            if let Some(found) = poll() {
                break Some(found);
            }
            match self.sleep(heard, deadline) {
                Some(wakes) => heard = wakes,
                None => break None,
            }
        };
        self.parked.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Sleeps until there are more wakes than `heard`, and how many there are; `None` if
    /// the deadline passes first.
    fn sleep(&self, heard: u64, deadline: Option<Instant>) -> Option<u64> {
        let mut wakes = self.wakes();
        while *wakes == heard {
            wakes = match deadline {
                None => self.woken.wait(wakes).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.woken.wait_timeout(wakes, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Some(*wakes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, mpsc};

    use super::*;

    #[test]
    fn two_parked_ranks_may_wake_each_other_from_their_polls_at_once() {
        let wakeups = Arc::new([Wakeup::new(false), Wakeup::new(false)]);
        let both_poll = Arc::new(Barrier::new(2));
        let (finished, finishes) = mpsc::channel();
        for own in [0, 1] {
            let (wakeups, both_poll) = (Arc::clone(&wakeups), Arc::clone(&both_poll));
            let finished = finished.clone();
            thread::spawn(move || {
                let found = wakeups[own].park(None, || {
                    both_poll.wait();
                    wakeups[1 - own].wake();
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
    fn a_wake_up_during_a_poll_leads_to_another_poll() {
        let wakeup = Wakeup::new(false);
        let mut polls = 0;
        let deadline = Instant::now().checked_add(Duration::from_secs(60));
        let found = wakeup.park(deadline, || {
            polls += 1;
            // What is found now came right after the poll had looked.
            wakeup.wake();
            (polls == 2).then_some(polls)
        });
        assert_eq!(found, Some(2));
    }

    #[test]
    fn a_wait_without_a_wake_up_ends_at_its_deadline() {
        let wakeup = Wakeup::new(false);
        assert_eq!(wakeup.wait(Some(Duration::ZERO), || None::<()>), None);
        assert_eq!(wakeup.parked.load(Ordering::Relaxed), 0);
    }
}
