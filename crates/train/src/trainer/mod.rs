//! Training: steps, validation, checkpoints, on all ranks of a program at once.

mod evaluation;
mod loss_scaling;
mod state;
mod takeover;

pub use evaluation::Evaluation;
pub use takeover::LostServer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use shardloom_cluster::Cluster;
use shardloom_data::Source;
use shardloom_graph::Graph;
use shardloom_kernels::Tier;
use shardloom_plan::Plan;
use shardloom_program::timeline::{Clock, Timeline};
use shardloom_program::{Group, MeasuredRows, Program};
use shardloom_sim::Recording;

use crate::blueprint::{Blueprint, Connected, Way};
use crate::delay_bound::{BoundChange, DelayBound, Distances};
use crate::executor::{self, Answer, Answers, Command, Done, RunningRanks, StateCommand};
use crate::learning_rate::LearningRate;
use crate::rank::{Shared, StepOutcome};
use crate::stragglers::{Straggler, Watch};
use crate::{Error, Result};

use loss_scaling::LossScaling;

/// What to do about a loss or gradient that is not finite. Where the plan scales the loss
/// ([`LossScale`](shardloom_plan::LossScale)), a step whose gradients are not finite is left out whatever is said
/// here, and is no reason to stop as long as the scale can be halved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNonFinite {
    /// Stop with an error; checkpoints from before stay. If the plan guards against gradients that are
    /// not finite (`skip_non_finite`), the weights are as before the step with one, though it was in the
    /// middle of a row; else they have been updated with what led to such a loss.
    #[default]
    Stop,
    /// Leave the update out on all ranks alike and go on.
    Skip,
    /// Go on regardless.
    Continue,
}

/// Settings of a run that are not the plan's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// Learning rate by step.
    pub learning_rate: LearningRate,
    /// What to do about numbers that are not finite.
    pub on_non_finite: OnNonFinite,
    /// How long a rank waits for another before it gives up.
    pub timeout: Duration,
    /// Which time ranks live in.
    pub clock: RunClock,
}

/// Which time ranks live in.
#[derive(Clone, Debug, Default)]
pub enum RunClock {
    /// Real time: every rank is a thread.
    #[default]
    Wall,
    /// Modelled time on a cluster: kernels really run and their CPU time counts, transfers take what
    /// the cluster's links say, and ranks go on in the order of their virtual clocks.
    Virtual(Cluster),
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 0.
    pub step: u64,
    /// Mean loss per target over the whole batch, before the update.
    pub loss: f64,
    /// How long it took, in real or in modelled time; of steps in a row an equal share.
    pub seconds: f64,
    /// Targets trained on: tokens, for a language model.
    pub tokens: u64,
    /// Global norm of the gradients before clipping, where it is computed.
    pub gradient_norm: Option<f64>,
    /// Whether the update was left out.
    pub skipped: bool,
    /// By how much the loss was scaled for the backward pass, where the plan says so.
    pub loss_scale: Option<f64>,
}

/// A model in training.
pub struct Trainer {
    running: RunningRanks,
    shared: Arc<Shared>,
    /// What it is trained under.
    plan: Plan,
    devices: usize,
    /// Whether ranks are those of steps in which weights are averaged.
    averages: bool,
    /// Servers whose ranges others have taken over.
    lost: Vec<LostServer>,
    on_non_finite: OnNonFinite,
    /// With which the run was started.
    settings: Settings,
    /// As the plan's `sync` says, if none.
    way: Option<Arc<Way>>,
    connected: Connected,
    next_step: u64,
    loss_scale: LossScaling,
    sent_bytes: Vec<u64>,
    peak_bytes: Vec<u64>,
    peak_under_way_bytes: u64,
    system_allocations: usize,
    /// Whom servers have answered in the last row, by rank, and whom they are to answer in the next.
    answers: Answers,
    repeated: Option<Arc<Answers>>,
    watch: Watch,
    /// How the bound on staleness follows how far apart workers are, if it does, and how it has.
    delay_bound: Option<DelayBound>,
    bound_changes: Vec<BoundChange>,
}

impl Trainer {
    /// Starts all ranks of `plan` with fresh weights.
    ///
    /// # Errors
    /// If the plan does not fit the graph, or asks for number formats that are not trained in; if the environment
    /// asks for kernels that cannot be had, or there are more ranks than the system has threads.
    pub fn new(
        graph: Graph,
        plan: &Plan,
        devices: usize,
        source: Box<dyn Source + Send>,
        settings: Settings,
    ) -> Result<Trainer> {
        Trainer::start(Blueprint::new(graph, plan, devices, settings)?, source)
    }

