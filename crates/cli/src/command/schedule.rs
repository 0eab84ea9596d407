//! `shardloom schedule`: a schedule by itself.

use clap::Args;
use serde::Serialize;
use shardloom::plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom::program::ProgramError;
use shardloom::program::quantity::percent;
use shardloom::program::schedule::{self, StageMap, Succession, Timed, Turn};
use shardloom_report::{cell_legend, cell_table};

use super::schedule_kind::{listing, schedule_kind};
use super::slots::{Slots, WholeTimes};
use crate::failure::Failure;
use crate::number::{decimal, whole};
use crate::terminal::Terminal;

const EXAMPLES: &str = "Examples:
  shardloom schedule 1f1b --stages 4 --microbatches 8
  shardloom schedule interleaved --stages 4 --microbatches 8 --chunks 2
  shardloom schedule pipedream --stages 4 --microbatches 4 --steps 3
  shardloom schedule pipedream --replicas 2,1 --microbatches 4
  shardloom schedule hanayo --stages 4 --microbatches 4 --backward 1 --message 0.25 --json";

/// Draw a pipeline schedule as a table of cells
///
/// All devices take the same times for a micro-batch; where a device holds several stages, each takes
/// its share of them, and where r devices take turns at a stage, it takes each of them r times as long.
/// Columns are slots of one length, as long as possible with every pass in whole slots.
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}

Schedules, with other names: {}.

Cells: F forward, B backward, I and W its halves (input and weight gradients), then the micro-batch, \
@ and the device's chunk, < for a pipeline the reverse way; F3+B1< are two passes at once, . is idle.

With --json, `order` is what a plan with schedule = \"table\" has to train in this order.",
        listing())
)]
pub struct Schedule {
    /// Which schedule; see below
    #[arg(value_name = "KIND", value_parser = schedule_kind)]
    kind: ScheduleKind,

    /// Devices that the pipeline goes through
    #[arg(long, value_name = "P", value_parser = whole::<u32>, required_unless_present = "replicas")]
    stages: Option<u32>,

    /// Devices of each stage that take its micro-batches in turn: 2,1 for two and then one
    #[arg(
        long, value_name = "R,R", value_parser = whole::<u32>, value_delimiter = ',',
        conflicts_with_all = ["stages", "chunks"]
    )]
    replicas: Option<Vec<u32>>,

    /// Micro-batches of a step
    #[arg(long, value_name = "M", value_parser = whole::<u32>)]
    microbatches: u32,

    /// Stages on each device [default: as few as the schedule wants]
    #[arg(long, value_name = "V", value_parser = whole::<u32>)]
    chunks: Option<u32>,

    /// Most micro-batches in flight on a device, of zb-h1 and zb-h2 [default: P and 2P - 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    in_flight: Option<u32>,

    /// Time of a forward pass through a device
    #[arg(long, value_name = "TIME", default_value_t = 1.0, value_parser = decimal)]
    forward: f64,

    /// Time of a backward pass, half of it for input gradients and half for weight gradients
    #[arg(long, value_name = "TIME", default_value_t = 2.0, value_parser = decimal)]
    backward: f64,

    /// Time of input gradients alone
    #[arg(
        long, value_name = "TIME", value_parser = decimal,
        requires = "weight", conflicts_with = "backward"
    )]
    input: Option<f64>,

    /// Time of weight gradients alone
    #[arg(
        long, value_name = "TIME", value_parser = decimal,
        requires = "input", conflicts_with = "backward"
    )]
    weight: Option<f64>,

    /// Time of a message between devices
    #[arg(long, value_name = "TIME", default_value_t = 0.0, value_parser = decimal)]
    message: f64,

    /// Share of a forward pass's memory that only weight gradients free, of zb-1p and zb-2p [default: 1]
    #[arg(long, value_name = "SHARE", value_parser = decimal)]
    kept: Option<f64>,

    /// Make the order for steps that wait for each other, shortest from the first start to the last end,
    /// where the schedule has a choice [default: shortest between a device's own start and end]
    #[arg(long)]
    wait: bool,

    /// Steps to draw, one right after the other [default: 1; without flush enough to see the steady
    /// state]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    steps: Option<u32>,
}

