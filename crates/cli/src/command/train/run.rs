//! A training run, from its first step to its last.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;
use shardloom::plan::{Number, Plan};
use shardloom::program::quantity::{digits, percent, seconds};
use shardloom::program::timeline::Timeline;
use shardloom::search::Outcome;
use shardloom::train::{
    BoundChange, DelayBound, Evaluation, LostServer, RunClock, Settings, Step, Straggler,
};
use shardloom::{
    CheckpointFolder, Data, Launched, Model, Prediction, Resumed, Session, Unpredicted,
};
use shardloom_report::LossPoint;

use super::{ending, opening};
use crate::command::cost::Cost;
use crate::command::targets::counted;
use crate::failure::Failure;
use crate::interrupt;
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Everything that is decided before a run.
pub struct Job {
    /// The model.
    pub model: Model,
    /// Where its data are.
    pub data: Vec<PathBuf>,
    /// `bytes` or the file of the tokenizer that text becomes tokens by; none for rows of a table.
    pub tokenizer: Option<String>,
    /// How it is trained.
    pub plan: Plan,
    /// The search that found the plan, if one did.
    pub search: Option<Outcome>,
    /// Steps that it has been trained for in the end.
    pub steps: u64,
    /// Weights to start from.
    pub weights: Option<PathBuf>,
    /// Whether the head starts anew, and not from these.
    pub new_head: bool,
    /// Where checkpoints go.
    pub checkpoints: Option<Checkpoints>,
    /// How it is validated.
    pub validation: Option<Validation>,
    /// What a step is predicted to be.
    pub prediction: Result<Prediction, Unpredicted>,
    /// What the predicted step costs where prices of the devices are known.
    pub cost: Option<Cost>,
    /// What one is predicted to be once averages have ended, where they do.
    pub prediction_after: Option<Result<Prediction, Unpredicted>>,
    /// Where a report goes.
    pub html: Option<OutputFile>,
    /// Where a trace goes.
    pub trace: Option<OutputFile>,
    /// Steps after which a pipeline without flush is drained.
    pub drain_every: NonZeroU64,
    /// How the bound on staleness follows how far apart workers are, if it does.
    pub delay_bound: Option<DelayBound>,
}

/// Where checkpoints go, and when.
#[derive(Debug)]
pub struct Checkpoints {
    /// Their folder, this run's to its end.
    pub folder: CheckpointFolder,
    /// Steps from one to the next; only the last if absent.
    pub every: Option<NonZeroU64>,
    /// How many are kept; all if absent.
    pub keep: Option<NonZeroUsize>,
    /// Whether the command can be told to go on from the newest.
    pub resumable: bool,
    /// Whether it was.
    pub resume: bool,
    /// Whether those of another run are deleted.
    pub force: bool,
}

/// How a run is validated.
#[derive(Clone, Copy, Debug)]
pub struct Validation {
    /// Steps from one to the next; only after the last if absent.
    pub every: Option<NonZeroU64>,
    /// The most micro-batches of one.
    pub microbatches: u64,
}

/// What a run came to.
#[derive(Default)]
pub struct History {
    /// Losses by step.
    pub losses: Vec<LossPoint>,
    /// How long each step took; since averages have ended, if they have.
    pub step_seconds: Vec<f64>,
    /// Targets of a step.
    pub tokens: u64,
    /// The last step that was recorded.
    pub measured: Option<Timeline>,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Ranks that are slow, as far as was said.
    pub stragglers: Vec<Straggler>,
    /// Servers that were lost and whose ranges others have, as far as was said.
    pub lost: Vec<LostServer>,
    /// How the bound on staleness has changed, as far as was said.
    pub bound_changes: Vec<BoundChange>,
    /// The step with which averages ended, if that was in this run.
    pub averages_ended: Option<u64>,
    /// The signal by which the user stopped it.
    pub interrupted: Option<i32>,
    /// Why nothing more is printed, if so.
    unprinted: Option<Failure>,
}

/// One step, for programs.
#[derive(Serialize)]
struct StepLine {
    step: u64,
    loss: f64,
    step_seconds: f64,
    tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gradient_norm: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    skipped: bool,
    /// By how much the loss was scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_scale: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation_accuracy: Option<f64>,
}

