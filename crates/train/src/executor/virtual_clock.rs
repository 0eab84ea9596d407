//! Ranks under the virtual clock: the event engine decides who goes on, the real kernels run, and their
//! thread CPU time advances that rank. Transfers cost what the cluster model says.
//!
//! So a program with more ranks than this machine has cores runs in the order it would have on the
//! modelled machine.

mod driver;
mod exchange;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use shardloom_cluster::Cluster;
use shardloom_fabric::{Endpoint, Engine, InProcess, Settings};
use shardloom_kernels::Arithmetic;
use shardloom_program::timeline::Track;
use shardloom_program::{
    BodyId, Control, Entry, MeasuredRows, Outstanding, Program, Rank as RankId,
};
use shardloom_sim::{Modelled, Options, Recorder, Recording, RowCounts, Simulation, run};

use super::messages::Messages;
use super::waiting::Recorded;
use super::{Answers, Command, Done, RunningRanks, state};
use crate::rank::{Contribution, Rank, Shared, StepOutcome};
use crate::{Error, Result};
use driver::{Executing, Link, StartedByRank, by_group};

/// All ranks of a run, in one thread.
pub(crate) struct VirtualRanks {
    shared: Arc<Shared>,
    cluster: Cluster,
    ranks: Vec<Rank>,
    links: Vec<Link>,
    started: Vec<StartedByRank>,
    sent_bytes: Vec<u64>,
    /// What instructions send, but for rows, by rank and body.
    sends: Vec<Vec<Box<[u64]>>>,
    /// What the last step took, instruction by instruction.
    recording: Option<Recording>,
    /// Whether a command failed, which may have ended in the middle of a step.
    failed: bool,
}

/// Sets up the ranks of a run on the modelled `cluster`.
///
/// # Errors
/// If the ranks cannot be connected.
pub(crate) fn start(shared: &Arc<Shared>, cluster: Cluster) -> Result<RunningRanks> {
    Ok(RunningRanks::Virtual(Box::new(VirtualRanks::new(shared, cluster)?)))
}

impl VirtualRanks {
    fn new(shared: &Arc<Shared>, cluster: Cluster) -> Result<VirtualRanks> {
        let count = shared.program.ranks() as u32;
        let ranks: Vec<Rank> = (0..count).map(|rank| Rank::new(shared, RankId(rank))).collect();
        let sent_bytes = vec![0; ranks.len()];
        let sends = ranks.iter().map(sends).collect();
        let settings = Settings { timeout: Duration::ZERO, arithmetic: Arc::new(Arithmetic) };
        let Shared { program, messages, .. } = &**shared;
        let link = |mut endpoint: Box<dyn Endpoint<Contribution>>| {
            let messages = Messages::new(&mut *endpoint, program, messages, usize::MAX)?;
            Ok(Link { endpoint, messages })
        };
        let started = |rank: &Rank| StartedByRank {
            outstanding: Outstanding::new(program, rank.class()),
            results: VecDeque::new(),
        };
        let started = ranks.iter().map(started).collect();
        let endpoints = InProcess.connect(count, &settings)?;
        let links = endpoints.into_iter().map(link).collect::<Result<_>>()?;
        let shared = Arc::clone(shared);
        Ok(VirtualRanks {
            shared,
            cluster,
            ranks,
            links,
            started,
            sent_bytes,
            sends,
            recording: None,
            failed: false,
        })
    }

    /// What the last step took, instruction by instruction.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// Has every rank carry out `command`.
    ///
    /// # Errors
    /// If a rank fails, and from then on.
    pub fn run(&mut self, command: &Command) -> Result<Vec<Done>> {
        // Not even after a panic, if somebody should catch that.
        if std::mem::replace(&mut self.failed, true) {
            return Err(Error::Failed);
        }
        let done = self.carry_out(command)?;
        self.failed = false;
        Ok(done)
    }

