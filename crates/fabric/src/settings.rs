use std::{num::NonZeroUsize, time::Duration};

/// How patient and how roomy an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Point-to-point messages that may be under way from one rank to another before
    /// a send blocks. Messages the receiver has set aside no longer count.
    pub channel_capacity: NonZeroUsize,
    /// How long an operation may wait for other ranks before it gives up.
    pub timeout: Duration,
}

impl Default for Settings {
    /// Four messages per channel; ten minutes, as PyTorch has for its NCCL groups.
    fn default() -> Self {
        const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        Self { channel_capacity: FOUR, timeout: Duration::from_secs(600) }
    }
}
