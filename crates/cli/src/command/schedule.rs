//! `shardloom schedule`: a schedule by itself.

use clap::Args;
use serde::Serialize;
use shardloom::plan::{Arrangement, PassTimes, ScheduleKind};
use shardloom::program::ProgramError;
use shardloom::program::quantity::{counted, percent};
use shardloom::schedule::{self, Notation, ScheduleError, StageMap, Succession, Timed};
use shardloom_report::{schedule_legend, schedule_table};

use super::in_options::{self, in_options};
use super::schedule_kind::{Named, listing, schedule_kind};
use super::slots::{Scale, Slots};
use super::stage_times::{GivenTimes, StageTimes};
use crate::failure::Failure;
use crate::number::{decimal, whole};
use crate::terminal::Terminal;

const EXAMPLES: &str = "Examples:
  shardloom schedule 1f1b --stages 4 --microbatches 8
  shardloom schedule interleaved --stages 4 --microbatches 8 --chunks 2
  shardloom schedule pipedream --stages 4 --microbatches 4 --steps 3
  shardloom schedule pipedream --replicas 2,1 --microbatches 4
  shardloom schedule gpipe --stages 4 --microbatches 8 --forward 1,2,1,1 --replicas 1,2,1,1
  shardloom schedule hanayo --stages 4 --microbatches 4 --backward 1 --message 0.25 --json";

/// Draw a pipeline schedule as a table
///
/// A time is that of a whole device, the same for all; where a device holds several stages, each takes
/// its share of them, and where r devices take turns at a stage, it takes each of them r times as long. A
/// time may also be given for each stage (1,2,1,1); with replicas the schedule is then drawn without them
/// first. Columns are slots of one length, as long as possible with every pass in whole slots. Messages do not
/// queue: each arrives its time after the pass that it comes from, however many are under way.
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}

Schedules, with other names: {}.

Passes: F forward, B backward, I and W its halves (input and weight gradients), then the micro-batch, \
@ and the device's chunk, < for a pipeline the reverse way; F3+B1< are two passes at once, . is idle.

With --json, `order` is what a plan with schedule = \"table\" has to train in this order.",
        listing())
)]
pub struct Schedule {
    /// Which schedule; see below
    #[arg(value_name = "KIND", value_parser = schedule_kind)]
    named: Named,

    /// Devices that the pipeline goes through
    #[arg(long, value_name = "P", value_parser = whole::<u32>, required_unless_present = "replicas")]
    stages: Option<u32>,

    /// Devices of each stage that take its micro-batches in turn: 2,1 for two and then one
    #[arg(
        long, value_name = "R,R", value_parser = whole::<u32>, value_delimiter = ',',
        conflicts_with = "chunks"
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

    /// Time of a forward pass through a device, or through each stage
    #[arg(
        long, value_name = "TIME,..", value_parser = decimal, value_delimiter = ',',
        default_value = "1"
    )]
    forward: Vec<f64>,

    /// Time of a backward pass, half of it for input gradients and half for weight gradients [default:
    /// 2, or twice --forward if that is given for each stage]
    #[arg(long, value_name = "TIME,..", value_parser = decimal, value_delimiter = ',')]
    backward: Option<Vec<f64>>,

    /// Time of input gradients alone
    #[arg(
        long, value_name = "TIME,..", value_parser = decimal, value_delimiter = ',',
        requires = "weight", conflicts_with = "backward"
    )]
    input: Option<Vec<f64>>,

    /// Time of weight gradients alone
    #[arg(
        long, value_name = "TIME,..", value_parser = decimal, value_delimiter = ',',
        requires = "input", conflicts_with = "backward"
    )]
    weight: Option<Vec<f64>>,

    /// Time of a message between devices, which waits for no other; `shardloom simulate` has a rank's
    /// messages go one after another
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
    actions: Vec<Vec<ActionTime>>,
    /// One step of each device, as a plan writes it.
    order: Vec<String>,
    /// The same with one device for each stage, where stages differ and some have several.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_replicas: Option<Box<Answer>>,
}

/// When a device does what, exactly.
#[derive(Serialize)]
struct ActionTime {
    action: String,
    start: f64,
    end: f64,
}

/// The most cells of a table that are drawn, and passes that are timed.
const MOST_CELLS: u64 = 4_000_000;

