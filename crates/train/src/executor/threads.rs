//! Ranks as threads: each follows its control, blocking where it waits for others.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardloom_fabric::{Endpoint, InProcess, Settings};
use shardloom_kernels::Buffer;
use shardloom_program::{Action, Cursor, Entry, Instruction, Next, Rank as RankId, RouteId, Run};

use super::communicators::{Communicators, Parcel};
use super::recorder::Recorder;
use super::{Command, Crew, Done, FULL_RING};
use crate::rank::{Rank, Shared, StepOutcome};
use crate::{Error, Result};

/// What a rank answers.
struct Report {
    rank: RankId,
    outcome: Result<Done>,
}

/// The threads of a run.
pub(crate) struct Threads {
    commands: Vec<Sender<Command>>,
    reports: Receiver<Report>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts one thread per rank, each pinned to a core where there are enough and the system allows.
///
/// # Errors
/// If the system has no room for so many threads.
pub(crate) fn start(shared: &Arc<Shared>, timeout: Duration) -> Result<Crew> {
    Threads::start(shared, timeout).map(Crew::Threads)
}

impl Threads {
    fn start(shared: &Arc<Shared>, timeout: Duration) -> Result<Threads> {
        let ranks = u32::try_from(shared.program.ranks()).unwrap_or(u32::MAX);
        Error::unless_threads(ranks)?;
        // What has no most is held back by its channel.
        let most = shared.transit.most_between_two;
        let channel_capacity = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        let settings = Settings { channel_capacity, timeout };
        let endpoints = InProcess::<Parcel>::new(ranks, settings);
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let (report, reports) = channel();
        // Whole at every moment, so that giving up ends the threads there are.
        let mut crew = Threads { commands: vec![], reports, threads: vec![] };
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            let (command, inbox) = channel();
            let (shared, report) = (Arc::clone(shared), report.clone());
            let core = (cores.len() >= ranks as usize).then(|| cores[index]);
            let body = move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                serve(&shared, endpoint, &inbox, &report);
            };
            let builder = std::thread::Builder::new().name(format!("rank {index}"));
            let rank = index as u32;
            let thread =
                builder.spawn(body).map_err(|error| Error::Thread { rank, ranks, error })?;
            crew.threads.push(thread);
            crew.commands.push(command);
        }
        Ok(crew)
    }

    /// Has every rank carry out `command`; their answers in order of rank.
    ///
    /// # Errors
    /// The first rank's error, where some failed.
    pub fn run(&self, command: &Command) -> Result<Vec<Done>> {
        for rank in &self.commands {
            // A rank that is gone has said why, or shows as missing below.
            let _ = rank.send(command.clone());
        }
        let mut answers: Vec<Option<Done>> = self.commands.iter().map(|_| None).collect();
        let mut failure: Option<(RankId, Error)> = None;
        for _ in &self.commands {
            let Ok(report) = self.reports.recv() else { break };
            match report.outcome {
                Ok(done) => answers[report.rank.0 as usize] = Some(done),
                // Others fail because one did; the first to say so is the cause.
                Err(error) => {
                    failure.get_or_insert((report.rank, error));
                }
            }
        }
        match failure {
            Some((rank, error)) => Err(Error::Rank { rank: rank.0, error: Box::new(error) }),
            None => answers
                .into_iter()
                .enumerate()
                .map(|(rank, done)| {
                    let reason = "its thread ended".to_owned();
                    done.ok_or(Error::RankPanicked { rank: rank as u32, reason })
                })
                .collect(),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.commands.clear();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Worker<'a> {
    rank: Rank,
    endpoint: &'a Endpoint<Parcel>,
    communicators: Communicators,
    /// The message by which a client was chosen, until it is taken in.
    request: Option<(RouteId, Buffer)>,
}

/// Carries out what a rank is told, and answers everything: after a failure, that it failed.
fn serve(
    shared: &Arc<Shared>,
    endpoint: Endpoint<Parcel>,
    inbox: &Receiver<Command>,
    reports: &Sender<Report>,
) {
    let rank = RankId(endpoint.rank());
    let mut worker = catching(rank, || {
        Ok(Worker {
            rank: Rank::new(shared, rank),
            endpoint: &endpoint,
            communicators: Communicators::default(),
            request: None,
        })
    });
    if let Err(error) = &worker {
        endpoint.fail(error);
    }
    while let Ok(command) = inbox.recv() {
        let outcome = match &mut worker {
            Ok(worker) => catching(rank, || worker.obey(&command)),
            Err(error) => Err(std::mem::replace(error, Error::Failed)),
        };
        if let (Err(error), Ok(_)) = (&outcome, &worker) {
            endpoint.fail(error);
            worker = Err(Error::Failed);
        }
        // Whoever hears of the outcome may rely on nothing of the command being in use any more.
        drop(command);
        if reports.send(Report { rank, outcome }).is_err() {
            break;
        }
    }
}

/// What tells messages between two ranks apart.
fn tag(route: RouteId, microbatch: u32) -> u64 {
    u64::from(route.0) << 32 | u64::from(microbatch)
}

/// The client that was answered in the row that is repeated.
fn repeat(cursor: &Cursor<'_>, client: Option<&u32>) -> Result<usize> {
    let client = client.map(|&client| client as usize);
    client.filter(|&it| cursor.open().any(|(open, _)| open == it)).ok_or_else(|| {
        let reason =
            "the answers to repeat are of another program, bound or number of steps".into();
        Error::Unsupported { reason }
    })
}

/// What `work` comes to; a panic is an error that carries its text.
fn catching<T>(rank: RankId, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("no reason given").to_owned();
        Err(Error::RankPanicked { rank: rank.0, reason })
    })
}