/// Lines that a run prints for people, about.
const LINES: u64 = 20;

/// As long as this nothing is printed between two lines, but for a step that takes longer.
const SILENCE: Duration = Duration::from_secs(60);

impl Job {
    /// Trains; with ranks in several processes, if this one leads some.
    pub fn run(
        mut self,
        data: Data,
        settings: Settings,
        launched: Option<&Launched>,
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let (model, plan) = (&self.model, &self.plan);
        let folder = self.checkpoints.as_ref().map(|checkpoints| checkpoints.folder.path());
        let samples = opening::Samples::of(&data);
        let is_timed = matches!(settings.clock, RunClock::Wall);
        let mut session = match launched {
            None => Session::start(model, plan, data, settings),
            Some(launched) => Session::lead(model, plan, data, settings, launched, folder),
        }?;
        let mut history = History::default();
        if let Some(delay_bound) = self.delay_bound.take() {
            session.trainer().follow_distances(delay_bound);
        }
        let origin = self.begin(&mut session, terminal)?;
        history.print(|| opening::say(&self, &session, (&origin, samples, is_timed), terminal));
        interrupt::listen()?;
        let first = session.next_step();
        let bar = terminal.progress(self.steps);
        bar.set_position(first);
        let outcome = self.steps(&mut session, &mut history, &bar, terminal);
        bar.finish_and_clear();
        outcome?;
        if self.plan.averaging_ends().is_some_and(|end| session.next_step() > end) {
            self.prediction = self.prediction_after.take().unwrap_or(self.prediction);
        }
        let concluded = ending::conclude(&self, &mut session, &history, terminal);
        // That nobody reads on is the least of reasons to end.
        match (concluded.and(history.unprinted.map_or(Ok(()), Err)), history.interrupted) {
            (Ok(()) | Err(Failure::OutputClosed), Some(signal)) => {
                Err(Failure::Interrupted(signal))
            }
            (outcome, _) => outcome,
        }
    }

    /// Weights and checkpoints, before the first step; says where weights are from.
    fn begin(&self, session: &mut Session, terminal: Terminal) -> Result<String, Failure> {
        if let Some(Checkpoints { folder, resume: true, .. }) = &self.checkpoints {
            if let Some(resumed) = session.resume(folder.path())? {
                if let Some(weights) = &self.weights {
                    terminal.note(format_args!(
                        "{} is not read: the checkpoint has weights of its own",
                        weights.display()
                    ));
                }
                self.resumed(&resumed, terminal)?;
                self.note_frozen(true, terminal)?;
                return Ok(format!("those of {}", resumed.path.display()));
            }
            terminal.note(format_args!(
                "no checkpoint in {} yet; starting with step 0",
                folder.path().display()
            ));
        }
        if let Some(Checkpoints { folder, resume: false, force: false, .. }) = &self.checkpoints {
            folder.clear(false).map_err(|error| match error {
                shardloom::Error::CheckpointsExist { .. } => {
                    let message = format!("{error} (--resume goes on, --force deletes them)");
                    Failure::usage("--checkpoint", message)
                }
                other => other.into(),
            })?;
        }
        let origin = self.load(session, terminal)?;
        // Only now that nothing is wrong with the weights.
        if let Some(Checkpoints { folder, resume: false, force: true, .. }) = &self.checkpoints {
            folder.clear(true)?;
        }
        self.note_frozen(self.weights.is_some(), terminal)?;
        Ok(origin)
    }

    /// The weights that are given, if there are any; says where weights are from.
    fn load(&self, session: &mut Session, terminal: Terminal) -> Result<String, Failure> {
        let Some(weights) = &self.weights else {
            return Ok(format!("drawn with seed {}", session.seed()));
        };
        let place = weights.display();
        // People read it in the opening lines, which programs do not get.
        let note = |said: String| {
            if terminal.json() {
                terminal.note(said);
            }
        };
        match self.new_head {
            false => {
                session.load_weights(weights)?;
                note(format!("starting from the weights in {place}"));
                Ok(format!("those in {place}"))
            }
            true => {
                let anew = session.load_weights_without_head(weights)?.join(", ");
                note(format!(
                    "starting from the weights in {place}, but for what starts anew: {anew}"
                ));
                Ok(format!("those in {place}, but for what starts anew: {anew}"))
            }
        }
    }

