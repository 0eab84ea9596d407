//! Ranks that time the same calls at the same moments.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use shardloom_collectives::Reduction;
use shardloom_fabric::{Endpoint, Group, InProcess, Payload, Settings};
use shardloom_kernels::{Buffer, Memory, processor};

use crate::{Error, Result};

/// How often to repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Repeats {
    /// Batches of calls to be timed.
    pub batches: usize,
    /// What a batch takes at least, unless `most` calls take less.
    pub batch_seconds: f64,
    /// The most calls of a batch.
    pub most: usize,
}

/// What time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// What the thread spent on a processor: of what a rank does alone, also when other work takes
    /// the processor away in between.
    Processor,
    /// All time: of what ranks do together, which waiting is part of.
    Wall,
}

enum Start {
    Processor(ThreadTime),
    Wall(Instant),
}

impl Clock {
    fn start(self) -> Start {
        match self {
            Clock::Processor => Start::Processor(ThreadTime::now()),
            Clock::Wall => Start::Wall(Instant::now()),
        }
    }
}

impl Start {
    fn seconds(&self) -> f64 {
        match self {
            Start::Processor(start) => start.elapsed(),
            Start::Wall(start) => start.elapsed(),
        }
        .as_secs_f64()
    }
}

/// A message.
pub(super) struct Parcel(pub Buffer);

impl Payload for Parcel {
    fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }
}

/// One rank's place among those that measure together.
pub(super) struct Bench {
    pub endpoint: Arc<Endpoint<Parcel>>,
    pub memory: Memory,
    repeats: Repeats,
    everyone: Group,
    progress: Option<Sender<(String, f64)>>,
}

impl Bench {
    /// Says what is being measured, and which share of all is done.
    pub fn announce(&self, what: &str, done: f64) {
        if let Some(progress) = &self.progress {
            // Whoever listens may stop listening.
            let _ = progress.send((what.to_owned(), done));
        }
    }

    /// Mean over all ranks of the seconds of one call, all ranks calling at once and equally often;
    /// `call` is told how many calls went before.
    ///
    /// # Errors
    /// Those of `call` and of communication.
    pub fn seconds(
        &mut self,
        clock: Clock,
        mut call: impl FnMut(usize) -> Result<()>,
    ) -> Result<f64> {
        // The first call pays for memory that was never touched, and tells nothing.
        call(0)?;
        self.everyone.barrier()?;
        let start = clock.start();
        call(1)?;
        let mut once = [start.seconds()];
        self.everyone.all_reduce_f64(&mut once, Reduction::Max)?;
        let calls = (self.repeats.batch_seconds / once[0].max(1e-9)).ceil() as usize;
        let calls = calls.clamp(1, self.repeats.most);
        let mut index = 2;
        let mut batches = Vec::with_capacity(self.repeats.batches);
        for _ in 0..self.repeats.batches {
            self.everyone.barrier()?;
            let start = clock.start();
            for _ in 0..calls {
                call(index)?;
                index += 1;
            }
            batches.push(start.seconds() / calls as f64);
        }
        batches.sort_by(f64::total_cmp);
        let mut mean = [batches[batches.len() / 4] / self.everyone.members().len() as f64];
        self.everyone.all_reduce_f64(&mut mean, Reduction::Sum)?;
        // A clock too coarse for a call still leaves it some time.
        Ok(mean[0].max(1e-12))
    }
}

/// Runs `work` on `ranks` threads, each on a core of its own where there are enough; what it came to
/// on the first.
///
/// # Errors
/// The first rank's error, if one fails; or if the system has no room for so many threads.
pub(super) fn run<T: Send>(
    ranks: u32,
    repeats: Repeats,
    progress: &mut dyn FnMut(&str, f64),
    work: impl Fn(&mut Bench) -> Result<T> + Sync,
) -> Result<T> {
    Error::unless_threads(ranks)?;
    const CHANNEL: NonZeroUsize = NonZeroUsize::new(4).unwrap();
    let settings = Settings { channel_capacity: CHANNEL, timeout: Duration::from_secs(60) };
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let all: Vec<u32> = (0..ranks).collect();
    let (sender, reports) = channel();
    std::thread::scope(|scope| {
        let (work, all) = (&work, &all);
        let mut sender = Some(sender);
        let mut threads = vec![];
        for endpoint in InProcess::<Parcel>::new(ranks, settings) {
            let rank = endpoint.rank();
            let core = cores.get(rank as usize).copied().filter(|_| cores.len() >= ranks as usize);
            let progress = sender.take();
            let builder = Builder::new().name(format!("rank {rank}"));
            let thread = builder.spawn_scoped(scope, move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                let everyone = endpoint.group(all)?;
                let memory = Memory::new(processor());
                let endpoint = Arc::new(endpoint);
                let mut bench = Bench { endpoint, memory, repeats, everyone, progress };
                let outcome = work(&mut bench);
                if let Err(error) = &outcome {
                    bench.endpoint.fail(error);
                }
                outcome
            });
            // Ranks that have started end because this one is gone.
            threads.push(thread.map_err(|error| Error::Thread { rank, ranks, error })?);
        }
        // Ends when the first rank drops its sender.
        for (what, done) in reports {
            progress(&what, done);
        }
        let mut first = None;
        for (rank, thread) in (0u32..).zip(threads) {
            let outcome = thread.join().unwrap_or_else(|_| {
                let reason = "a measured kernel panicked".to_owned();
                Err(Error::RankPanicked { rank, reason })
            });
            let result = outcome.map_err(|error| Error::Rank { rank, error: Box::new(error) })?;
            first.get_or_insert(result);
        }
        Ok(first.expect("there is at least one rank"))
    })
}