    /// Starts all ranks of a blueprint with fresh weights.
    ///
    /// # Errors
    /// If the environment asks for kernels that cannot be had, or there are more ranks than the system has
    /// threads.
    pub fn start(blueprint: Blueprint, source: Box<dyn Source + Send>) -> Result<Trainer> {
        Trainer::started(blueprint, Arc::from(source))
    }

    /// Has the ranks of this process do what the process that leads has all ranks do, until it ends the run.
    /// The blueprint and the data are the same there.
    ///
    /// # Errors
    /// As [`Trainer::start`]; or if the process that leads is gone. A rank that fails is its matter.
    pub fn follow(blueprint: Blueprint, source: Box<dyn Source + Send>) -> Result<()> {
        let Connected::Over(processes) = blueprint.connected.clone() else {
            let reason = "there is no process to follow".into();
            return Err(Error::Unsupported { reason });
        };
        let source: Arc<dyn Source + Send> = Arc::from(source);
        let mut trainer = Trainer::started(blueprint, Arc::clone(&source))?;
        loop {
            let next = match &trainer.running {
                RunningRanks::Threads(threads) => threads.follow(&processes)?,
                RunningRanks::Virtual(_) => unreachable!("the virtual clock has one process"),
            };
            let Some(next) = next else { return Ok(()) };
            let next = trainer.planned_as_told(&next)?;
            trainer = Trainer::started(next, Arc::clone(&source))?;
        }
    }

    fn started(blueprint: Blueprint, source: Arc<dyn Source + Send>) -> Result<Trainer> {
        // Asked here, as kernels have no way to report it.
        Tier::selected()?;
        let Blueprint {
            graph,
            plan,
            devices,
            program,
            buffers,
            messages,
            device,
            skip_non_finite,
            settings,
            way,
            connected,
            alike,
        } = blueprint;
        if let Connected::Over(processes) = &connected {
            if matches!(settings.clock, RunClock::Virtual(_)) {
                let reason = "the virtual clock is one process's; start it once".into();
                return Err(Error::Unsupported { reason });
            }
            // Times of all ranks count from here.
            processes.meet()?;
        }
        let shared = Arc::new(Shared {
            buffers,
            messages,
            began: Instant::now(),
            graph,
            program,
            device,
            source,
            seed: settings.seed,
            learning_rate: settings.learning_rate,
            skip_non_finite,
            stops: settings.on_non_finite == OnNonFinite::Stop,
        });
        let running = match settings.clock.clone() {
            RunClock::Wall => executor::start_threads(&shared, &connected, settings.timeout)?,
            RunClock::Virtual(cluster) => executor::start_virtual(&shared, cluster)?,
        };
        let ranks = shared.program.ranks();
        Ok(Trainer {
            running,
            shared,
            loss_scale: LossScaling::new(plan.loss_scale),
            averages: plan.sync.averaging.is_some(),
            plan,
            devices,
            lost: vec![],
            on_non_finite: settings.on_non_finite,
            settings,
            way,
            connected,
            next_step: 0,
            sent_bytes: vec![0; ranks],
            peak_bytes: vec![0; ranks],
            peak_under_way_bytes: 0,
            system_allocations: 0,
            answers: vec![],
            repeated: None,
            watch: Watch::new(alike),
            delay_bound: None,
            bound_changes: vec![],
        })
    }

    /// The program that is executed; where averages end, that of the last step.
    pub fn program(&self) -> &Program {
        &self.shared.program
    }

    /// The model.
    pub fn graph(&self) -> &Graph {
        &self.shared.graph
    }

    /// The number of the step that [`Trainer::step`] will train next.
    pub fn next_step(&self) -> u64 {
        self.next_step
    }

    /// Bytes each rank has sent to others since the start of the run.
    pub fn sent_bytes_per_rank(&self) -> &[u64] {
        &self.sent_bytes
    }

    /// The most bytes each rank has held at once, as its allocator counted. Messages, from when a buffer is
    /// lent to their sender until their receiver drops it, belong to no rank: see [`Trainer::peak_under_way_bytes`].
    pub fn peak_bytes_per_rank(&self) -> &[u64] {
        &self.peak_bytes
    }

