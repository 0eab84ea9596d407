use std::{
    hint,
    sync::{
        Condvar, Mutex, PoisonError,
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
/// the ringer sees the waiter, and the mutex keeps the ring from falling between
/// that poll and the wait.
#[derive(Debug)]
pub(super) struct Doorbell {
    spins: u32,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    rung: Condvar,
}

impl Doorbell {
    /// A bell whose waiters spin only if every rank can have a core to itself.
    pub(super) fn new(cores_for_everyone: bool) -> Self {
        Self {
            spins: if cores_for_everyone { SPINS } else { 0 },
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            rung: Condvar::new(),
        }
    }

    /// Wakes the waiters to poll again. Call it holding no lock that a poll takes.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _awake = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.rung.notify_all();
        }
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
        let mut asleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = loop {
            if let Some(found) = poll() {
                break Some(found);
            }
            asleep = match deadline {
                None => self.rung.wait(asleep).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break None;
                    }
                    let woken = self.rung.wait_timeout(asleep, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        };
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }
}
