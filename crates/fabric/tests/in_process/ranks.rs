use std::{num::NonZeroUsize, panic, thread, time::Duration};

use shardloom_fabric::{Endpoint, InProcess, Settings};

pub type Rank = Endpoint<Vec<f32>>;

/// Long enough that only a hang reaches it.
pub const PATIENT: Settings =
    Settings { channel_capacity: NonZeroUsize::new(2).unwrap(), timeout: Duration::from_secs(120) };

/// For tests in which time runs out.
pub const IMPATIENT: Settings =
    Settings { channel_capacity: PATIENT.channel_capacity, timeout: Duration::from_millis(5) };

/// Runs every rank on its thread; results by rank.
pub fn on_ranks<R: Send>(ranks: u32, settings: Settings, run: impl Fn(Rank) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads = InProcess::new(ranks, settings)
            .into_iter()
            .map(|endpoint| scope.spawn(|| run(endpoint)))
            .collect::<Vec<_>>();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
            .collect()
    })
}
