use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::connection::lock;

/// Where a rank sleeps until something has come for it.
#[derive(Debug, Default)]
pub(super) struct Signal {
    /// How often something has come.
    raised: Mutex<u64>,
    changed: Condvar,
    sleeping: AtomicU32,
}

impl Signal {
    /// How often something has come so far; read before it is looked for.
    pub fn heard(&self) -> u64 {
        *lock(&self.raised)
    }

    /// Something has come.
    pub fn raise(&self) {
        *lock(&self.raised) += 1;
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
    }

    /// Sleeps so long at most, and not where something has come since it was `heard` how often.
    pub fn sleep(&self, heard: u64, most: Duration) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let nothing_new = |raised: &mut u64| *raised == heard;
        let slept = self.changed.wait_timeout_while(lock(&self.raised), most, nothing_new);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_sleeps_through_what_comes_before_or_meanwhile() {
        let signal = Arc::new(Signal::default());
        let began = Instant::now();
        let heard = signal.heard();
        signal.raise();
        signal.sleep(heard, LONG);
        let heard = signal.heard();
        let raising = thread::spawn({
            let signal = Arc::clone(&signal);
            move || {
                while signal.sleeping.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                signal.raise();
            }
        });
        signal.sleep(heard, LONG);
        raising.join().expect("it raises");
        assert!(began.elapsed() < LONG);
        // Nothing comes.
        signal.sleep(signal.heard(), Duration::from_millis(1));
    }
}
