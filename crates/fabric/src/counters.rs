use std::sync::atomic::{AtomicU64, Ordering};

/// What one rank has done so far. Only operations that succeeded count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Point-to-point messages sent.
    pub messages: u64,
    /// Bytes of those that went to other ranks ([`Payload::bytes`](crate::Payload)).
    pub message_bytes: u64,
    /// Collectives finished, barriers included.
    pub collectives: u64,
    /// Bytes sent to other members in collectives, by the step list of the algorithm
    /// used: what [`StepList::sent_elements`](shardloom_collectives::StepList) says,
    /// times the size of an element. Direct counts what its step list would send,
    /// though it works in shared memory.
    pub collective_bytes: u64,
}

/// The counters of a rank while it runs; shared by its endpoint and its groups.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    messages: AtomicU64,
    message_bytes: AtomicU64,
    collectives: AtomicU64,
    collective_bytes: AtomicU64,
}

impl LiveCounters {
    pub(crate) fn count_message(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.message_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_collective(&self, bytes: u64) {
        self.collectives.fetch_add(1, Ordering::Relaxed);
        self.collective_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counters {
        Counters {
            messages: self.messages.load(Ordering::Relaxed),
            message_bytes: self.message_bytes.load(Ordering::Relaxed),
            collectives: self.collectives.load(Ordering::Relaxed),
            collective_bytes: self.collective_bytes.load(Ordering::Relaxed),
        }
    }
}
