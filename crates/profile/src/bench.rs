//! Ranks that time the same calls at the same moments.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Collective, Endpoint, Engine, Group, Lent, MOST_RANKS, Settings, ViewMut};
use shardloom_kernels::{Arithmetic, Memory, processor};

use crate::machine::Machine;
use crate::operand::{Operand, Rooms, Warmth};
use crate::{ProfileError, Result, Sites};

/// How often to repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Repeats {
    /// Batches of calls to be timed.
    pub batches: usize,
    /// What a batch takes at least, unless `most` calls take less.
    pub batch_seconds: f64,
    /// The most calls of a batch.
    pub most: usize,
    /// What copies of a cold tensor fill.
    pub cold_bytes: usize,
}

/// What time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
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

/// What ranks that measure lend to collectives.
pub struct Timed(pub(crate) Part);

pub(super) enum Part {
    /// The copy of a tensor for a call.
    Copy(Operand, usize),
    /// A number of seconds.
    Seconds(f64),
}

impl Lent for Timed {
    fn lend(&mut self, work: &mut dyn FnMut(ViewMut<'_>)) {
        match &mut self.0 {
            Part::Copy(operand, call) => {
                let device = Arc::clone(operand.device());
                device.lend(operand.view_mut(*call), work);
            }
            Part::Seconds(seconds) => work(ViewMut::F64(std::slice::from_mut(seconds))),
        }
    }
}

/// One rank's place among those that measure together.
pub(super) struct Bench {
    pub endpoint: Box<dyn Endpoint<Timed>>,
    pub memory: Memory,
    /// Where operands of operators are.
    pub rooms: Rooms,
    /// Where all ranks are.
    pub sites: Sites,
    repeats: Repeats,
    everyone: Box<dyn Group<Timed>>,
    /// Those on machines of this one's kind.
    alike: Box<dyn Group<Timed>>,
    /// Whether ranks take turns on cores.
    is_crowded: bool,
    progress: Option<Sender<(String, f64)>>,
}

impl Bench {
    /// How a tensor is that has not been touched for long.
    pub fn cold(&self) -> Warmth {
        Warmth::Cold { room: self.repeats.cold_bytes }
    }

    /// Says what is being measured, and which share of all is done.
    pub fn announce(&self, what: &str, done: f64) {
        if let Some(progress) = &self.progress {
            // Whoever listens may stop listening.
            let _ = progress.send((what.to_owned(), done));
        }
    }

    /// Mean of the seconds of one call over all ranks on machines of this kind, all ranks calling at once and
    /// equally often; `call` is told how many calls went before.
    ///
    /// # Errors
    /// Those of `call` and of communication.
    pub fn seconds(
        &mut self,
        clock: Clock,
        call: impl FnMut(&mut dyn Endpoint<Timed>, usize) -> Result<()>,
    ) -> Result<f64> {
        Ok(self.seconds_of(true, clock, call)?.expect("this rank counts"))
    }

    /// The same over those ranks whose time counts, if any does.
    ///
    /// # Errors
    /// As [`Bench::seconds`].
    pub fn seconds_of(
        &mut self,
        counts: bool,
        clock: Clock,
        mut call: impl FnMut(&mut dyn Endpoint<Timed>, usize) -> Result<()>,
    ) -> Result<Option<f64>> {
        let clock = if self.is_crowded { Clock::Wall } else { clock };
        // The first call pays for memory that was never touched, and tells nothing.
        call(&mut *self.endpoint, 0)?;
        self.everyone.barrier()?;
        let start = clock.start();
        call(&mut *self.endpoint, 1)?;
        let once = reduce(&mut *self.everyone, start.seconds(), Reduction::Max)?;
        let calls = (self.repeats.batch_seconds / once.max(1e-9)).ceil() as usize;
        let calls = calls.clamp(1, self.repeats.most);
        let mut index = 2;
        let mut batches = Vec::with_capacity(self.repeats.batches);
        for _ in 0..self.repeats.batches {
            self.everyone.barrier()?;
            let start = clock.start();
            for _ in 0..calls {
                call(&mut *self.endpoint, index)?;
                index += 1;
            }
            batches.push(start.seconds() / calls as f64);
        }
        let mean = self.mean(counts.then(|| lower_quartile(batches)))?;
        // A clock too coarse for a call still leaves it some time.
        Ok(mean.map(|seconds| seconds.max(1e-12)))
    }

