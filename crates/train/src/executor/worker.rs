//! What the thread of a rank does: it follows its control, blocking where it waits for others.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use shardloom_fabric::{Endpoint, Message};
use shardloom_program::{
    Action, Class, Control, Cursor, Entry, Next, Outstanding, Rank as RankId, Run,
};

use super::command::{RankFailure, Report, other_row};
use super::communicators::{Communicators, Started};
use super::fetches::RepeatedFetches;
use super::messages::{Messages, tag};
use super::recorder::Recorder;
use super::{Command, Done, FULL_POOL, state};
use crate::rank::{
    At, Begun, Collective, Contribution, LinkedInstruction, MOST_RESERVED, Rank, Shared,
    StepOutcome, Work,
};
use crate::{Error, Result};

/// A rank on its thread, with what connects it to others.
struct Worker {
    rank: Rank,
    endpoint: Box<dyn Endpoint<Contribution>>,
    messages: Messages,
    communicators: Communicators,
    outstanding: Outstanding,
    /// These, as they were started.
    started: VecDeque<(Begun, Started)>,
    /// The messages that came before it was chosen what they are for, until they are taken in.
    early: Vec<Message>,
    /// What a server waits for, and from whom, to be filled each time.
    asked: Vec<(u32, u64)>,
    /// What the rank took for its own part of the command.
    computing: Duration,
    /// Whether a buffer is back as soon as its receiver drops it. From another process that takes a message.
    gives_back_at_once: bool,
}

/// Carries out what a rank is told, and answers everything: after a failure, that it failed. Where servers have
/// replicas, a rank that only stopped since another is gone still answers what is about its own state.
pub(super) fn serve(
    shared: &Arc<Shared>,
    mut endpoint: Box<dyn Endpoint<Contribution>>,
    (inbox, reports): (&Receiver<Command>, &Sender<Report>),
    gives_back_at_once: bool,
    timeout: Duration,
) {
    let rank = endpoint.rank();
    let built = catching(rank, || {
        let Shared { program, messages, .. } = &**shared;
        // What has no most may run ahead by a step.
        let most = program.microbatches * (program.ahead as usize + 1);
        let messages = Messages::new(&mut *endpoint, program, messages, most)?;
        let mut rank = Rank::new(shared, RankId(rank));
        let communicators = Communicators::new(&mut *endpoint, &mut rank, timeout)?;
        Ok((rank, messages, communicators))
    });
    let mut worker = match built {
        Ok((rank, messages, communicators)) => Ok(Worker {
            outstanding: Outstanding::new(&shared.program, rank.class()),
            rank,
            endpoint,
            messages,
            communicators,
            started: VecDeque::new(),
            early: vec![],
            asked: vec![],
            computing: Duration::ZERO,
            gives_back_at_once,
        }),
        Err(error) => {
            endpoint.fail(&error.to_string());
            Err(error)
        }
    };
    let mut stopped = false;
    while let Ok(command) = inbox.recv() {
        let outcome = match &mut worker {
            Ok(_) if stopped && !matches!(command, Command::State(_)) => Err(Error::Failed),
            Ok(worker) => catching(rank, || worker.obey(&command)),
            Err(error) => Err(std::mem::replace(error, Error::Failed)),
        };
        // Whoever hears of the outcome may rely on nothing of the command being in use any more.
        drop(command);
        let outcome = outcome.map_err(|error| RankFailure::from(&error));
        let failure = outcome.as_ref().err().cloned();
        let told = reports.send(Report { rank, outcome });
        // Only then, since others fail by it, and the first to say so is the cause.
        if let (Some(failure), Ok(failed)) = (failure, &worker) {
            failed.endpoint.fail(&failure.reason);
            stopped = failure.by_another && shared.program.has_replicas();
            if !stopped {
                worker = Err(Error::Failed);
            }
        }
        if told.is_err() {
            break;
        }
    }
}

