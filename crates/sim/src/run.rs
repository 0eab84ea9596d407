//! How a program is run by a driver, and what is kept of that.

use shardloom_cluster::Cluster;
use shardloom_program::Program;

use crate::engine::Engine;
use crate::script::Script;
use crate::simulate::{full_steps, steps_of_period};
use crate::track_writer::Kept;
use crate::{Driver, SimError, Simulation};

/// How a program is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Steps in a row; the last one, which begins in the state that others leave behind, is the one
    /// that [`Simulation::step_time`] reports.
    pub steps: u32,
    /// Whether each class is one actor instead of one per rank. Equal to the unfolded simulation where
    /// the ranks of a class are placed alike; otherwise the slowest rank counts for all.
    pub folded: bool,
}

impl Default for Options {
    /// Two steps, folded.
    fn default() -> Options {
        Options { steps: 2, folded: true }
    }
}

impl Options {
    /// With as many further steps before and after these as fill the pipeline of a program that runs ahead
    /// and drain it, and for each step as many as there are from one average of weights to the next.
    #[must_use]
    pub fn filled(self, program: &Program) -> Options {
        let steps = self.steps.saturating_mul(program.period());
        Options { steps: steps.saturating_add(2 * program.ahead), ..self }
    }
}

/// Runs `program` on `cluster`, which decides whose lanes overlap; all durations are the driver's.
///
/// # Errors
/// If there is no step to run, the cluster lacks a device, ranks wait for each other for ever, or the
/// driver fails.
pub fn run<D: Driver>(
    program: &Program,
    cluster: &Cluster,
    options: Options,
    driver: &mut D,
) -> Result<Simulation, D::Error> {
    run_keeping(Kept::All, program, cluster, options, driver)
}

/// The same for who asks for nothing but figures of a step: its [summary](Simulation::summary), its
/// [time](Simulation::step_time), [memory](Simulation::memory_fits) and bytes sent. Tracks have no labels, messages or
/// memory over time, and what occupies lanes only from the end of the step before on.
///
/// # Errors
/// As [`run`].
pub fn run_for_figures<D: Driver>(
    program: &Program,
    cluster: &Cluster,
    options: Options,
    driver: &mut D,
) -> Result<Simulation, D::Error> {
    let steps = options.steps as usize;
    let full = full_steps(steps, program.ahead as usize);
    let steps_before = full - steps_of_period(full, program.period() as usize);
    run_keeping(Kept::Figures { steps_before }, program, cluster, options, driver)
}

fn run_keeping<D: Driver>(
    kept: Kept,
    program: &Program,
    cluster: &Cluster,
    options: Options,
    driver: &mut D,
) -> Result<Simulation, D::Error> {
    if options.steps == 0 {
        return Err(SimError::NoSteps.into());
    }
    let scripts: Vec<Script<'_>> = program.classes.iter().map(Script::of).collect();
    let mut engine = Engine::new(program, cluster, &scripts, (options, kept))?;
    engine.follow(driver)?;
    Ok(engine.finish(driver))
}