    /// The mean of what ranks on machines of this one's kind have, of those that have something.
    fn mean(&mut self, own: Option<f64>) -> Result<Option<f64>> {
        let all = reduce(&mut *self.alike, own.unwrap_or(0.0), Reduction::Sum)?;
        let number = f64::from(u8::from(own.is_some()));
        let number = reduce(&mut *self.alike, number, Reduction::Sum)?;
        Ok((number > 0.0).then(|| all / number))
    }
}

/// The lower quartile of the times of repeats, as other work can only add to them.
fn lower_quartile(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 4]
}

/// What some numbers of the members of a group come to.
fn reduce(group: &mut dyn Group<Timed>, own: f64, reduction: Reduction) -> Result<f64> {
    let (kind, algorithm) = (Kind::AllReduce, Algorithm::Direct);
    let collective = Collective::Equal { kind, algorithm, reduction };
    let (reduced, outcome) = group.run(collective, Timed(Part::Seconds(own)));
    outcome?;
    match reduced.0 {
        Part::Seconds(seconds) => Ok(seconds),
        Part::Copy(..) => unreachable!("what is lent comes back"),
    }
}

/// Runs `work` on the ranks of a machine and of those measured with it, which `engine` connects, each a thread
/// on a core of its own where there are enough; what it came to on the first of this process.
///
/// # Errors
/// The first rank's error, if one fails; or if the system has no room for so many threads.
pub(crate) fn run<T: Send>(
    engine: &dyn Engine<Timed>,
    machine: &Machine,
    repeats: Repeats,
    progress: &mut dyn FnMut(&str, f64),
    work: impl Fn(&mut Bench) -> Result<T> + Sync,
) -> Result<T> {
    let ranks = machine.sites.ranks();
    if ranks > MOST_RANKS {
        return Err(ProfileError::TooManyRanks { ranks, most: MOST_RANKS });
    }
    // Links may be slow.
    let timeout = Duration::from_secs(600);
    let settings = Settings { timeout, arithmetic: Arc::new(Arithmetic) };
    let endpoints = engine.connect(ranks, &settings)?;
    // Processes have the cores that whatever started them gave them, perhaps the same.
    let cores = match engine.process().of {
        1 => core_affinity::get_core_ids().unwrap_or_default(),
        _ => vec![],
    };
    let is_crowded = machine.ranks > machine.measured_on.cores;
    let all: Vec<u32> = (0..ranks).collect();
    let (sender, reports) = channel();
    std::thread::scope(|scope| {
        let (work, all) = (&work, &all);
        let mut sender = Some(sender);
        let mut threads = vec![];
        for mut endpoint in endpoints {
            let rank = endpoint.rank();
            let core = cores.get(rank as usize).copied().filter(|_| cores.len() >= ranks as usize);
            let progress = sender.take();
            let builder = Builder::new().name(format!("rank {rank}"));
            let thread = builder.spawn_scoped(scope, move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                let (everyone, sites) = (endpoint.group(all)?, machine.sites.clone());
                let alike = endpoint.group(&sites.alike(rank))?;
                let memory = Memory::new(processor());
                let mut bench = Bench {
                    endpoint,
                    rooms: Rooms::new(memory.clone()),
                    memory,
                    sites,
                    repeats,
                    everyone,
                    alike,
                    is_crowded,
                    progress,
                };
                let outcome = work(&mut bench);
                if let Err(error) = &outcome {
                    bench.endpoint.fail(&error.to_string());
                }
                outcome
            });
            // Ranks that have started end because this one is gone.
            let thread = thread.map_err(|error| ProfileError::Thread { rank, ranks, error })?;
            threads.push((rank, thread));
        }
        // Ends when the first rank drops its sender.
        for (what, done) in reports {
            progress(&what, done);
        }
        let mut first = None;
        for (rank, thread) in threads {
            let outcome = thread.join().unwrap_or_else(|_| {
                let reason = "a measured kernel panicked".to_owned();
                Err(ProfileError::RankPanicked { rank, reason })
            });
            let result =
                outcome.map_err(|error| ProfileError::Rank { rank, error: Box::new(error) })?;
            first.get_or_insert(result);
        }
        Ok(first.expect("there is at least one rank"))
    })
}

