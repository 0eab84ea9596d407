//! Ranks as threads: each follows its stream, blocking where it waits for others.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardloom_fabric::{Endpoint, InProcess, Settings};
use shardloom_program::{Action, BodyId, Instruction, Rank as RankId, StreamItem};

use super::communicators::{Communicators, Parcel};
use super::recorder::Recorder;
use super::{Command, Crew, Done};
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
pub(crate) fn start(shared: &Arc<Shared>, timeout: Duration) -> Crew {
    Crew::Threads(Threads::start(shared, timeout))
}

impl Threads {
    fn start(shared: &Arc<Shared>, timeout: Duration) -> Threads {
        let ranks = shared.program.ranks() as u32;
        // A sender runs at most a step ahead of its receiver, so a channel never needs to hold more
        // than all messages of one step.
        let most = shared.program.microbatches * shared.program.routes.len().max(1);
        let channel_capacity = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        let settings = Settings { channel_capacity, timeout };
        let endpoints = InProcess::<Parcel>::new(ranks, settings);
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let (report, reports) = channel();
        let mut commands = vec![];
        let mut threads = vec![];
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            let (command, inbox) = channel();
            let (shared, report) = (Arc::clone(shared), report.clone());
            let core = (cores.len() >= ranks as usize).then(|| cores[index]);
            let body = move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                let rank = Rank::new(&shared, RankId(index as u32));
                Worker { rank, endpoint, communicators: Communicators::default() }
                    .serve(&inbox, &report);
            };
            let builder = std::thread::Builder::new().name(format!("rank {index}"));
            let thread = builder.spawn(body).expect("the system has room for another thread");
            threads.push(thread);
            commands.push(command);
        }
        Threads { commands, reports, threads }
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

struct Worker {
    rank: Rank,
    endpoint: Endpoint<Parcel>,
    communicators: Communicators,
}

impl Worker {
    fn serve(mut self, inbox: &Receiver<Command>, reports: &Sender<Report>) {
        while let Ok(command) = inbox.recv() {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.obey(&command)))
                .unwrap_or_else(|panic| Err(self.panicked(panic.as_ref())));
            if let Err(error) = &outcome {
                self.endpoint.fail(error);
            }
            // Whoever hears of the outcome may rely on nothing of the command being in use any more.
            drop(command);
            let failed = outcome.is_err();
            let report = Report { rank: RankId(self.endpoint.rank()), outcome };
            if reports.send(report).is_err() || failed {
                break;
            }
        }
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> Error {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let reason = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Error::RankPanicked { rank: self.endpoint.rank(), reason: reason.to_owned() }
    }

    fn obey(&mut self, command: &Command) -> Result<Done> {
        let mut track = None;
        let mut step = StepOutcome::default();
        match command {
            Command::Step { step: number, record } => {
                self.rank.begin_step(*number);
                let sent = self.sent_bytes();
                let mut recorder = record.map(|origin| self.recorder(origin));
                let stream = self.rank.class().stream.clone();
                for StreamItem { body, microbatch } in stream {
                    self.run(body, microbatch, &mut recorder)?;
                }
                step = self.rank.end_step();
                let sent = self.sent_bytes() - sent;
                let peak = self.rank.memory().peak_bytes() as u64;
                track = recorder.map(|recorder| recorder.finish(peak, sent));
            }
            Command::Evaluate { microbatches } => {
                let bodies = self.rank.class().evaluation.clone();
                let samples = self.rank.program().microbatch_samples as u64;
                for microbatch in 0..*microbatches {
                    self.rank.begin_evaluation(microbatch * samples);
                    for &body in &bodies {
                        self.run(body, Some(0), &mut None)?;
                    }
                    if let Some(loss) = self.rank.end_step().loss_sum {
                        *step.loss_sum.get_or_insert(0.0) += loss;
                    }
                }
            }
            Command::Visit(visit) => visit(&mut self.rank)?,
        }
        let peak_bytes = self.rank.memory().peak_bytes() as u64;
        Ok(Done { step, track, sent_bytes: self.sent_bytes(), peak_bytes })
    }

    fn recorder(&self, origin: Instant) -> Recorder {
        let place = self.rank.place();
        Recorder::new(origin, self.endpoint.rank(), place)
    }

    fn sent_bytes(&self) -> u64 {
        let counters = self.endpoint.counters();
        counters.message_bytes + counters.collective_bytes
    }

    fn run(
        &mut self,
        body: BodyId,
        microbatch: Option<u32>,
        recorder: &mut Option<Recorder>,
    ) -> Result<()> {
        let shared = Arc::clone(self.rank.shared());
        let class = shared.program.class(self.rank.class_id());
        let body = class.body(body);
        for instruction in &body.instructions {
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
        let tag = |route: u32| u64::from(route) << 32 | u64::from(microbatch);
        match instruction.action {
            Action::Send { route } => {
                for message in self.rank.outgoing(route, instruction, microbatch) {
                    let parcel = Parcel(message.payload);
                    self.endpoint.send(message.to.0, tag(route.0), parcel)?;
                }
            }
            Action::Receive { route } => {
                let mut payloads = vec![];
                for sender in self.rank.senders(route) {
                    payloads.push(self.endpoint.receive(sender.0, tag(route.0))?.0);
                }
                self.rank.incoming(route, instruction, microbatch, payloads);
            }
            _ if instruction.involves_others() => {
                let mut contribution = self.rank.contribute(instruction, microbatch);
                self.communicators.exchange(
                    &self.endpoint,
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