impl Schedule {
    /// Draws it.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        self.require_numbers()?;
        let replicas = self.replicas.as_deref();
        let without_replicas = match replicas.is_some() && self.times().by_stage() {
            true => Some(Box::new(self.answer(None)?)),
            false => None,
        };
        let answer = Answer { without_replicas, ..self.answer(replicas)? };
        if terminal.json() {
            return terminal.object(&answer);
        }
        if let Some(before) = &answer.without_replicas {
            terminal.line(format_args!("one device for each stage:"))?;
            self.draw(before, terminal)?;
            let replicas: Vec<String> =
                answer.replicas.iter().flatten().map(u32::to_string).collect();
            terminal
                .line(format_args!("\nwith {} devices for the stages:", replicas.join(", ")))?;
        }
        self.draw(&answer, terminal)
    }

    /// Draws what was found.
    fn draw(&self, answer: &Answer, terminal: Terminal) -> Result<(), Failure> {
        let colour = terminal.colour();
        terminal.text(schedule_table(&answer.rows, colour))?;
        terminal.text(schedule_legend(&answer.rows, colour))?;
        if !answer.exact_slots {
            terminal.line(format_args!(
                "columns are {} wide, and starts and ends rounded to them: the times have no common \
                 divisor that is not much smaller",
                number(answer.slot)
            ))?;
        }
        if self.message > 0.0 {
            terminal.line(format_args!(
                "messages take {} each and do not queue, however many are under way",
                number(self.message)
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

    /// The schedule where stages have so many replicas.
    fn answer(&self, replicas: Option<&[u32]>) -> Result<Answer, Failure> {
        let arrangement = self.named.kind.arrangement().unwrap_or(Arrangement::Chain);
        let chunks = self.chunks.map_or(arrangement.least_chunks(), |chunks| chunks as usize);
        let (devices, microbatches) = (self.devices(replicas), self.microbatches as usize);
        self.require_few_passes(devices, chunks, self.steps.unwrap_or(1))?;
        let map = self.map(replicas, arrangement, chunks).map_err(program)?;
        let given = self.times();
        let unit = Scale::of(&given.all(), chunks);
        let scale = unit.units();
        let times = StageTimes::of(&given, &map, unit).ok_or_else(|| self.unmatched(&map))?;
        self.require_few_cells(&map, &times, self.steps.unwrap_or(1))?;
        let schedule = self.schedule(map, &times.device)?;
        let ahead = schedule.ahead();
        let steps = self.steps.unwrap_or(match ahead {
            0 => 1,
            ahead => ahead + devices.saturating_mul(2).div_ceil(self.microbatches).max(2),
        });
        self.require_few_passes(devices, chunks, steps)?;
        let timing = timed(&schedule, steps, &times)?;
        let slots = Slots::of(&timing, &schedule.map, MOST_CELLS)
            .ok_or_else(|| self.too_many_cells(devices, &format!("over {MOST_CELLS}")))?;
        let waiting = (ahead as usize + 2) * microbatches;
        let peaks = schedule::check(&schedule, waiting).map_err(program)?;
        let steady_utilisation = match ahead {
            0 => None,
            _ => Some(self.steady_utilisation(&schedule, &times, chunks)?),
        };
        let action = |notation: &Notation, timed: &Timed| ActionTime {
            action: notation.text(timed.action),
            start: timed.start / scale,
            end: timed.end / scale,
        };
        let order = |(device, order): (usize, &Vec<schedule::Action>)| {
            let notation = schedule.map.notation(device);
            let texts = order.iter().map(|&action| notation.text(action));
            texts.collect::<Vec<_>>().join(" ")
        };
        let actions = timing.actions.iter().enumerate();
        let of_device = |(device, timed): (usize, &Vec<Timed>)| {
            let notation = schedule.map.notation(device);
            timed.iter().map(|it| action(&notation, it)).collect()
        };
        Ok(Answer {
            kind: self.named.kind.name(),
            stages: replicas.map_or(devices as usize, <[u32]>::len),
            replicas: replicas.map(<[u32]>::to_vec),
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
            actions: actions.map(of_device).collect(),
            order: schedule.orders.iter().enumerate().map(order).collect(),
            without_replicas: None,
        })
    }

    fn schedule(&self, map: StageMap, times: &PassTimes) -> Result<schedule::Schedule, Failure> {
        let zero_bubble = [ScheduleKind::ZeroBubbleH1, ScheduleKind::ZeroBubbleH2];
        let succession = match self.wait {
            true => Succession::Common,
            false => Succession::Own,
        };
        let built = match self.in_flight {
            None => schedule::Schedule::build_for(self.named.kind, map, times, succession),
            Some(limit) if zero_bubble.contains(&self.named.kind) => {
                schedule::Schedule::zero_bubble(map, times, limit as usize, succession)
            }
            Some(limit) => {
                let message = format!(
                    "--in-flight {limit}: only zb-h1 and zb-h2 are made for a limit; how many {} has in \
                     flight is part of what it is",
                    self.named.kind.name()
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
        times: &StageTimes,
        chunks: usize,
    ) -> Result<f64, Failure> {
        let devices = schedule.map.devices() as u32;
        // As many steps as fill the pipeline several times over; then as many again.
        let fill = devices.saturating_mul(4).div_ceil(self.microbatches);
        let steps = (schedule.ahead() + 2).max(fill);
        self.require_few_passes(devices, chunks, steps.saturating_mul(2))?;
        let timing = |steps| timed(schedule, steps, times);
        let (one, both) = (timing(steps)?, timing(steps * 2)?);
        let busy = |timing: &schedule::Timing| {
            (1.0 - timing.bubble_fraction) * timing.makespan * timing.actions.len() as f64
        };
        Ok((busy(&both) - busy(&one)) / (f64::from(devices) * (both.makespan - one.makespan)))
    }

    /// Devices in all.
    fn devices(&self, replicas: Option<&[u32]>) -> u32 {
        match replicas {
            Some(replicas) => replicas.iter().fold(0, |sum: u32, &it| sum.saturating_add(it)),
            None => self.stages(),
        }
    }

    /// Stages, or devices that the pipeline goes through.
    fn stages(&self) -> u32 {
        let replicas = self.replicas.as_ref().and_then(|it| u32::try_from(it.len()).ok());
        self.stages.or(replicas).unwrap_or(0)
    }

    /// Where stages live.
    fn map(
        &self,
        replicas: Option<&[u32]>,
        arrangement: Arrangement,
        chunks: usize,
    ) -> Result<StageMap, ScheduleError> {
        let microbatches = self.microbatches as usize;
        match replicas {
            Some(replicas) => {
                let replicas: Vec<usize> = replicas.iter().map(|&it| it as usize).collect();
                StageMap::new(Arrangement::taking_turns(&replicas)?, microbatches)
            }
            None => StageMap::arranged(arrangement, self.stages() as usize, chunks, microbatches),
        }
    }

    fn times(&self) -> GivenTimes {
        let backward = match (&self.backward, &self.forward[..]) {
            (Some(backward), _) => backward.clone(),
            (None, [_]) => vec![2.0],
            (None, forward) => forward.iter().map(|time| 2.0 * time).collect(),
        };
        let half: Vec<f64> = backward.iter().map(|time| time / 2.0).collect();
        let input = self.input.clone().unwrap_or_else(|| half.clone());
        let weight = self.weight.clone().unwrap_or(half);
        GivenTimes {
            passes: [self.forward.clone(), input, weight],
            message: self.message,
            kept: self.kept.unwrap_or(1.0),
        }
    }

    /// What to say where there are neither one nor as many times as stages.
    fn unmatched(&self, map: &StageMap) -> Failure {
        let stages = map.chains()[0].stages();
        let lists = self.lists();
        let wrong = lists.into_iter().find(|(_, times)| times.len() != 1 && times.len() != stages);
        let (name, times) = wrong.unwrap_or(("--forward", &self.forward));
        let times: Vec<String> = times.iter().map(f64::to_string).collect();
        let message = format!(
            "{name} {}: {} times for {stages} stages; give one for each stage, or one for all",
            times.join(","),
            times.len()
        );
        Failure::usage(name, message)
    }

    /// The times of passes that were given, with their options.
    fn lists(&self) -> Vec<(&'static str, &Vec<f64>)> {
        let lists = [
            ("--forward", Some(&self.forward)),
            ("--backward", self.backward.as_ref()),
            ("--input", self.input.as_ref()),
            ("--weight", self.weight.as_ref()),
        ];
        lists.into_iter().filter_map(|(name, times)| Some((name, times?))).collect()
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
        let takes_turns =
            matches!(self.named.kind.arrangement(), None | Some(Arrangement::TakingTurns));
        if self.replicas.is_some() && !takes_turns {
            let message = format!(
                "--replicas: replicas take micro-batches in turn in afab, 1f1b and pipedream, not in {}",
                self.named.kind.name()
            );
            return Err(Failure::usage("--replicas", message));
        }
        self.require_share()?;
        if let (Some(stages), Some(replicas)) = (self.stages, &self.replicas)
            && stages as usize != replicas.len()
        {
            let message =
                format!("--stages {stages}: --replicas has numbers for {} stages", replicas.len());
            return Err(Failure::usage("--stages", message));
        }
        let lists = self.lists().into_iter();
        let mut passes =
            lists.flat_map(|(name, times)| times.iter().map(move |&time| (name, time)));
        let fits = |time: f64| (1e-3..=LONGEST).contains(&time);
        if let Some((name, time)) = passes.find(|&(_, time)| !fits(time)) {
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
        if !matches!(self.named.kind, ScheduleKind::ZeroBubbleOneP | ScheduleKind::ZeroBubbleTwoP) {
            let message = format!(
                "--kept {kept}: only zb-1p and zb-2p are made for memory that passes free in part, and \
                 {} is not",
                self.named.kind.name()
            );
            return Err(Failure::usage("--kept", message));
        }
        if !(0.0..=1.0).contains(&kept) {
            let message = format!("--kept {kept}: a share is from 0 to 1");
            return Err(Failure::usage("--kept", message));
        }
        Ok(())
    }

    fn require_few_passes(&self, devices: u32, chunks: usize, steps: u32) -> Result<(), Failure> {
        let factors = [u64::from(self.microbatches), u64::from(devices), chunks as u64];
        let each = factors.iter().fold(2u64, |product, &factor| product.saturating_mul(factor));
        let passes = each.saturating_mul(u64::from(steps));
        if passes <= MOST_CELLS {
            return Ok(());
        }
        let message = format!(
            "{} with {} micro-batches, {} on each and {} have about {passes} passes; at most {MOST_CELLS} are \
             drawn{}",
            counted(devices as usize, "device"),
            self.microbatches,
            counted(chunks, "stage"),
            counted(steps as usize, "step"),
            if self.steps.is_none() && steps > 1 { " (--steps says how many steps)" } else { "" }
        );
        Err(Failure::usage("--stages", message))
    }

    /// Refuses a table that has too many cells whatever the order is.
    fn require_few_cells(
        &self,
        map: &StageMap,
        times: &StageTimes,
        steps: u32,
    ) -> Result<(), Failure> {
        let kind = self.named.kind;
        let makespan = times.least_makespan(map, kind, steps);
        let columns = Slots::fewest_columns(makespan, times.shortest_action(kind));
        let cells = columns.saturating_mul(map.devices() as u64);
        match cells <= MOST_CELLS {
            true => Ok(()),
            false => Err(self.too_many_cells(map.devices() as u32, &format!("at least {cells}"))),
        }
    }

    fn too_many_cells(&self, devices: u32, cells: &str) -> Failure {
        let message = format!(
            "{devices} devices: with {} micro-batches and these times there are {cells} cells; at most \
             {MOST_CELLS} are drawn",
            self.microbatches
        );
        Failure::usage("--stages", message)
    }
}

/// The longest time that is taken.
const LONGEST: f64 = 1e6;

/// When everything happens in so many steps.
fn timed(
    schedule: &schedule::Schedule,
    steps: u32,
    times: &StageTimes,
) -> Result<schedule::Timing, Failure> {
    let message = times.device.message;
    schedule::time_with(schedule, steps, message, |action| times.duration(action)).map_err(program)
}

fn program(error: ScheduleError) -> Failure {
    let error = ProgramError::from(error);
    in_options(error.into(), |key, value| match key {
        "pp" => Some(in_options::Named::of("--stages", value)),
        "chunks" => Some(in_options::Named::of("--chunks", value)),
        "microbatches" => Some(in_options::Named::of("--microbatches", value)),
        _ => None,
    })
}

/// A time with no more digits than it needs, and no more than six after the point.
fn number(time: f64) -> f64 {
    (time * 1e6).round() / 1e6
}
