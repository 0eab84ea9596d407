//! How long a schedule takes when passes and messages take given times.

use shardloom_plan::PassTimes;

use super::pass_table::PassEnds;
use super::{Action, Pass, PassKind, Schedule, StageMap};
use crate::ScheduleError;

/// When a device does what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// What it does.
    pub action: Action,
    /// From when.
    pub start: f64,
    /// Until when.
    pub end: f64,
}

/// When everything happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Each device's actions, in order.
    pub actions: Vec<Vec<Timed>>,
    /// First start to last end.
    pub makespan: f64,
    /// Share of `devices x makespan` in which devices stand idle.
    pub bubble_fraction: f64,
}

impl Timing {
    /// The longest time that a device takes from its own first start to its own last end.
    pub fn longest_span(&self) -> f64 {
        self.actions.iter().filter_map(|actions| span(actions)).fold(0.0, f64::max)
    }

    /// The largest share of a device's own span, from its first start to its last end, in which it stands
    /// idle: what is left of the bubble where devices begin their next step without waiting for others,
    /// which is how Qi et al. (zero bubble, arXiv 2401.10241, section 2.3) count it.
    pub fn span_bubble_fraction(&self) -> f64 {
        let idle = |actions: &Vec<Timed>| {
            let busy: f64 = actions.iter().map(|action| action.end - action.start).sum();
            span(actions).filter(|&span| span > 0.0).map(|span| 1.0 - busy / span)
        };
        self.actions.iter().filter_map(idle).fold(0.0, f64::max)
    }
}

/// From the first start to the last end.
fn span(actions: &[Timed]) -> Option<f64> {
    Some(actions.last()?.end - actions.first()?.start)
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
    candidates: impl IntoIterator<Item = Vec<Vec<Action>>>,
) -> Vec<Vec<Action>> {
    let Purpose { times, succession } = purpose;
    let mut best: Option<([f64; 2], Vec<Vec<Action>>)> = None;
    for orders in candidates {
        let Some((span, makespan)) = lengths(map, times, &orders) else { continue };
        let length = match succession {
            Succession::Own => [span, makespan],
            Succession::Common => [makespan, span],
        };
        if best.as_ref().is_none_or(|(least, _)| length < *least) {
            best = Some((length, orders));
        }
    }
    best.map(|(_, orders)| orders).expect("some candidate does not deadlock")
}

/// Of a step of these orders the longest span of a device and the makespan, as [`time`] has them; none if they
/// deadlock.
fn lengths(map: &StageMap, times: &PassTimes, orders: &[Vec<Action>]) -> Option<(f64, f64)> {
    let duration = |action: Action| action.passes().map(|pass| pass_time(map, times, pass)).sum();
    let mut spans: Vec<Option<(f64, f64)>> = vec![None; orders.len()];
    let done = follow(map, orders, 1, times.message, duration, |device, timed| {
        let (start, _) = spans[device].unwrap_or((timed.start, timed.end));
        spans[device] = Some((start, timed.end));
    });
    if done.iter().zip(orders).any(|(&done, order)| done < order.len()) {
        return None;
    }
    let spans = || spans.iter().flatten();
    let span = spans().map(|(start, end)| end - start).fold(0.0, f64::max);
    Some((span, spans().map(|&(_, end)| end).fold(0.0, f64::max)))
}

/// Times `steps` steps of `schedule` in a row, with the same times on all stages: `times` are a whole
/// device's for one micro-batch, of which a stage takes its [share](StageMap::share).
///
/// # Errors
/// If the orders deadlock.
pub fn time(schedule: &Schedule, steps: u32, times: &PassTimes) -> Result<Timing, ScheduleError> {
    let pass = |pass: Pass| pass_time(&schedule.map, times, pass);
    time_with(schedule, steps, times.message, |action| action.passes().map(pass).sum())
}

/// How long a pass takes of which a whole device's times are given.
pub(super) fn pass_time(map: &StageMap, times: &PassTimes, pass: Pass) -> f64 {
    let whole = match pass.kind {
        PassKind::Forward => times.forward,
        PassKind::Backward => times.input + times.weight,
        PassKind::BackwardInput => times.input,
        PassKind::BackwardWeight => times.weight,
    };
    whole * map.share(pass.instance)
}

/// Times `steps` steps of `schedule` in a row, where a message between devices takes `message` and a
/// action what `duration` says. An action of two passes starts when both can.
///
/// # Errors
/// If the orders deadlock.
pub fn time_with(
    schedule: &Schedule,
    steps: u32,
    message: f64,
    duration: impl Fn(Action) -> f64,
) -> Result<Timing, ScheduleError> {
    let map = &schedule.map;
    let orders = schedule.unrolled(steps);
    let mut actions: Vec<Vec<Timed>> =
        orders.iter().map(|order| Vec::with_capacity(order.len())).collect();
    follow(map, &orders, steps, message, duration, |device, timed| actions[device].push(timed));
    for (device, order) in orders.iter().enumerate() {
        if let Some(&action) = order.get(actions[device].len()) {
            let action = map.text(device, action);
            let message = format!("deadlock: device {device} waits at {action}");
            return Err(ScheduleError::Rule(message));
        }
    }
    let ends = actions.iter().filter_map(|actions| Some(actions.last()?.end));
    let makespan = ends.fold(0.0, f64::max);
    let busy: f64 = actions.iter().flatten().map(|timed| timed.end - timed.start).sum();
    let bubble_fraction = match makespan > 0.0 {
        true => 1.0 - busy / (orders.len() as f64 * makespan),
        false => 0.0,
    };
    Ok(Timing { actions, makespan, bubble_fraction })
}

/// Runs the `orders` of so many steps, each action as soon as it can, and says of each when it is. Returns how
/// many of its actions each device comes to.
fn follow(
    map: &StageMap,
    orders: &[Vec<Action>],
    steps: u32,
    message: f64,
    duration: impl Fn(Action) -> f64,
    mut note: impl FnMut(usize, Timed),
) -> Vec<usize> {
    let mut ends = PassEnds::new(map, steps);
    let mut clocks = vec![0.0f64; orders.len()];
    let mut done = vec![0; orders.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (device, order) in orders.iter().enumerate() {
            while let Some(&action) = order.get(done[device]) {
                let mut ready = Some(clocks[device]);
                for required in action.passes().flat_map(|pass| super::requirements(map, pass)) {
                    let Some(required) = required else { continue };
                    let done = required.as_slice().iter().find_map(|&it| Some((it, ends.get(it)?)));
                    ready = ready.zip(done).map(|(ready, (pass, end))| {
                        let travels = map.device(pass.instance) != device;
                        ready.max(if travels { end + message } else { end })
                    });
                }
                let Some(start) = ready else { break };
                let end = start + duration(action);
                clocks[device] = end;
                action.passes().for_each(|pass| ends.insert(pass, end));
                note(device, Timed { action, start, end });
                done[device] += 1;
                moved = true;
            }
        }
    }
    done
}
