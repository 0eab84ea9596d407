//! How long a schedule takes when passes and messages take given times.

use std::collections::BTreeMap;

use shardloom_plan::PassTimes;

use super::{Cell, Pass, Schedule, StageMap, Turn};
use crate::ScheduleError;

/// When a device does what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// What it does.
    pub turn: Turn,
    /// From when.
    pub start: f64,
    /// Until when.
    pub end: f64,
}

/// When everything happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Each device's turns, in order.
    pub turns: Vec<Vec<Timed>>,
    /// First start to last end.
    pub makespan: f64,
    /// Share of `devices x makespan` in which devices stand idle.
    pub bubble_fraction: f64,
}

impl Timing {
    /// The longest time that a device takes from its own first start to its own last end.
    pub fn longest_span(&self) -> f64 {
        self.turns.iter().filter_map(|turns| span(turns)).fold(0.0, f64::max)
    }

    /// The largest share of a device's own span, from its first start to its last end, in which it stands
    /// idle: what is left of the bubble where devices begin their next step without waiting for others,
    /// which is how Qi et al. (zero bubble, arXiv 2401.10241, section 2.3) count it.
    pub fn span_bubble_fraction(&self) -> f64 {
        let idle = |turns: &Vec<Timed>| {
            let busy: f64 = turns.iter().map(|turn| turn.end - turn.start).sum();
            span(turns).filter(|&span| span > 0.0).map(|span| 1.0 - busy / span)
        };
        self.turns.iter().filter_map(idle).fold(0.0, f64::max)
    }
}

/// From the first start to the last end.
fn span(turns: &[Timed]) -> Option<f64> {
    Some(turns.last()?.end - turns.first()?.start)
}

/// How steps follow each other, and so what of a step's orders should be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// Each device begins its next step when it is through with this one. The longest time that a device
    /// takes from its own start to its own end counts: those that start late also end late.
    Own,
    /// All devices wait for each other between steps, such as for the norm of all gradients. The time from
    /// the first start to the last end counts.
    Common,
}

/// What an order is made for.
#[derive(Clone, Copy)]
pub(super) struct Purpose<'a> {
    pub times: &'a PassTimes,
    pub succession: Succession,
}

/// The orders that are shortest in what counts for their purpose, of equals those that are shortest in
/// the other sense, of equals the first.
pub(super) fn best(
    map: &StageMap,
    purpose: Purpose<'_>,
    candidates: impl IntoIterator<Item = Vec<Vec<Turn>>>,
) -> Vec<Vec<Turn>> {
    let Purpose { times, succession } = purpose;
    let mut best: Option<([f64; 2], Vec<Vec<Turn>>)> = None;
    for orders in candidates {
        let schedule = Schedule { map: map.clone(), orders };
        let Ok(timing) = time(&schedule, 1, times) else { continue };
        let (span, makespan) = (timing.longest_span(), timing.makespan);
        let length = match succession {
            Succession::Own => [span, makespan],
            Succession::Common => [makespan, span],
        };
        if best.as_ref().is_none_or(|(least, _)| length < *least) {
            best = Some((length, schedule.orders));
        }
    }
    best.map(|(_, orders)| orders).expect("some candidate does not deadlock")
}

/// Times `steps` steps of `schedule` in a row, with the same times on all stages: `times` are a whole
/// device's for one micro-batch, of which a stage takes its [share](StageMap::share).
///
/// # Errors
/// If the orders deadlock.
pub fn time(schedule: &Schedule, steps: u32, times: &PassTimes) -> Result<Timing, ScheduleError> {
    let cell = |cell: Cell| cell_time(&schedule.map, times, cell);
    time_with(schedule, steps, times.message, |turn| turn.cells().map(cell).sum())
}

/// How long a pass takes of which a whole device's times are given.
pub(super) fn cell_time(map: &StageMap, times: &PassTimes, cell: Cell) -> f64 {
    let whole = match cell.pass {
        Pass::Forward => times.forward,
        Pass::Backward => times.input + times.weight,
        Pass::BackwardInput => times.input,
        Pass::BackwardWeight => times.weight,
    };
    whole * map.share(cell.instance)
}

/// Times `steps` steps of `schedule` in a row, where a message between devices takes `message` and a
/// turn what `duration` says. A turn of two passes starts when both can.
///
/// # Errors
/// If the orders deadlock.
pub fn time_with(
    schedule: &Schedule,
    steps: u32,
    message: f64,
    duration: impl Fn(Turn) -> f64,
) -> Result<Timing, ScheduleError> {
    let map = &schedule.map;
    let orders = schedule.unrolled(steps);
    let mut ends: BTreeMap<Cell, f64> = BTreeMap::new();
    let mut clocks = vec![0.0f64; orders.len()];
    let mut turns: Vec<Vec<Timed>> = vec![vec![]; orders.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (device, order) in orders.iter().enumerate() {
            while let Some(&turn) = order.get(turns[device].len()) {
                let mut ready = Some(clocks[device]);
                for required in turn.cells().flat_map(|cell| super::requirements(map, cell)) {
                    let Some(required) = required else { continue };
                    let done = required.as_slice().iter().find_map(|it| Some((it, ends.get(it)?)));
                    ready = ready.zip(done).map(|(ready, (cell, &end))| {
                        let travels = map.device(cell.instance) != device;
                        ready.max(if travels { end + message } else { end })
                    });
                }
                let Some(start) = ready else { break };
                let end = start + duration(turn);
                clocks[device] = end;
                ends.extend(turn.cells().map(|cell| (cell, end)));
                turns[device].push(Timed { turn, start, end });
                moved = true;
            }
        }
    }
    for (device, order) in orders.iter().enumerate() {
        if let Some(&turn) = order.get(turns[device].len()) {
            let turn = map.text(device, turn);
            let message = format!("deadlock: device {device} waits at {turn}");
            return Err(ScheduleError::Rule(message));
        }
    }
    let makespan = clocks.iter().copied().fold(0.0, f64::max);
    let busy: f64 = turns.iter().flatten().map(|timed| timed.end - timed.start).sum();
    let bubble_fraction = match makespan > 0.0 {
        true => 1.0 - busy / (orders.len() as f64 * makespan),
        false => 0.0,
    };
    Ok(Timing { turns, makespan, bubble_fraction })
}
