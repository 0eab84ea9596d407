use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use super::wakeup::Wakeup;

/// The ranks of one engine: where each waits, and which are gone.
#[derive(Debug)]
pub(super) struct Roster {
    /// How long an operation may wait for other ranks.
    timeout: Duration,
    entries: Box<[Entry]>,
    any_gone: AtomicBool,
}

/// On cache lines of its own: every poll reads one.
#[derive(Debug)]
#[repr(align(128))]
struct Entry {
    wakeup: Wakeup,
    gone: OnceLock<String>,
}

impl Roster {
    pub(super) fn new(ranks: u32, timeout: Duration) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let entry =
            |_| Entry { wakeup: Wakeup::new(ranks as usize <= cores), gone: OnceLock::new() };
        Self { timeout, entries: (0..ranks).map(entry).collect(), any_gone: AtomicBool::new(false) }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn ranks(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(super) fn wakeup(&self, rank: u32) -> &Wakeup {
        &self.entries[rank as usize].wakeup
    }

    /// Why a rank is gone, if it is. What it sent before is visible to who asks after.
    pub(super) fn gone(&self, rank: u32) -> Option<&str> {
        // Polls of many members come by here: one shared flag answers nearly all.
        if !self.any_gone.load(Ordering::Acquire) {
            return None;
        }
        self.entries[rank as usize].gone.get().map(String::as_str)
    }

    /// Reports a rank gone to everyone who waits; the first reason stays.
    pub(super) fn leave(&self, rank: u32, reason: String) {
        if self.entries[rank as usize].gone.set(reason).is_ok() {
            self.any_gone.store(true, Ordering::Release);
            for entry in &self.entries {
                entry.wakeup.wake();
            }
        }
    }
}