    /// Says how much is frozen, and whether that `is_loaded` and not as it was drawn.
    fn note_frozen(&self, is_loaded: bool, terminal: Terminal) -> Result<(), Failure> {
        let graph = self.model.graph();
        let frozen = self.plan.frozen_count(graph).map_err(shardloom::Error::from)?;
        if frozen == 0 {
            return Ok(());
        }
        let compute = self.plan.precision.compute;
        let format = format!("{compute:?}").to_lowercase();
        let how = match is_loaded {
            true if compute == Number::Fp32 => String::new(),
            true => format!(
                ", held in {format}: what has more digits is rounded, also where it is saved"
            ),
            false => ", as they were drawn: there are no weights to start from".into(),
        };
        terminal.note(format_args!(
            "{} of {} parameters are frozen{how}",
            digits(frozen as f64),
            digits(graph.parameter_count() as f64)
        ));
        Ok(())
    }

    fn resumed(&self, resumed: &Resumed, terminal: Terminal) -> Result<(), Failure> {
        for refused in &resumed.refused {
            terminal.note(refused);
        }
        let path = resumed.path.display();
        terminal.note(format_args!("going on from {path}, after step {}", resumed.step));
        for difference in &resumed.plan_changes {
            terminal.note(format_args!("the plan differs from the checkpoint's in {difference}"));
        }
        if let Some(former) = &resumed.former_learning_rate {
            terminal.note(format_args!(
                "the learning rate differs from the checkpoint's, which was {}",
                former.curve()
            ));
        }
        if resumed.step == self.steps {
            // As after a loss behind the last checkpoint.
            terminal.note("all steps are done");
        }
        if resumed.step > self.steps {
            let message = format!(
                "--steps {}: {path} has done {} steps already; give more",
                self.steps, resumed.step
            );
            return Err(Failure::usage("--steps", message));
        }
        Ok(())
    }

    fn steps(
        &self,
        session: &mut Session,
        history: &mut History,
        bar: &ProgressBar,
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let first = session.next_step();
        let lines_every = ((self.steps - first) / LINES).max(1);
        let mut said = Instant::now();
        while session.next_step() < self.steps {
            if self.plan.averaging_ends() == Some(session.next_step()) {
                bar.suspend(|| history.note_end_of_averages(session.next_step(), terminal));
            }
            let row = match session.runs_ahead() {
                true => self.row(session.next_step()),
                false => 1,
            };
            let done = session.next_step() + u64::from(row);
            let last = done == self.steps;
            // Recording costs little, but not nothing: one step after the first ones, in case the run
            // is interrupted, and the last.
            let record = last || done == first + 3;
            let mut trained = match record {
                false => session.train_steps(row)?,
                true => {
                    let (trained, timeline) = session.train_steps_recorded(row)?;
                    // Nothing was recorded where a server was lost in the last step.
                    history.measured = Some(timeline).filter(|it| !it.tracks.is_empty());
                    trained
                }
            };
            let step = trained.pop().expect("a row has a step");
            let stragglers = session.trainer().stragglers();
            bar.suspend(|| history.note_stragglers(stragglers, terminal));
            let lost = session.trainer().lost_servers();
            bar.suspend(|| history.note_lost(lost, terminal));
            let changes = session.trainer().bound_changes();
            bar.suspend(|| history.note_bound_changes(changes, terminal));
            let unit = counted(&self.model);
            for step in trained {
                self.note(&step, None, history, terminal);
                if step.skipped && !terminal.json() {
                    bar.suspend(|| history.print(|| terminal.line(for_people(&step, None, unit))));
                }
            }
            let due = |every: Option<NonZeroU64>| {
                every.is_some_and(|every| done.is_multiple_of(every.get()))
            };
            let validation = match self.validation {
                Some(Validation { every, microbatches }) if last || due(every) => {
                    session.evaluate(microbatches)?
                }
                _ => None,
            };
            self.note(&step, validation, history, terminal);
            bar.set_position(done);
            bar.set_message(format!("loss {:.4}", step.loss));
            let due_line = step.skipped
                || row > 1
                || (done - first - 1).is_multiple_of(lines_every)
                || said.elapsed() >= SILENCE;
            if !terminal.json() && (last || validation.is_some() || due_line) {
                said = Instant::now();
                bar.suspend(|| {
                    history.print(|| terminal.line(for_people(&step, validation, unit)))
                });
            }
            history.interrupted = interrupt::asked().filter(|_| !last);
            if let Some(Checkpoints { folder, every, keep, .. }) = &self.checkpoints
                && (last || history.interrupted.is_some() || due(*every))
            {
                history.checkpoint = Some(session.save(folder.path(), *keep)?);
            }
            if history.interrupted.is_some() {
                break;
            }
        }
        Ok(())
    }
}

