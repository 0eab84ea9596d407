//! Ranks as threads, of this process and of others: they are started, told what to do, and their answers taken together.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardloom_fabric::{Engine, InProcess, MOST_RANKS, Overlapped, Settings};
use shardloom_kernels::Arithmetic;
use shardloom_plan::Communication;
use shardloom_program::Class;

use super::command::{NextRanks, Order, Report};
use super::worker::serve;
use super::{Command, Done, RunningRanks};
use crate::rank::{Contribution, Shared};
use crate::{Connected, Error, Processes, Result};

/// The threads of a run: those of this process, and the way to other processes' if there are any.
pub(crate) struct Threads {
    commands: Vec<Sender<Command>>,
    reports: Receiver<Report>,
    threads: Vec<JoinHandle<()>>,
    /// Ranks in all.
    ranks: u32,
    /// Which this process leads.
    processes: Option<Arc<Processes>>,
    /// How long others may take for their answers once those of this process are there, at least.
    timeout: Duration,
    /// Whether ranks do not wait for each other within a row of steps, so that others may be far behind.
    are_apart: bool,
}

/// Starts one thread per rank, each pinned to a core where there are enough and the system allows, connected
/// by an engine of choice or else by that of one process, which carries collectives out on threads of their
/// own where the program says so. With several processes, the ranks of this one.
///
/// # Errors
/// If the system has no room for so many threads, or the engine cannot connect them.
pub(crate) fn start(
    shared: &Arc<Shared>,
    connected: &Connected,
    timeout: Duration,
) -> Result<RunningRanks> {
    let threads = match (connected, shared.program.communication) {
        (Connected::By(engine), _) => Threads::start(shared, engine, None, timeout),
        (Connected::Here, Communication::InLine) => {
            Threads::start(shared, &InProcess, None, timeout)
        }
        (Connected::Here, Communication::Thread) => {
            Threads::start(shared, &Overlapped(InProcess), None, timeout)
        }
        (Connected::Over(processes), communication) => {
            let engine = Arc::clone(processes.engine());
            let processes = Some(processes);
            match communication {
                Communication::InLine => Threads::start(shared, &engine, processes, timeout),
                Communication::Thread => {
                    Threads::start(shared, &Overlapped(engine), processes, timeout)
                }
            }
        }
    };
    threads.map(RunningRanks::Threads)
}

