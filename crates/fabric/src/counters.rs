use std::sync::atomic::{AtomicU64, Ordering};

/// What one rank has done so far. Only operations that succeeded count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Point-to-point messages sent.
    pub messages: u64,
    /// Bytes of those that went to other ranks.
    pub message_bytes: u64,
    /// The most bytes of this rank's messages that were there at once, from their being lent to be filled
    /// until their receivers dropped them.
    pub peak_under_way_bytes: u64,
    /// Buffers that pools were found to lack after they were made.
    pub late_buffers: u64,
    /// Collectives finished, barriers included.
    pub collectives: u64,
    /// Bytes sent to other members in collectives, by the step list of the algorithm
    /// used: what [`StepList::sent_elements`](shardloom_collectives::StepList) says,
    /// times the size of an element. Direct counts what its step list would send,
    /// though it works in shared memory.
    pub collective_bytes: u64,
}

/// The counters of a rank while it runs; shared by its endpoint, its groups and its messages.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    messages: AtomicU64,
    message_bytes: AtomicU64,
    under_way_bytes: AtomicU64,
    peak_under_way_bytes: AtomicU64,
    late_buffers: AtomicU64,
    collectives: AtomicU64,
    collective_bytes: AtomicU64,
}

impl LiveCounters {
    pub(crate) fn count_message(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.message_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_lent(&self, bytes: u64) {
        let now = self.under_way_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak_under_way_bytes.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn count_returned(&self, bytes: u64) {
        self.under_way_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_late_buffer(&self) {
        self.late_buffers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_collective(&self, bytes: u64) {
        self.collectives.fetch_add(1, Ordering::Relaxed);
        self.collective_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counters {
        Counters {
            messages: self.messages.load(Ordering::Relaxed),
            message_bytes: self.message_bytes.load(Ordering::Relaxed),
            peak_under_way_bytes: self.peak_under_way_bytes.load(Ordering::Relaxed),
            late_buffers: self.late_buffers.load(Ordering::Relaxed),
            collectives: self.collectives.load(Ordering::Relaxed),
            collective_bytes: self.collective_bytes.load(Ordering::Relaxed),
        }
    }
}