impl Job {
    /// How many steps follow each other from `next` on until the pipeline is drained: always at the same
    /// steps, so that a run that was interrupted goes on as if it had not been.
    fn row(&self, next: u64) -> u32 {
        let every = [
            Some(self.drain_every),
            self.validation.and_then(|it| it.every),
            self.checkpoints.as_ref().and_then(|it| it.every),
        ];
        let until = every.into_iter().flatten().map(|every| every.get() - next % every.get());
        let end = self.plan.averaging_ends().filter(|&end| end > next).map(|end| end - next);
        let row = until.chain(end).fold(self.steps - next, u64::min);
        u32::try_from(row).unwrap_or(u32::MAX)
    }

    fn note(
        &self,
        step: &Step,
        validation: Option<Evaluation>,
        history: &mut History,
        terminal: Terminal,
    ) {
        history.note(step, validation);
        if terminal.json() {
            history.print(|| terminal.object(&StepLine::of(step, validation)));
        }
    }
}

/// Takes a folder for this run's checkpoints: early, as later there is more to lose.
///
/// # Errors
/// If another run has it, or it cannot be written.
pub fn claim(folder: &Path, terminal: Terminal) -> Result<CheckpointFolder, Failure> {
    let claimed = CheckpointFolder::claim(folder)?;
    if !claimed.is_locked() {
        terminal.note(format_args!(
            "the file system of {} has no locks: see that no other run writes there",
            folder.display()
        ));
    }
    Ok(claimed)
}

impl History {
    /// Prints, as long as that works: whatever becomes of standard output, the run goes on to its checkpoint.
    fn print(&mut self, print: impl FnOnce() -> Result<(), Failure>) {
        if self.unprinted.is_none() {
            self.unprinted = print().err();
        }
    }

    fn note(&mut self, step: &Step, validation: Option<Evaluation>) {
        self.losses.push(LossPoint {
            step: step.step,
            train: step.loss,
            validation: validation.map(|it| it.loss),
            accuracy: validation.and_then(|it| it.accuracy),
        });
        self.step_seconds.push(step.seconds);
        self.tokens = step.tokens;
    }

    /// Says which ranks have become slow, and which are so no longer.
    fn note_stragglers(&mut self, now: Vec<Straggler>, terminal: Terminal) {
        let is_in = |all: &[Straggler], rank: u32| all.iter().any(|it| it.rank == rank);
        for slow in now.iter().filter(|it| !is_in(&self.stragglers, it.rank)) {
            terminal.note(straggling(slow));
        }
        for fast in self.stragglers.iter().filter(|it| !is_in(&now, it.rank)) {
            terminal.note(format_args!("rank {} keeps up again", fast.rank));
        }
        self.stragglers = now;
    }

    /// Says that averages end with the step that comes next; times are those of other steps from here on.
    fn note_end_of_averages(&mut self, step: u64, terminal: Terminal) {
        terminal.note(averages_ended(step));
        self.averages_ended = Some(step);
        self.step_seconds.clear();
    }

    /// Says how the bound on staleness has changed since it was said last.
    fn note_bound_changes(&mut self, all: &[BoundChange], terminal: Terminal) {
        for change in &all[self.bound_changes.len()..] {
            terminal.note(bound_changed(change));
            self.bound_changes.push(*change);
        }
    }