impl Worker {
    fn obey(&mut self, command: &Command) -> Result<Done> {
        let mut track = None;
        let mut steps = vec![];
        let mut answer = None;
        let mut answered = vec![];
        let mut classes = vec![];
        match command {
            Command::Train { first_step, steps: count, loss_scale, record, answers } => {
                let sent = self.sent_bytes();
                let mut recorder =
                    record.map(|origin| self.recorder(self.rank.shared().began + origin));
                let shared = Arc::clone(self.rank.shared());
                let class = shared.program.class(self.rank.class_id());
                self.rank.begin_steps(*first_step, *count, *loss_scale);
                if let Some(serve) = class.serves() {
                    answered
                        .reserve(serve.handlers().count() * (*count).min(MOST_RESERVED) as usize);
                }
                self.make_room_for_early(class);
                let mut step = 0;
                let own = self.endpoint.rank() as usize;
                let repeats = answers.as_ref().map(|answers| &answers[own][..]);
                let mut repeated = repeats.filter(|_| class.serves().is_some()).map(<[u32]>::iter);
                if self.communicators.fetches() {
                    let row = (*first_step, *count);
                    let own = RankId(self.endpoint.rank());
                    let repeated = answers
                        .as_ref()
                        .map(|answers| RepeatedFetches::of(&shared.program, own, row, answers));
                    self.communicators.begin_row(*count, repeated.transpose()?);
                } else if class.serves().is_none() {
                    self.communicators.repeat(repeats)?;
                }
                let mut cursor = shared.program.cursor(class, *count);
                while let Some(next) = cursor.advance() {
                    let run = match next {
                        Next::Guard(guard, _) => {
                            cursor.take(self.rank.holds(guard.on));
                            continue;
                        }
                        Next::Run(run) => run,
                        Next::Choice => {
                            let choice = match &mut repeated {
                                Some(clients) => repeat(&cursor, clients.next())?,
                                None => self.choose(&cursor)?,
                            };
                            // Sums are the same in whichever order they are made.
                            if class.serves().is_some() {
                                answered.push(choice as u32);
                            }
                            cursor.choose(choice)
                        }
                    };
                    if run.at_step() > step {
                        step = run.at_step();
                        let ending = self.outstanding.ending_with_step(false);
                        self.end_first(ending, &mut recorder)?;
                        self.rank.begin_step(step);
                    }
                    self.run(run, &mut recorder)?;
                }
                if repeated.is_some_and(|clients| clients.len() > 0) {
                    return Err(other_row());
                }
                self.end_first(self.outstanding.ending_with_step(true), &mut recorder)?;
                if class.serves().is_none() {
                    answered = self.communicators.take_lists();
                    if repeats.is_some_and(|lists| lists != answered) {
                        return Err(other_row());
                    }
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
                    self.end_first(self.outstanding.ending_with_step(true), &mut None)?;
                    if let Some(loss) = self.rank.end_evaluation() {
                        *step.loss_sum.get_or_insert(0.0) += loss;
                    }
                }
                steps.push(step);
                classes = self.rank.take_classes();
            }
            Command::State(command) => answer = Some(state::carry_out(&mut self.rank, command)?),
        }
        let counters = self.endpoint.counters();
        Ok(Done {
            computing: std::mem::take(&mut self.computing),
            steps,
            track,
            answers: answered,
            classes,
            answer,
            sent_bytes: self.sent_bytes(),
            peak_bytes: self.rank.memory().peak_bytes() as u64,
            peak_under_way_bytes: counters.peak_under_way_bytes,
            system_allocations: self.rank.system_allocations() + counters.late_buffers as usize,
        })
    }

    /// Makes room for all that may come in a step before the rank has chosen what it is for.
    fn make_room_for_early(&mut self, class: &Class) {
        let chosen = class.control.iter().map(|part| match part {
            Control::AsReceived(entries) => &entries[..],
            _ => &[],
        });
        let instructions = chosen.flatten().flat_map(|entry| &class.body_of(entry).instructions);
        let received =
            instructions.filter(|it| matches!(it.action, Action::Receive { .. })).count();
        self.early.reserve(received);
        self.asked.reserve(received);
    }

    /// What a server does next: for a client that it can send the weights, or else for one from which something
    /// comes first; or an entry of which all that it receives has come. Which that is only the run knows.
    fn choose(&mut self, cursor: &Cursor<'_>) -> Result<usize> {
        let Worker { rank, endpoint, early, asked, .. } = self;
        let most = if cursor.awaits_all() { usize::MAX } else { 1 };
        loop {
            asked.clear();
            for (choice, entry) in cursor.open() {
                let instructions = rank.linked().body(entry.body).iter().take(most);
                let received = instructions.filter_map(|it| match &it.work {
                    Work::Receive(receives) => Some(receives),
                    _ => None,
                });
                let missing = asked.len();
                for receives in received {
                    let first = receives.messages.first();
                    let from = first.expect("a route has a message for its receiver").from;
                    let awaited = (from.0, tag(rank.program(), receives.route, 0));
                    if !early.iter().any(|it| (it.from(), it.tag()) == awaited) {
                        asked.push(awaited);
                    }
                }
                if asked.len() == missing {
                    return Ok(choice);
                }
            }
            let come = endpoint.receive_any(asked)?;
            early.push(come);
        }
    }

    fn recorder(&self, origin: Instant) -> Recorder {
        let place = (self.rank.class_id(), self.rank.place());
        let live = self.rank.memory().live_bytes() as u64;
        let is_colocated = self.rank.program().is_colocated(self.rank.class_id());
        Recorder::new(origin, (self.endpoint.rank(), is_colocated), place, live)
    }