impl Threads {
    fn start(
        shared: &Arc<Shared>,
        engine: &dyn Engine<Contribution>,
        processes: Option<&Arc<Processes>>,
        timeout: Duration,
    ) -> Result<Threads> {
        let ranks = u32::try_from(shared.program.ranks()).unwrap_or(u32::MAX);
        if ranks > MOST_RANKS {
            return Err(Error::TooManyRanks { ranks, most: MOST_RANKS });
        }
        let settings = Settings { timeout, arithmetic: Arc::new(Arithmetic) };
        let endpoints = match processes.and_then(|it| it.process_of_ranks(&shared.program)) {
            Some(processes) => engine.connect_in(&processes, &settings),
            None => engine.connect(ranks, &settings),
        }?;
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        // Processes have the cores that whatever started them gave them, perhaps the same.
        let pins = cores.len() >= ranks as usize && engine.process().of == 1;
        let gives_back_at_once = engine.process().of == 1;
        let (report, reports) = channel();
        // Whole at every moment, so that giving up ends the threads there are.
        let mut running = Threads {
            commands: vec![],
            reports,
            threads: vec![],
            ranks,
            processes: processes.cloned(),
            timeout,
            are_apart: shared.program.classes.iter().any(Class::fetches),
        };
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            let (command, inbox) = channel();
            let (shared, report) = (Arc::clone(shared), report.clone());
            let core = pins.then(|| cores[index]);
            let rank = endpoint.rank();
            let body = move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                serve(&shared, endpoint, (&inbox, &report), gives_back_at_once, timeout);
            };
            let builder = std::thread::Builder::new().name(format!("rank {rank}"));
            let thread =
                builder.spawn(body).map_err(|error| Error::Thread { rank, ranks, error })?;
            running.threads.push(thread);
            running.commands.push(command);
        }
        Ok(running)
    }

    /// Has every rank carry out `command`, those of other processes too; their answers in order of rank.
    ///
    /// # Errors
    /// The first rank's error that is no consequence of another's, where some failed.
    pub fn run(&self, command: &Command) -> Result<Vec<Done>> {
        let mut answers: Vec<Option<Done>> = (0..self.ranks).map(|_| None).collect();
        let mut gone = None;
        if let Some(processes) = &self.processes {
            // Some may be gone before they have heard of it; what they wait for then fails.
            gone = processes.tell(&Order::Carry(command.clone())).err();
        }
        let mut failures = vec![];
        let mut take = |report: Report| match report.outcome {
            Ok(done) => answers[report.rank as usize] = Some(done),
            Err(failure) => failures.push((report.rank, failure)),
        };
        let began = Instant::now();
        self.carry(command, &mut take);
        // One that is several times slower than this one is still at work.
        let behind = if self.are_apart { 4 * began.elapsed() } else { Duration::ZERO };
        if let Some(processes) = &self.processes {
            for process in processes.others() {
                let patience = 2 * self.timeout + behind;
                match processes.hear_within::<Vec<Report>>(process, patience) {
                    Ok(reports) => reports.into_iter().for_each(&mut take),
                    Err(error) => {
                        gone.get_or_insert(error);
                    }
                }
            }
        }
        // Of one process the first to say so is the cause, but another process's may be heard of late.
        failures.sort_by_key(|(_, failure)| failure.by_another);
        let failure = failures.into_iter().next();
        if let Some(gone) = gone
            && failure.as_ref().is_none_or(|(_, it)| it.by_another)
        {
            return Err(gone);
        }
        if let Some((rank, failure)) = failure {
            return Err(Error::Rank { rank, reason: failure.reason });
        }
        answers
            .into_iter()
            .enumerate()
            .map(|(rank, done)| {
                let reason = "its thread ended".to_owned();
                done.ok_or(Error::RankPanicked { rank: rank as u32, reason })
            })
            .collect()
    }

    /// Has every rank carry out `command`, in the one process that there is: their answers in order of rank, none of
    /// those that fail.
    pub fn run_each(&self, command: &Command) -> Vec<Option<Done>> {
        let mut answers: Vec<Option<Done>> = (0..self.ranks).map(|_| None).collect();
        self.carry(command, &mut |report| answers[report.rank as usize] = report.outcome.ok());
        answers
    }

    /// Has the ranks of this process carry out `command`, and takes what they report, in the order in which they
    /// do.
    fn carry(&self, command: &Command, take: &mut impl FnMut(Report)) {
        for rank in &self.commands {
            // A rank that is gone has said why, or shows as missing.
            let _ = rank.send(command.clone());
        }
        self.commands.iter().map_while(|_| self.reports.recv().ok()).for_each(take);
    }

    /// Has the ranks of this process carry out what the process that leads says, until it has the run go on with
    /// other ranks, or ends it.
    ///
    /// # Errors
    /// If that process is gone.
    pub fn follow(&self, processes: &Processes) -> Result<Option<NextRanks>> {
        loop {
            match processes.hear(0)? {
                Order::Carry(command) => {
                    let mut reports = vec![];
                    self.carry(&command, &mut |report| reports.push(report));
                    processes.tell(&reports)?;
                }
                Order::GoOn(next) => return Ok(Some(next)),
                Order::End => return Ok(None),
            }
        }
    }

    /// Has the run not end with these ranks, as others go on with it.
    pub fn hand_on(&mut self) {
        self.processes = None;
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(processes) = self.processes.take_if(|it| it.leads()) {
            // Who is gone needs not be told.
            let _ = processes.tell(&Order::End);
        }
        self.commands.clear();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