    /// The most bytes of each rank's messages that were under way at once, from when a buffer is lent to the
    /// sender until the receiver drops it, added up over ranks.
    pub fn peak_under_way_bytes(&self) -> u64 {
        self.peak_under_way_bytes
    }

    /// How often ranks have asked the system for a buffer since they were built. Every buffer of training
    /// and evaluation has its place from the start, so it is 0, unless a stage that nothing comes back to
    /// sends ahead.
    pub fn system_allocations(&self) -> usize {
        self.system_allocations
    }

    /// Trains one step.
    ///
    /// # Errors
    /// If a rank fails, or the loss is not finite and the setting is to stop.
    pub fn step(&mut self) -> Result<Step> {
        self.step_recorded_if(false).map(|(step, _)| step)
    }

    /// Trains one step and records what every rank did when.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn step_recorded(&mut self) -> Result<(Step, Timeline)> {
        self.step_recorded_if(true)
    }

    fn step_recorded_if(&mut self, record: bool) -> Result<(Step, Timeline)> {
        let (mut steps, timeline) = self.train(1, record)?;
        let step = steps.pop().expect("one step was trained");
        Ok((step, timeline))
    }

    /// Trains steps in a row. A plan without flush fills its pipeline at the first and drains it after
    /// the last, so that state can be looked at, validated and saved between such calls; with a flush
    /// it is the same as so many single steps. With servers a row ends with all gradients applied, and steps
    /// of one row are those that workers may be ahead by.
    ///
    /// Where the plan says that averages of replicas end (`sync.averaging.until`), all replicas have the weights and
    /// the optimizer state of the first at the begin of the step that is the first without. Ranks are started anew
    /// for it, as by [`Trainer::replan`], so that both parts' ranks are there at once for a moment, and bytes are
    /// counted anew; a row ends before it.
    ///
    /// Where a server is lost whose ranges have replicas, those that have them take its place and training goes on
    /// from the last update, to weights that are bitwise the same: [`Trainer::lost_servers`] says so. Ranks are
    /// started anew for that, as by [`Trainer::replan`], but in the case of several processes.
    ///
    /// # Errors
    /// If another rank fails, a loss is not finite and the setting is to stop, or the row has more than
    /// 2^32 - 1 micro-batches.
    pub fn train_steps(&mut self, steps: u32) -> Result<Vec<Step>> {
        self.train(steps, false).map(|(steps, _)| steps)
    }

    /// Likewise, and records what every rank did when; of the first synchronous steps that a plan without
    /// flush may ask for, which are rows of their own, of those whose scale of the loss changes, and of those before
    /// averages end, only in the last row; after the loss of a server only what
    /// has been trained since.
    ///
    /// # Errors
    /// As [`Trainer::train_steps`].
    pub fn train_steps_recorded(&mut self, steps: u32) -> Result<(Vec<Step>, Timeline)> {
        self.train(steps, true)
    }

    fn train(&mut self, steps: u32, record: bool) -> Result<(Vec<Step>, Timeline)> {
        let clock = match self.running {
            RunningRanks::Threads(_) => Clock::Wall,
            RunningRanks::Virtual(_) => Clock::Virtual,
        };
        let record = record.then(|| self.shared.began.elapsed());
        let microbatches = self.shared.program.microbatches;
        if u64::from(steps) * microbatches as u64 > u64::from(u32::MAX) {
            let reason = format!(
                "{steps} steps of {microbatches} micro-batches in a row: a row has at most {} \
                 micro-batches; train fewer steps at a time",
                u32::MAX
            );
            return Err(Error::Unsupported { reason });
        }
        let mut trained = vec![];
        let mut timeline = Timeline { clock, tracks: vec![] };
        let end = self.next_step + u64::from(steps);
        while self.next_step < end {
            self.end_averaging_if_due()?;
            self.bound_as_said()?;
            let averages = self.averages.then(|| self.plan.averaging_ends()).flatten();
            let end = averages.map_or(end, |ends| end.min(ends));
            // The first steps may have to be synchronous, each on its own. So are all where what one comes to
            // says how the loss of the next is scaled; there the pipeline is empty after each anyway.
            let synchronous = self.shared.program.corrections.synchronous_steps;
            let row = match self.next_step < synchronous || self.loss_scale.changes() {
                true => 1,
                false => (end - self.next_step) as u32,
            };
            let first_step = self.next_step;
            let start = Instant::now();
            let answers = self.repeated.take();
            let loss_scale = self.loss_scale.now();
            let command = Command::Train { first_step, steps: row, loss_scale, record, answers };
            let mut done = match self.running.run(&command) {
                Ok(done) => done,
                Err(error) => {
                    let reason = error.to_string();
                    let Some(taken) = self.take_over((first_step, row), &reason)? else {
                        return Err(error);
                    };
                    let seconds = start.elapsed().as_secs_f64() / f64::from(taken.steps.max(1));
                    let outcomes: Vec<&[StepOutcome]> =
                        taken.outcomes.iter().map(Vec::as_slice).collect();
                    for number in 0..taken.steps as usize {
                        trained.push(self.trained(&outcomes, number, seconds)?);
                    }
                    *self = taken.next;
                    continue;
                }
            };
            let elapsed = start.elapsed().as_secs_f64();
            self.note(&done);
            let computing = done.iter().map(|done| done.computing.as_secs_f64());
            self.watch.note(first_step, computing);
            let recorded = done.iter_mut().filter_map(|done| done.track.take()).collect();
            let tracks = executor::without_waiting(&self.shared.program, recorded);
            self.answers = done.iter_mut().map(|done| std::mem::take(&mut done.answers)).collect();
            timeline = Timeline { clock, tracks };
            let seconds = match clock {
                Clock::Wall => elapsed,
                Clock::Virtual | Clock::Simulated => timeline.makespan().seconds(),
            };
            let outcomes: Vec<&[StepOutcome]> = done.iter().map(|done| &done.steps[..]).collect();
            let first = trained.len();
            for number in 0..row as usize {
                trained.push(self.trained(&outcomes, number, seconds / f64::from(row))?);
            }
            self.note_distances(&trained[first..]);
        }
        Ok((trained, timeline))
    }

    /// The n-th of the steps that came to this on all ranks.
    fn trained(
        &mut self,
        outcomes: &[&[StepOutcome]],
        number: usize,
        seconds: f64,
    ) -> Result<Step> {
        let step = self.next_step;
        let program = &self.shared.program;
        let tokens = (program.global_batch * self.shared.graph.targets_per_sample()) as u64;
        let loss = self.loss_sum(outcomes, number) / tokens as f64;
        let StepOutcome { gradient_norm, skipped, .. } = outcomes[0][number];
        if self.on_non_finite == OnNonFinite::Stop {
            if !loss.is_finite() {
                return Err(Error::NonFiniteLoss { step, loss });
            }
            if skipped && !self.loss_scale.can_shrink() {
                return Err(Error::NonFiniteGradient { step });
            }
        }
        self.next_step += 1;
        let loss_scale = self.loss_scale.is_used().then(|| self.loss_scale.now());
        self.loss_scale.note(!skipped);
        Ok(Step { step, loss, seconds, tokens, gradient_norm, skipped, loss_scale })
    }

    /// The ranks that take longer now than others that do as much; none under the virtual clock, where time is
    /// modelled.
    pub fn stragglers(&self) -> Vec<Straggler> {
        self.watch.stragglers()
    }

    /// Has the bound on the staleness of workers follow how far apart they are from here on: each row of steps has the
    /// bound that `delay_bound` says after the row before. Ranks are started anew for another bound, as by
    /// [`Trainer::replan`]; once that was given a plan, the bound is that plan's and follows nothing.
    pub fn follow_distances(&mut self, delay_bound: DelayBound) {
        self.delay_bound = Some(delay_bound);
    }

    /// How far apart workers of parameter servers were in the last row of steps, which had so many; nothing where
    /// servers are synchronous, or there are none or no bound.
    fn distances(&self, steps: u32) -> Option<Distances> {
        let bound = self.plan.sync.servers?.staleness.bound()?;
        let mut all = Distances::default();
        let answered = self.answers.iter().filter(|answers| !answers.is_empty());
        for answers in answered {
            all = all.add(answers, self.plan.pipeline.len(), steps, bound)?;
        }
        Some(all)
    }

    /// How the bound on staleness has changed, in order.
    pub fn bound_changes(&self) -> &[BoundChange] {
        &self.bound_changes
    }

    /// Takes in how far apart workers were in a row of these steps.
    fn note_distances(&mut self, row: &[Step]) {
        let distances = self.distances(row.len() as u32);
        if let (Some(distances), Some(delay_bound)) = (distances, &mut self.delay_bound) {
            let from = delay_bound.next();
            let loss = row.iter().map(|step| step.loss).sum::<f64>() / row.len() as f64;
            delay_bound.note(&distances, loss);
            let (step, to) = (self.next_step, delay_bound.next());
            if to != from {
                self.bound_changes.push(BoundChange { step, from, to, distances });
            }
        }
    }

    /// By rank, what it has decided in the last row of steps: of a server the clients that it has answered, in
    /// order, by their number among its clients, first with an update by their gradients and then with the
    /// weights; of the first replica of a group that negotiates what was reduced as one, group by group and in
    /// order, each as the number of the class's communicator, how many requests, and their numbers in it; of a
    /// replica that takes in what one other has published, step by step, in which step of the row it had published
    /// that. Empty for other ranks.
    pub fn answers(&self) -> &[Vec<u32>] {
        &self.answers
    }

    /// Has servers answer, and replicas reduce and fetch, in the next row of steps as they did in the one that wrote
    /// `answers`, so that it comes to the same, bit for bit. That row fails if it has another number of steps, or if
    /// the order breaks the bound on staleness or cannot have been.
    ///
    /// # Errors
    /// If ranks are not threads: under the virtual clock, the order of answers is that of modelled time. If
    /// the answers are not those of as many ranks, or steps are no rows as the scale of the loss changes.
    pub fn repeat_answers(&mut self, answers: Vec<Vec<u32>>) -> Result<()> {
        let ranks = self.shared.program.ranks();
        if !matches!(self.running, RunningRanks::Threads(_)) {
            let reason = "under the virtual clock answers follow modelled time".into();
            return Err(Error::Unsupported { reason });
        }
        if self.loss_scale.changes() {
            let reason = "with a scale of the loss that changes every step is a row of its own: a constant one".into();
            return Err(Error::Unsupported { reason });
        }
        if answers.len() != ranks {
            let reason = format!("answers of {} ranks for a run of {ranks}", answers.len());
            return Err(Error::Unsupported { reason });
        }
        self.repeated = Some(Arc::new(answers));
        Ok(())
    }

    /// What each instruction of the last step took under the virtual clock, for a simulation to repeat.
    pub fn recording(&self) -> Option<&Recording> {
        self.running.recording()
    }

    /// How many rows went to each expert in the last step that was trained; nothing where the model does not
    /// route rows.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn row_counts(&mut self) -> Result<MeasuredRows> {
        let of_rank = |answer| match answer {
            Answer::Rows(rows) => Some(rows),
            _ => None,
        };
        let mut all = MeasuredRows::default();
        let noted = self.ask(StateCommand::ReportRows, of_rank)?.into_iter().flatten();
        noted.for_each(|rows| rows.add_to(&mut all));
        Ok(all)
    }

    /// Has all ranks carry out a command about their state: their answers, which are of the kind that
    /// `of_rank` takes.
    fn ask<T>(
        &mut self,
        command: StateCommand,
        of_rank: impl Fn(Answer) -> Option<T>,
    ) -> Result<Vec<T>> {
        let done = self.running.run(&Command::State(command))?;
        let answers = done.into_iter().map(|done| done.answer.and_then(&of_rank));
        Ok(answers.map(|answer| answer.expect("each command has its kind of answer")).collect())
    }

    fn note(&mut self, done: &[Done]) {
        self.system_allocations = done.iter().map(|done| done.system_allocations).sum();
        self.peak_under_way_bytes = done.iter().map(|done| done.peak_under_way_bytes).sum();
        for ((done, sent), peak) in done.iter().zip(&mut self.sent_bytes).zip(&mut self.peak_bytes)
        {
            (*sent, *peak) = (done.sent_bytes, done.peak_bytes);
        }
    }

    /// Adds up the ranks' parts of the n-th step's loss: over samples, and not over ranks that computed the same.
    fn loss_sum(&self, outcomes: &[&[StepOutcome]], number: usize) -> f64 {
        let program = &self.shared.program;
        let parts = outcomes.iter().zip(0u32..).filter_map(|(outcomes, rank)| {
            let (class, position) = program.locate(shardloom_program::Rank(rank));
            let loss = outcomes[number].loss_sum?;
            // Of ranks that computed the same part, the first speaks.
            let own = program.class(class).loss_axes(&self.shared.graph)?;
            let axes = program.class(class).mesh.axes();
            let same = axes.filter(|axis| !own.contains(axis)).collect();
            let speaker = program.members(class, position, &Group::Mesh(same))[0].0;
            (speaker == rank).then_some(loss)
        });
        parts.sum()
    }
}