#[derive(Serialize)]
struct Answer {
    kind: &'static str,
    stages: usize,
    /// Of each stage; null where none has several.
    replicas: Option<Vec<u32>>,
    microbatches: u32,
    chunks: usize,
    steps: u32,
    makespan: f64,
    bubble_fraction: f64,
    /// The largest of a device, between its own first start and last end.
    span_bubble_fraction: f64,
    utilisation: f64,
    /// Once steps follow each other without a flush; null for a schedule with one.
    steady_utilisation: Option<f64>,
    peak_in_flight: Vec<usize>,
    slot: f64,
    exact_slots: bool,
    rows: Vec<Vec<String>>,
    turns: Vec<Vec<TurnTime>>,
    /// One step of each device, as a plan writes it.
    order: Vec<String>,
}

/// When a device does what, exactly.
#[derive(Serialize)]
struct TurnTime {
    cells: String,
    start: f64,
    end: f64,
}

/// The most cells that are drawn, and passes that are timed.
const MOST_CELLS: u64 = 4_000_000;

impl Schedule {
    /// Draws it.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let answer = self.answer()?;
        if terminal.json() {
            return terminal.object(&answer);
        }
        let colour = terminal.colour();
        terminal.text(cell_table(&answer.rows, colour))?;
        terminal.text(cell_legend(&answer.rows, colour))?;
        if !answer.exact_slots {
            terminal.line(format_args!(
                "columns are {} wide, and starts and ends rounded to them: the times have no common \
                 divisor that is not much smaller",
                number(answer.slot)
            ))?;
        }
        let steps = match answer.steps {
            1 => String::new(),
            steps => format!("{steps} steps: "),
        };
        terminal.line(format_args!(
            "{steps}makespan {}, bubble {}, utilisation {}",
            number(answer.makespan),
            percent(answer.bubble_fraction),
            percent(answer.utilisation)
        ))?;
        match answer.steady_utilisation {
            Some(steady) => terminal.line(format_args!(
                "utilisation once steps follow each other: {}",
                percent(steady)
            ))?,
            None => terminal.line(format_args!(
                "largest bubble between a device's own first and last pass: {}",
                percent(answer.span_bubble_fraction)
            ))?,
        }
        let peaks: Vec<String> = answer.peak_in_flight.iter().map(usize::to_string).collect();
        let what = match answer.chunks {
            1 => "most micro-batches in flight, by device",
            _ => "most micro-batches in flight, each stage's counted, by device",
        };
        terminal.line(format_args!("{what}: {}", peaks.join(", ")))
    }

    fn answer(&self) -> Result<Answer, Failure> {
        self.require_numbers()?;
        let arrangement = self.kind.arrangement().unwrap_or(Arrangement::Chain);
        let chunks = self.chunks.map_or(arrangement.least_chunks(), |chunks| chunks as usize);
        self.require_few_passes(chunks, self.steps.unwrap_or(1))?;
        let (devices, microbatches) = (self.devices(), self.microbatches as usize);
        let map = self.map(arrangement, chunks).map_err(program)?;
        let WholeTimes { times, scale } = WholeTimes::of(self.times(), chunks);
        let schedule = self.schedule(map, &times)?;
        let ahead = schedule.ahead();
        let steps = self.steps.unwrap_or(match ahead {
            0 => 1,
            ahead => ahead + devices.saturating_mul(2).div_ceil(self.microbatches).max(2),
        });
        self.require_few_passes(chunks, steps)?;
        let timing = schedule::time(&schedule, steps, &times).map_err(program)?;
        let waiting = (ahead as usize + 2) * microbatches;
        let peaks = schedule::check(&schedule, waiting).map_err(program)?;
        let steady_utilisation = match ahead {
            0 => None,
            _ => Some(self.steady_utilisation(&schedule, &times, chunks)?),
        };
        let slots = Slots::of(&timing, &schedule.map, MOST_CELLS).ok_or_else(|| {
            let message = format!(
                "{devices} devices: with {microbatches} micro-batches and these times there are over \
                 {MOST_CELLS} cells; at most {MOST_CELLS} are drawn"
            );
            Failure::usage("--stages", message)
        })?;
        let turn = |device: usize, timed: &Timed| TurnTime {
            cells: schedule.map.text(device, timed.turn),
            start: timed.start / scale,
            end: timed.end / scale,
        };
        let order = |(device, turns): (usize, &Vec<Turn>)| {
            let texts = turns.iter().map(|&turn| schedule.map.text(device, turn));
            texts.collect::<Vec<_>>().join(" ")
        };
        let turns = timing.turns.iter().enumerate();
        let turns = turns.map(|(device, turns)| turns.iter().map(|it| turn(device, it)).collect());
        Ok(Answer {
            kind: self.kind.name(),
            stages: self.replicas.as_ref().map_or(devices as usize, Vec::len),
            replicas: self.replicas.clone(),
            microbatches: self.microbatches,
            chunks,
            steps,
            makespan: timing.makespan / scale,
            bubble_fraction: timing.bubble_fraction,
            span_bubble_fraction: timing.span_bubble_fraction(),
            utilisation: 1.0 - timing.bubble_fraction,
            steady_utilisation,
            peak_in_flight: peaks,
            slot: slots.width / scale,
            exact_slots: slots.exact,
            rows: slots.rows,
            turns: turns.collect(),
            order: schedule.orders.iter().enumerate().map(order).collect(),
        })
    }

    fn schedule(&self, map: StageMap, times: &PassTimes) -> Result<schedule::Schedule, Failure> {
        let zero_bubble = [ScheduleKind::ZeroBubbleH1, ScheduleKind::ZeroBubbleH2];
        let succession = match self.wait {
            true => Succession::Common,
            false => Succession::Own,
        };
        let built = match self.in_flight {
            None => schedule::Schedule::build_for(self.kind, map, times, succession),
            Some(limit) if zero_bubble.contains(&self.kind) => {
                schedule::Schedule::zero_bubble(map, times, limit as usize, succession)
            }
            Some(limit) => {
                let message = format!(
                    "--in-flight {limit}: only zb-h1 and zb-h2 are made for a limit; how many {} has in \
                     flight is part of what it is",
                    self.kind.name()
                );
                return Err(Failure::usage("--in-flight", message));
            }
        };
        built.map_err(program)
    }

    /// Busy time over all time, of steps in the middle of many.
    fn steady_utilisation(
        &self,
        schedule: &schedule::Schedule,
        times: &PassTimes,
        chunks: usize,
    ) -> Result<f64, Failure> {
        // As many steps as fill the pipeline several times over; then as many again.
        let fill = self.devices().saturating_mul(4).div_ceil(self.microbatches);
        let steps = (schedule.ahead() + 2).max(fill);
        self.require_few_passes(chunks, steps.saturating_mul(2))?;
        let timing = |steps| schedule::time(schedule, steps, times).map_err(program);
        let (one, both) = (timing(steps)?, timing(steps * 2)?);
        let busy = |timing: &schedule::Timing| {
            (1.0 - timing.bubble_fraction) * timing.makespan * timing.turns.len() as f64
        };
        let devices = f64::from(self.devices());
        Ok((busy(&both) - busy(&one)) / (devices * (both.makespan - one.makespan)))
    }

    /// Devices in all.
    fn devices(&self) -> u32 {
        match &self.replicas {
            Some(replicas) => replicas.iter().fold(0, |sum: u32, &it| sum.saturating_add(it)),
            None => self.stages.unwrap_or(0),
        }
    }

    /// Where stages live.
    fn map(&self, arrangement: Arrangement, chunks: usize) -> Result<StageMap, ProgramError> {
        let microbatches = self.microbatches as usize;
        match &self.replicas {
            Some(replicas) => {
                let replicas: Vec<usize> = replicas.iter().map(|&it| it as usize).collect();
                StageMap::new(Arrangement::taking_turns(&replicas)?, microbatches)
            }
            None => StageMap::arranged(arrangement, self.devices() as usize, chunks, microbatches),
        }
    }

    fn times(&self) -> PassTimes {
        let half = self.backward / 2.0;
        PassTimes {
            forward: self.forward,
            input: self.input.unwrap_or(half),
            weight: self.weight.unwrap_or(half),
            message: self.message,
            kept: self.kept.unwrap_or(1.0),
        }
    }

    fn require_numbers(&self) -> Result<(), Failure> {
        let counts = [
            ("--stages", self.stages),
            ("--replicas", self.replicas.iter().flatten().copied().min()),
            ("--microbatches", Some(self.microbatches)),
            ("--chunks", self.chunks),
            ("--in-flight", self.in_flight),
            ("--steps", self.steps),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(Failure::usage(name, format!("{name} 0: at least 1 is needed")));
        }
        let takes_turns = matches!(self.kind.arrangement(), None | Some(Arrangement::TakingTurns));
        if self.replicas.is_some() && !takes_turns {
            let message = format!(
                "--replicas: replicas take micro-batches in turn in afab, 1f1b and pipedream, not in {}",
                self.kind.name()
            );
            return Err(Failure::usage("--replicas", message));
        }
        self.require_share()?;
        let times = [
            ("--forward", Some(self.forward)),
            ("--backward", Some(self.backward)),
            ("--input", self.input),
            ("--weight", self.weight),
        ];
        let passes = times.into_iter().filter_map(|(name, time)| Some((name, time?)));
        let fits = |time: f64| (1e-3..=LONGEST).contains(&time);
        if let Some((name, time)) = passes.clone().find(|&(_, time)| !fits(time)) {
            let message = format!("{name} {time}: a pass takes from 0.001 to {LONGEST}");
            return Err(Failure::usage(name, message));
        }
        if !(0.0..=LONGEST).contains(&self.message) {
            let message =
                format!("--message {}: a message takes from 0 to {LONGEST}", self.message);
            return Err(Failure::usage("--message", message));
        }
        Ok(())
    }

    fn require_share(&self) -> Result<(), Failure> {
        let Some(kept) = self.kept else { return Ok(()) };
        if !matches!(self.kind, ScheduleKind::ZeroBubbleOneP | ScheduleKind::ZeroBubbleTwoP) {
            let message = format!(
                "--kept {kept}: only zb-1p and zb-2p are made for memory that passes free in part, and \
                 {} is not",
                self.kind.name()
            );
            return Err(Failure::usage("--kept", message));
        }
        if !(0.0..=1.0).contains(&kept) {
            let message = format!("--kept {kept}: a share is from 0 to 1");
            return Err(Failure::usage("--kept", message));
        }
        Ok(())
    }

    fn require_few_passes(&self, chunks: usize, steps: u32) -> Result<(), Failure> {
        let factors = [u64::from(self.microbatches), u64::from(self.devices()), chunks as u64];
        let each = factors.iter().fold(2u64, |product, &factor| product.saturating_mul(factor));
        let passes = each.saturating_mul(u64::from(steps));
        if passes <= MOST_CELLS {
            return Ok(());
        }
        let message = format!(
            "{} devices with {} micro-batches, {chunks} chunks and {steps} steps have about {passes} \
             passes; at most {MOST_CELLS} are drawn",
            self.devices(),
            self.microbatches
        );
        Err(Failure::usage("--stages", message))
    }
}

/// The longest time that is taken.
const LONGEST: f64 = 1e6;

fn program(error: ProgramError) -> Failure {
    shardloom::Error::from(error).into()
}

/// A time with no more digits than it needs, and no more than six after the point.
fn number(time: f64) -> f64 {
    (time * 1e6).round() / 1e6
}