    fn sent_bytes(&self) -> u64 {
        let counters = self.endpoint.counters();
        counters.message_bytes + counters.collective_bytes
    }

    fn run(&mut self, run: Run, recorder: &mut Option<Recorder>) -> Result<()> {
        let (shared, linked) = (Arc::clone(self.rank.shared()), Arc::clone(self.rank.linked()));
        let class = shared.program.class(self.rank.class_id());
        self.rank.begin_entry(&run);
        for (index, instruction) in (0u32..).zip(linked.body(run.entry.body)) {
            let at = self.rank.at(index);
            self.end_first(self.outstanding.ending_before(class, at.issued), recorder)?;
            if let Work::Collective(collective) = &instruction.work
                && self.outstanding.start(class, at.issued)
            {
                self.start(collective, at)?;
                continue;
            }
            let start = Instant::now();
            self.execute(instruction, at)?;
            if matches!(instruction.work, Work::Local(_)) {
                self.computing += start.elapsed();
            }
            if let Some(recorder) = recorder.as_mut() {
                let live = self.rank.memory().live_bytes() as u64;
                let end = Instant::now();
                recorder.note(class, at.issued, (start, end), (end, live));
            }
        }
        Ok(())
    }

    /// Starts a collective that the rank does not wait for.
    fn start(&mut self, collective: &Collective, at: At) -> Result<()> {
        let (contribution, begun) = self.rank.contribute(collective, at);
        let handle = self.communicators.start(collective, contribution);
        self.started.push_back((begun, handle));
        Ok(())
    }

    /// Waits for so many of the collectives that were started first.
    fn end_first(&mut self, count: usize, recorder: &mut Option<Recorder>) -> Result<()> {
        for _ in 0..count {
            self.outstanding.end_first();
            let (begun, handle) = self.started.pop_front().expect("it was started");
            let issued = begun.issued();
            let result = self.communicators.wait(handle)?;
            let worked = result.worked;
            self.rank.conclude(begun, result);
            if let (Some(recorder), Some(worked)) = (recorder.as_mut(), worked) {
                let live = self.rank.memory().live_bytes() as u64;
                recorder.note(self.rank.class(), issued, worked, (Instant::now(), live));
            }
        }
        Ok(())
    }

    fn execute(&mut self, instruction: &LinkedInstruction, at: At) -> Result<()> {
        match &instruction.work {
            Work::Local(work) => return self.rank.execute(instruction, work, at),
            Work::Send(sends) => {
                let tag = tag(self.rank.program(), sends.route, at.microbatch());
                for sent in &sends.messages {
                    let mut lent = self.lend(sent.number, tag)?;
                    self.rank.pack(sends, sent, at, &mut lent);
                    self.endpoint.send(lent)?;
                }
            }
            Work::Receive(receives) => {
                let tag = tag(self.rank.program(), receives.route, at.microbatch());
                for received in &receives.messages {
                    let from = received.from.0;
                    let is_it = |early: &Message| (early.from(), early.tag()) == (from, tag);
                    let payload = match self.early.iter().position(is_it) {
                        Some(place) => self.early.swap_remove(place),
                        None => self.endpoint.receive(from, tag)?,
                    };
                    self.rank.unpack(receives, received, at, payload.view());
                }
            }
            Work::Publish(publish) => self.communicators.publish(publish, &self.rank, at)?,
            Work::Fetch(fetch) => self.communicators.fetch(fetch, &mut self.rank, at)?,
            Work::Collective(collective) => {
                let (contribution, begun) = self.rank.contribute(collective, at);
                let started = self.communicators.start(collective, contribution);
                let result = self.communicators.wait(started)?;
                self.rank.conclude(begun, result);
                return Ok(());
            }
        }
        self.rank.free(instruction, at);
        Ok(())
    }

    /// A buffer for one of the messages that the rank sends, by its number among them.
    fn lend(&mut self, number: usize, tag: u64) -> Result<Message> {
        let from = self.messages.sends_from(number);
        if let Some(free) = self.endpoint.try_message(from.pool, tag) {
            return Ok(free);
        }
        // Nothing is sent back in evaluation, so that a rank may run far ahead there.
        let is_back = from.is_bounded && self.gives_back_at_once && !self.rank.evaluates();
        assert!(!is_back, "{FULL_POOL}");
        Ok(self.endpoint.message(from.pool, tag)?)
    }
}

/// The client that was answered in the row that is repeated.
fn repeat(cursor: &Cursor<'_>, client: Option<&u32>) -> Result<usize> {
    let client = client.map(|&client| client as usize);
    client.filter(|&it| cursor.open().any(|(open, _)| open == it)).ok_or_else(other_row)
}

/// What `work` comes to; a panic is an error that carries its text.
fn catching<T>(rank: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("no reason given").to_owned();
        Err(Error::RankPanicked { rank, reason })
    })
}
