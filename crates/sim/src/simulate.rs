//! A program's simulation from the cost model.

use std::ops::Range;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_program::Program;
use shardloom_program::timeline::{Picos, Timeline};

use crate::instruction_count::{MOST_INSTRUCTIONS, require_few};
use crate::{Modelled, Options, RowCounts, SimError, run, run_for_figures};

/// What happened when, over some steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// All steps, one after another.
    pub timeline: Timeline,
    /// For each track, when each step's last instruction ended.
    pub step_ends: Vec<Vec<Picos>>,
    /// After how many steps they begin alike again: more than one where not every step averages weights.
    pub period: usize,
    /// How many of the last steps lack what would run beside them: the pipeline drains.
    pub draining: usize,
    /// Whether one rank stands for all of its class.
    pub folded: bool,
}

/// Simulates `program`, lowered from `graph`, on `cluster`. Without a flush there are further steps, that
/// fill the pipeline and drain it.
///
/// # Errors
/// If the cluster lacks a device of the program, a device does not compute in its precision, ranks wait for
/// each other for ever, it takes longer than 213 days, or it has more than [`MOST_INSTRUCTIONS`].
pub fn simulate(
    graph: &Graph,
    cluster: &Cluster,
    program: &Program,
    options: Options,
) -> Result<Simulation, SimError> {
    simulate_rows(graph, cluster, program, options, RowCounts::Even)
}

/// The same where so many rows go to experts as `rows` says. Ranks of a class that have different numbers of
/// them are each simulated, whatever the options say: [`Simulation::folded`] tells.
///
/// # Errors
/// Also if how many rows there are is not known.
pub fn simulate_rows(
    graph: &Graph,
    cluster: &Cluster,
    program: &Program,
    options: Options,
    rows: RowCounts,
) -> Result<Simulation, SimError> {
    simulated((graph, program), cluster, options, rows, run)
}

/// The same as [`simulate`] for who asks for nothing but [figures of a step](run_for_figures).
///
/// # Errors
/// As [`simulate`].
pub fn simulate_figures(
    graph: &Graph,
    cluster: &Cluster,
    program: &Program,
    options: Options,
) -> Result<Simulation, SimError> {
    simulated((graph, program), cluster, options, RowCounts::Even, run_for_figures)
}

type Run<'a> = fn(&Program, &Cluster, Options, &mut Modelled<'a>) -> Result<Simulation, SimError>;

fn simulated<'a>(
    (graph, program): (&'a Graph, &'a Program),
    cluster: &'a Cluster,
    options: Options,
    rows: RowCounts,
    run: Run<'a>,
) -> Result<Simulation, SimError> {
    let folded = options.folded && rows.are_alike(graph, program)?;
    let options = Options { folded, ..options }.filled(program);
    require_few(program, options, MOST_INSTRUCTIONS)?;
    let mut driver = Modelled::new(graph, cluster, program)?.with_rows(rows);
    let mut simulation = run(program, cluster, options, &mut driver)?;
    simulation.count_rows(program, &driver)?;
    match simulation.step_ends.iter().flatten().any(|&end| end == Picos::MAX) {
        true => Err(SimError::TooLong { steps: simulation.steps() }),
        false => Ok(simulation),
    }
}

impl Simulation {
    /// Takes the bytes off that are not sent because slots for rows are not filled.
    ///
    /// # Errors
    /// If how many rows there are is not known.
    pub fn count_rows(&mut self, program: &Program, model: &Modelled<'_>) -> Result<(), SimError> {
        let steps = self.steps() as u64;
        let positions = program.classes().flat_map(|(id, class)| {
            let positions = if self.folded { 1 } else { class.mesh.size() };
            (0..positions).map(move |position| (id, position))
        });
        for (track, (class, position)) in self.timeline.tracks.iter_mut().zip(positions) {
            let unfilled = steps * model.unfilled_bytes(class, position)?;
            track.sent_bytes -= unfilled;
            if let Some(sent) = &mut track.class_sent_bytes {
                // A class is folded where as many rows go to and from each of its ranks.
                *sent -= track.multiplicity * unfilled;
            }
        }
        Ok(())
    }

    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.step_ends.first().map_or(0, Vec::len)
    }

    /// How long a step takes once steps follow each other: the longest that a rank takes from the end
    /// of the last step but one to that of the last, before the pipeline drains. With a single step, the
    /// time to its end. Where steps differ, as where only some average weights, the mean over the last
    /// [period](Simulation::period).
    pub fn step_time(&self) -> Picos {
        let lengths = (0..self.step_ends.len()).map(|track| {
            let last = self.last_period(track);
            last.end.since(last.start)
        });
        let Picos(length) = lengths.max().unwrap_or_default();
        Picos(length.div_ceil(self.steps_of_period() as u64))
    }

    /// How many steps the last period has: one most often, and no more than there are.
    pub(crate) fn steps_of_period(&self) -> usize {
        steps_of_period(self.full_steps(), self.period)
    }

    /// How many steps there are before the pipeline drains; all if that leaves none to compare.
    fn full_steps(&self) -> usize {
        full_steps(self.steps(), self.draining)
    }

    /// When the last period, most often a step, began and ended on the rank of a track.
    pub(crate) fn last_period(&self, track: usize) -> Range<Picos> {
        let ends = &self.step_ends[track];
        let ends = &ends[..self.full_steps().min(ends.len())];
        let Some(&last) = ends.last() else { return Picos::ZERO..Picos::ZERO };
        let before = ends.len().checked_sub(1 + self.steps_of_period());
        before.map_or(Picos::ZERO, |before| ends[before])..last
    }
}

/// How many of `steps` there are before the pipeline drains in the last `draining` of them; all if that leaves none to
/// compare.
pub(crate) fn full_steps(steps: usize, draining: usize) -> usize {
    let full = steps.saturating_sub(draining);
    if full > 1 { full } else { steps }
}

/// How many of so many full steps the last period has.
pub(crate) fn steps_of_period(full: usize, period: usize) -> usize {
    period.min(full).max(1)
}
