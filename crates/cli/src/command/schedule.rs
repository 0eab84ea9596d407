//! `shardloom schedule`: a schedule by itself.

use clap::Args;
use serde::Serialize;
use shardloom::plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom::program::quantity::percent;
use shardloom::program::schedule::{self, StageMap, Timed};
use shardloom_report::cell_table;

use crate::failure::Failure;
use crate::number::whole;
use crate::terminal::Terminal;

/// Draw a pipeline schedule as a table of cells
///
/// Every stage takes the same time for a forward pass, and the same for a backward pass; messages take
/// none. One column is one slot of time, so a pass of two slots fills two cells.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom schedule 1f1b --stages 4 --microbatches 8
  shardloom schedule afab --stages 4 --microbatches 8 --backward 1 --json")]
pub struct Schedule {
    /// Which schedule
    #[arg(value_name = "KIND", value_parser = super::schedule_kind)]
    kind: ScheduleKind,

    /// Stages of the pipeline
    #[arg(long, value_name = "P", value_parser = whole::<u32>)]
    stages: u32,

    /// Micro-batches of a step
    #[arg(long, value_name = "M", value_parser = whole::<u32>)]
    microbatches: u32,

    /// Slots of time that a forward pass takes
    #[arg(long, value_name = "SLOTS", default_value_t = 1, value_parser = whole::<u32>)]
    forward: u32,

    /// Slots of time that a backward pass takes
    #[arg(long, value_name = "SLOTS", default_value_t = 2, value_parser = whole::<u32>)]
    backward: u32,
}

#[derive(Serialize)]
struct Answer {
    kind: &'static str,
    stages: u32,
    microbatches: u32,
    makespan: f64,
    bubble_fraction: f64,
    utilisation: f64,
    peak_in_flight: Vec<usize>,
    rows: Vec<Vec<String>>,
}

/// The most cells that are drawn.
const MOST_CELLS: u64 = 4_000_000;

impl Schedule {
    /// Draws it.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let answer = self.answer()?;
        if terminal.json() {
            return terminal.object(&answer);
        }
        terminal.text(cell_table(&answer.rows, terminal.colour()))?;
        terminal.line(format_args!(
            "makespan {}, bubble {}, utilisation {}",
            answer.makespan,
            percent(answer.bubble_fraction),
            percent(answer.utilisation)
        ))?;
        let peaks: Vec<String> = answer.peak_in_flight.iter().map(usize::to_string).collect();
        terminal.line(format_args!("most micro-batches in flight, by stage: {}", peaks.join(", ")))
    }

    fn answer(&self) -> Result<Answer, Failure> {
        let numbers = [
            ("--stages", self.stages),
            ("--microbatches", self.microbatches),
            ("--forward", self.forward),
            ("--backward", self.backward),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(Failure::usage(name, format!("{name} 0: at least 1 is needed")));
        }
        let [stages, microbatches, forward, backward] =
            numbers.map(|(_, number)| u64::from(number));
        let pass_slots = forward + backward;
        let cells = (microbatches + stages).saturating_mul(pass_slots).saturating_mul(stages);
        if cells > MOST_CELLS {
            let message = format!(
                "{stages} stages with {microbatches} micro-batches of {pass_slots} slots have about \
                 {cells} cells; at most {MOST_CELLS} are drawn"
            );
            return Err(Failure::usage("--stages", message));
        }
        let (devices, microbatches) = (self.stages as usize, self.microbatches as usize);
        let arrangement = self.kind.arrangement().unwrap_or(Arrangement::Chain);
        let chunks = arrangement.least_chunks();
        let program = |error| Failure::from(shardloom::Error::from(error));
        let map =
            StageMap::arranged(arrangement, devices, chunks, microbatches).map_err(program)?;
        // Half of a backward pass is for inputs, half for weights.
        let half = f64::from(self.backward) / 2.0;
        let forward = f64::from(self.forward);
        let times = PassTimes { forward, input: half, weight: half, message: 0.0 };
        let schedule = schedule::Schedule::build(self.kind, map, &times).map_err(program)?;
        let timing = schedule::time(&schedule, 1, &times).map_err(program)?;
        let peaks = schedule::check(&schedule, microbatches).map_err(program)?;
        let slots = timing.makespan.ceil() as usize;
        let row = |(device, turns): (usize, &Vec<Timed>)| {
            let mut row = vec![".".to_owned(); slots];
            for timed in turns {
                let (start, end) = (timed.start as usize, timed.end.ceil() as usize);
                row[start..end].fill(schedule.map.text(device, timed.turn));
            }
            row
        };
        Ok(Answer {
            kind: self.kind.name(),
            stages: self.stages,
            microbatches: self.microbatches,
            makespan: timing.makespan,
            bubble_fraction: timing.bubble_fraction,
            utilisation: 1.0 - timing.bubble_fraction,
            peak_in_flight: peaks,
            rows: timing.turns.iter().enumerate().map(row).collect(),
        })
    }
}