    fn carry_out(&mut self, command: &Command) -> Result<Vec<Done>> {
        let ranks = self.ranks.len();
        let mut tracks = vec![None; ranks];
        let mut answered: Answers = vec![vec![]; ranks];
        let mut outcomes: Vec<Vec<StepOutcome>> = vec![vec![]; ranks];
        let mut answers: Vec<_> = (0..ranks).map(|_| None).collect();
        match command {
            Command::Train { first_step, steps, loss_scale, .. } => {
                for rank in &mut self.ranks {
                    rank.begin_steps(*first_step, *steps, *loss_scale);
                }
                let shared = Arc::clone(&self.shared);
                let before = self.sent_bytes.clone();
                let (simulation, recording, came_to) = self.follow(&shared.program, *steps)?;
                answered = came_to;
                self.recording = Some(recording);
                let sent = self.sent_bytes.iter().zip(before).map(|(after, before)| after - before);
                let all = simulation.timeline.tracks.into_iter().zip(sent);
                for ((track, sent_bytes), slot) in all.zip(&mut tracks) {
                    let track = Track { sent_bytes, ..track };
                    // The engine shows no waiting.
                    *slot = Some(Recorded { track, issued: vec![] });
                }
                for (rank, outcomes) in self.ranks.iter_mut().zip(&mut outcomes) {
                    *outcomes = rank.end_steps(*steps);
                }
            }
            Command::Evaluate { microbatches } => {
                let program = evaluation(&self.shared.program);
                let samples = program.microbatch_samples as u64;
                let mut sums = vec![StepOutcome::default(); ranks];
                for microbatch in 0..*microbatches {
                    for rank in &mut self.ranks {
                        rank.begin_evaluation(microbatch * samples);
                    }
                    self.follow(&program, 1)?;
                    for (rank, outcome) in self.ranks.iter_mut().zip(&mut sums) {
                        if let Some(loss) = rank.end_evaluation() {
                            *outcome.loss_sum.get_or_insert(0.0) += loss;
                        }
                    }
                }
                for (sum, outcomes) in sums.into_iter().zip(&mut outcomes) {
                    outcomes.push(sum);
                }
            }
            Command::State(command) => {
                for (rank, answer) in self.ranks.iter_mut().zip(&mut answers) {
                    *answer = Some(state::carry_out(rank, command)?);
                }
            }
        }
        let came_to = outcomes.into_iter().zip(tracks).zip(answered.into_iter().zip(answers));
        let ranks = self.ranks.iter_mut().zip(&self.links).zip(&self.sent_bytes);
        let done = ranks.zip(came_to).map(|(((rank, link), &sent_bytes), came_to)| {
            let ((steps, track), (answers, answer)) = came_to;
            let counters = link.endpoint.counters();
            Done {
                computing: Duration::ZERO,
                steps,
                track,
                answers,
                classes: rank.take_classes(),
                answer,
                sent_bytes,
                peak_bytes: rank.memory().peak_bytes() as u64,
                peak_under_way_bytes: counters.peak_under_way_bytes,
                system_allocations: rank.system_allocations() + counters.late_buffers as usize,
            }
        });
        Ok(done.collect())
    }

    /// Runs the control of `program` for so many steps, and says whom servers have answered.
    fn follow(
        &mut self,
        program: &Program,
        steps: u32,
    ) -> Result<(Simulation, Recording, Answers)> {
        let model = Modelled::new(&self.shared.graph, &self.cluster, program)?
            .with_rows(RowCounts::Measured(MeasuredRows::default()));
        let driver = Executing {
            shared: &self.shared,
            at: vec![0; self.ranks.len()],
            answers: vec![vec![]; self.ranks.len()],
            published: vec![0; self.ranks.len()],
            ranks: &mut self.ranks,
            links: &mut self.links,
            started: &mut self.started,
            sent_bytes: &mut self.sent_bytes,
            sends: &self.sends,
            model,
        };
        let mut driver = Recorder::new(driver);
        let options = Options { steps, folded: false };
        let simulation = run(program, &self.cluster, options, &mut driver)?;
        let (mut driver, recording) = driver.finish();
        (0..driver.ranks.len()).for_each(|rank| driver.end_step(rank, true));
        let answers = match program.negotiation {
            Some(_) => driver.answers.iter().map(|lists| by_group(lists)).collect(),
            None => driver.answers,
        };
        Ok((simulation, recording, answers))
    }
}

/// What each instruction of a rank's bodies sends.
fn sends(rank: &Rank) -> Vec<Box<[u64]>> {
    let (class, position) = (rank.class_id(), rank.position());
    let bytes = |it| rank.program().instruction_sent_bytes(class, position, it);
    rank.class().bodies.iter().map(|body| body.instructions.iter().map(bytes).collect()).collect()
}

/// The same ranks evaluating one micro-batch.
fn evaluation(program: &Program) -> Program {
    let mut program = program.clone();
    for class in &mut program.classes {
        let entry = |&body: &BodyId| Control::Run(Entry::new(body, Some(0)));
        class.control = class.evaluation.iter().map(entry).collect();
    }
    program
}