impl Worker<'_> {
    fn obey(&mut self, command: &Command) -> Result<Done> {
        let mut track = None;
        let mut steps = vec![];
        let mut answered = vec![];
        match command {
            Command::Train { first_step, steps: count, record, answers } => {
                let sent = self.sent_bytes();
                let mut recorder = record.map(|origin| self.recorder(origin));
                let shared = Arc::clone(self.rank.shared());
                let class = shared.program.class(self.rank.class_id());
                self.rank.begin_steps(*first_step, *count);
                let mut step = 0;
                let own = self.endpoint.rank() as usize;
                let mut repeated = answers.as_ref().map(|answers| answers[own].iter());
                let mut cursor = shared.program.cursor(class, *count);
                while let Some(next) = cursor.advance() {
                    let run = match next {
                        Next::Guard(guard, _) => {
                            cursor.take(self.rank.holds(guard.on));
                            continue;
                        }
                        Next::Run(run) => run,
                        Next::Serve => {
                            let client = match &mut repeated {
                                Some(clients) => repeat(&cursor, clients.next())?,
                                None => self.choose(&cursor)?,
                            };
                            answered.push(client as u32);
                            cursor.serve(client)
                        }
                    };
                    if run.at_step() > step {
                        step = run.at_step();
                        self.rank.begin_step(step);
                    }
                    self.run(run, &mut recorder)?;
                }
                steps = self.rank.end_steps(*count);
                let sent = self.sent_bytes() - sent;
                let peak = self.rank.memory().peak_bytes() as u64;
                track = recorder.map(|recorder| recorder.finish(peak, sent));
            }
            Command::Evaluate { microbatches } => {
                let bodies = self.rank.class().evaluation.clone();
                let samples = self.rank.program().microbatch_samples as u64;
                let mut step = StepOutcome::default();
                for microbatch in 0..*microbatches {
                    self.rank.begin_evaluation(microbatch * samples);
                    for &body in &bodies {
                        self.run(Run::alone(Entry::new(body, Some(0))), &mut None)?;
                    }
                    if let Some(loss) = self.rank.end_evaluation() {
                        *step.loss_sum.get_or_insert(0.0) += loss;
                    }
                }
                steps.push(step);
            }
            Command::Visit(visit) => visit(&mut self.rank)?,
        }
        let peak_bytes = self.rank.memory().peak_bytes() as u64;
        let (sent_bytes, system_allocations) = (self.sent_bytes(), self.rank.system_allocations());
        Ok(Done { steps, track, answers: answered, sent_bytes, peak_bytes, system_allocations })
    }

    /// The client that a server answers next: one that it can send the weights, or else the first from which
    /// something comes.
    fn choose(&mut self, cursor: &Cursor<'_>) -> Result<usize> {
        let shared = Arc::clone(self.rank.shared());
        let class = shared.program.class(self.rank.class_id());
        let mut waited: Vec<(usize, RouteId, u32)> = vec![];
        for (client, handler) in cursor.open() {
            let first = class.body_of(&handler.run).instructions.first();
            let Some(&Action::Receive { route }) = first.map(|it| &it.action) else {
                return Ok(client);
            };
            let own = RankId(self.endpoint.rank());
            let mut transfers = shared.program.transfers(route);
            let from = transfers.find(|&(_, _, to)| to == own).map(|(_, from, _)| from.0);
            waited.push((client, route, from.expect("a route has a message for its receiver")));
        }
        let from: Vec<(u32, u64)> =
            waited.iter().map(|&(_, route, from)| (from, tag(route, 0))).collect();
        let (place, request) = self.endpoint.receive_any(&from)?;
        let (client, route, _) = waited[place];
        self.request = Some((route, request.0));
        Ok(client)
    }

    fn recorder(&self, origin: Instant) -> Recorder {
        let place = self.rank.place();
        Recorder::new(origin, self.endpoint.rank(), place)
    }

    fn sent_bytes(&self) -> u64 {
        let counters = self.endpoint.counters();
        counters.message_bytes + counters.collective_bytes
    }

    fn run(&mut self, run: Run, recorder: &mut Option<Recorder>) -> Result<()> {
        let shared = Arc::clone(self.rank.shared());
        let class = shared.program.class(self.rank.class_id());
        let (body, microbatch) = (class.body_of(&run.entry), run.microbatch);
        self.rank.begin_entry(&run);
        for (index, instruction) in (0u32..).zip(&body.instructions) {
            self.rank.go_to(index);
            let start = recorder.as_ref().map(|_| Instant::now());
            self.execute(instruction, microbatch.unwrap_or(0))?;
            if let (Some(recorder), Some(start)) = (recorder.as_mut(), start) {
                let live = self.rank.memory().live_bytes() as u64;
                recorder.note(class, body, instruction, microbatch, start, live);
            }
        }
        Ok(())
    }

    fn execute(&mut self, instruction: &Instruction, microbatch: u32) -> Result<()> {
        match instruction.action {
            Action::Send { route } => {
                self.rank.clear_unwritten(instruction.reads[0]);
                let shared = Arc::clone(self.rank.shared());
                let own = RankId(self.endpoint.rank());
                let transfers = shared.program.transfers(route);
                for (message, _, to) in transfers.filter(|&(_, from, _)| from == own) {
                    let pack = || {
                        let packed = self.rank.pack(route, message, instruction, microbatch);
                        // Nothing is sent back in evaluation, so that a rank may run far ahead there.
                        assert!(packed.is_some() || self.rank.evaluates(), "{FULL_RING}");
                        packed
                    };
                    let payload =
                        self.endpoint.wait_before_send(to.0, tag(route, microbatch), pack)?;
                    self.endpoint.send(to.0, tag(route, microbatch), Parcel(payload))?;
                }
                self.rank.free(instruction, microbatch);
            }
            Action::Receive { route } => {
                let shared = Arc::clone(self.rank.shared());
                let own = RankId(self.endpoint.rank());
                let transfers = shared.program.transfers(route);
                for (message, sender, _) in transfers.filter(|&(_, _, to)| to == own) {
                    let payload = match self.request.take_if(|(known, _)| *known == route) {
                        Some((_, payload)) => payload,
                        None => self.endpoint.receive(sender.0, tag(route, microbatch))?.0,
                    };
                    self.rank.unpack(route, message, instruction, microbatch, payload);
                    self.endpoint.nudge(sender.0)?;
                }
                self.rank.free(instruction, microbatch);
            }
            _ if instruction.involves_others() => {
                let mut contribution = self.rank.contribute(instruction, microbatch);
                self.communicators.exchange(
                    self.endpoint,
                    &self.rank,
                    instruction,
                    &mut contribution,
                )?;
                self.rank.conclude(instruction, microbatch, contribution);
            }
            _ => self.rank.execute(instruction, microbatch)?,
        }
        Ok(())
    }
}