    /// Says which servers were lost since it was said last.
    fn note_lost(&mut self, all: &[LostServer], terminal: Terminal) {
        for lost in &all[self.lost.len()..] {
            terminal.note(taken_over(lost));
            self.lost.push(lost.clone());
        }
    }

    /// The step time that half of the steps undercut.
    pub fn median_step_seconds(&self) -> Option<f64> {
        let mut sorted = self.step_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            even if even.is_multiple_of(2) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
            _ => Some(sorted[middle]),
        }
    }
}

/// What is said of a server that was lost.
pub fn taken_over(LostServer { server, step, taken_over_by, reason }: &LostServer) -> String {
    let others: Vec<String> = taken_over_by.iter().map(u32::to_string).collect();
    let (noun, others) = match others.split_last() {
        Some((last, [])) => ("server", last.clone()),
        Some((last, first)) => ("servers", format!("{} and {last}", first.join(", "))),
        None => ("servers", "none".to_owned()),
    };
    format!(
        "server {server} was lost after {step} steps ({reason}); {noun} {others} had replicas of its ranges and took \
         them over"
    )
}

/// What is said where replicas are averaged no more.
pub fn averages_ended(step: u64) -> String {
    format!(
        "from step {step} on replicas are not averaged: all have taken the first one's weights and optimizer state, \
         and reduce gradients"
    )
}

/// What is said of a bound on staleness that has become another.
pub fn bound_changed(BoundChange { step, from, to, distances }: &BoundChange) -> String {
    let why = match distances.held {
        0 => {
            let farthest = distances.farthest;
            format!("none was held back, and none was more than {farthest} ahead")
        }
        _ => format!("{} of fetches were held back", percent(distances.held_share())),
    };
    format!(
        "from step {step} on workers may be {to} steps ahead of the slowest, before {from}: {why}"
    )
}

/// What is said of a rank that is slow.
pub fn straggling(Straggler { rank, since_step, times }: &Straggler) -> String {
    format!(
        "rank {rank} takes {times:.2} times as long for its own part as ranks that have as much to do, since \
         step {since_step}"
    )
}

impl StepLine {
    fn of(step: &Step, validation: Option<Evaluation>) -> StepLine {
        StepLine {
            step: step.step,
            loss: step.loss,
            step_seconds: step.seconds,
            tokens: step.tokens,
            gradient_norm: step.gradient_norm,
            skipped: step.skipped,
            loss_scale: step.loss_scale,
            validation_loss: validation.map(|it| it.loss),
            validation_accuracy: validation.and_then(|it| it.accuracy),
        }
    }
}

fn for_people(step: &Step, validation: Option<Evaluation>, unit: &str) -> String {
    let mut text = format!(
        "step {:>6}  loss {:<8.4}  {:>8}  {} {unit}/s",
        step.step,
        step.loss,
        seconds(step.seconds),
        digits(step.tokens as f64 / step.seconds)
    );
    if let Some(Evaluation { loss, accuracy }) = validation {
        text += &format!("  validation {loss:.4}");
        if let Some(share) = accuracy {
            text += &format!("  accuracy {}", percent(share));
        }
    }
    if step.skipped {
        text += "  update skipped: not finite";
        if let Some(scale) = step.loss_scale {
            text += &format!(" with the loss scaled by {scale}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{History, LostServer, taken_over};

    #[test]
    fn of_a_lost_server_it_is_said_who_has_its_ranges() {
        let lost = |taken_over_by| LostServer {
            server: 1,
            step: 7,
            taken_over_by,
            reason: "rank 3: gone".into(),
        };
        let rest = "had replicas of its ranges and took them over";
        for (by, who) in [(vec![2], "server 2"), (vec![0, 2, 3], "servers 0, 2 and 3")] {
            let expected = format!("server 1 was lost after 7 steps (rank 3: gone); {who} {rest}");
            assert_eq!(taken_over(&lost(by)), expected);
        }
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        let median = |seconds: &[f64]| {
            History { step_seconds: seconds.to_vec(), ..History::default() }.median_step_seconds()
        };
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }
}