#[cfg(test)]
mod tests {
    use shardloom_fabric::InProcess;

    use super::*;
    use crate::tests::{hasty, machine};

    /// What `work` comes to on the first of two ranks.
    fn on_two<T: Send>(repeats: Repeats, work: impl Fn(&mut Bench) -> Result<T> + Sync) -> T {
        run(&InProcess, &machine(), repeats, &mut |_, _| (), work).expect("it runs")
    }

    #[test]
    fn of_repeats_the_lower_quartile_counts() {
        assert_eq!(lower_quartile(vec![7.0]), 7.0);
        assert_eq!(lower_quartile(vec![5.0, 1.0, 4.0, 2.0, 3.0]), 2.0);
        assert_eq!(lower_quartile(vec![4.0, 3.0, 2.0, 1.0]), 2.0);
        let one_to_21 = (1..=21).rev().map(f64::from).collect();
        assert_eq!(lower_quartile(one_to_21), 6.0);
    }

    #[test]
    fn the_mean_is_over_the_ranks_that_have_a_time() {
        let mean = |of: [Option<f64>; 2]| {
            on_two(hasty().repeats, |bench| bench.mean(of[bench.endpoint.rank() as usize]))
        };
        assert_eq!(mean([Some(1.0), Some(3.0)]), Some(2.0));
        assert_eq!(mean([None, Some(3.0)]), Some(3.0));
        assert_eq!(mean([None, None]), None);
    }

    /// So that none finds its operands where the one before left them.
    #[test]
    fn every_call_is_told_another_number() {
        let repeats = Repeats { batches: 3, batch_seconds: 1e9, most: 4, ..hasty().repeats };
        let told = on_two(repeats, |bench| {
            let mut told = vec![];
            bench.seconds(Clock::Processor, |_, call| {
                told.push(call);
                Ok(())
            })?;
            Ok(told)
        });
        // One that pays for new memory, one that says how many a batch has, and three batches of four.
        assert_eq!(told, (0..14).collect::<Vec<usize>>());
    }

    #[test]
    fn ranks_take_turns_where_they_are_more_than_there_are_cores() {
        let is_crowded = |cores| {
            let mut machine = machine();
            machine.measured_on.cores = cores;
            let work = |bench: &mut Bench| Ok(bench.is_crowded);
            run(&InProcess, &machine, hasty().repeats, &mut |_, _| (), work).expect("it runs")
        };
        assert_eq!([1, 2, 3].map(is_crowded), [true, false, false]);
    }

    #[test]
    fn what_work_comes_to_is_that_of_the_first_rank() {
        assert_eq!(on_two(hasty().repeats, |bench| Ok(bench.endpoint.rank())), 0);
    }

    /// Whichever of the two it is, both are told.
    #[test]
    fn a_time_is_that_of_ranks_that_count_and_there_is_none_where_none_does() {
        let is_there = |counts: [bool; 2]| {
            on_two(hasty().repeats, |bench| {
                let counts = counts[bench.endpoint.rank() as usize];
                let found = bench.seconds_of(counts, Clock::Wall, |_, _| Ok(()))?;
                assert!(found.is_none_or(|seconds| seconds > 0.0 && seconds.is_finite()));
                Ok(found.is_some())
            })
        };
        let all = [[true, true], [true, false], [false, true], [false, false]].map(is_there);
        assert_eq!(all, [true, true, true, false]);
    }

    #[test]
    fn a_batch_has_one_call_where_that_takes_as_long_as_is_wanted() {
        let repeats = Repeats { batches: 3, batch_seconds: 0.0, most: 4, ..hasty().repeats };
        let calls = on_two(repeats, |bench| {
            let mut calls = 0;
            bench.seconds(Clock::Wall, |_, _| {
                calls += 1;
                Ok(())
            })?;
            Ok(calls)
        });
        assert_eq!(calls, 2 + 3);
    }
}
