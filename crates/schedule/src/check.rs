//! The checker: proves of given orders what every schedule promises.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, Instance, Pass, Schedule, StageMap, Turn};
use crate::ScheduleError;

/// Checks that each stage runs each pass of each of its micro-batches exactly once (backward whole, or
/// input gradients and later weight gradients), and that dependencies can be met with at most `buffers`
/// messages waiting on each way between two stages (no deadlock). Returns for each device the most
/// micro-batches in flight: from a stage's forward pass to the end of its backward pass, weight
/// gradients included, summed over the device's stages.
///
/// A send blocks while its `buffers` are full; stages of one device hand over without a message.
/// Executing greedily is conclusive: running a device that can run never takes away another's ability
/// to run, so if greedy execution stops, every execution does.
///
/// A schedule without flush is checked over as many steps as it runs ahead, and two more.
///
/// # Errors
/// The first promise that is broken, with device and cell.
pub fn check(schedule: &Schedule, buffers: usize) -> Result<Vec<usize>, ScheduleError> {
    let map = &schedule.map;
    let steps = match schedule.ahead() {
        0 => 1,
        ahead => ahead + 2,
    };
    for (device, order) in schedule.orders.iter().enumerate() {
        let early =
            |cell: &Cell| cell.pass != Pass::Forward && cell.microbatch >= map.microbatches();
        if let Some(cell) = order.iter().flat_map(|turn| turn.cells()).find(early) {
            let cell = map.cell_text(device, cell);
            let message =
                format!("device {device} runs {cell}, and only forwards may be of later steps");
            return Err(ScheduleError::Rule(message));
        }
    }
    let orders = schedule.unrolled(steps);
    check_passes(map, &orders, steps * map.microbatches())?;
    Execution::new(map, buffers).run(&orders)
}

/// Whether every pass that belongs to the steps runs once, where its stage lives.
fn check_passes(map: &StageMap, orders: &[Vec<Turn>], end: u32) -> Result<(), ScheduleError> {
    let refuse = |device: usize, cell: Cell, what: &str| {
        let cell = map.cell_text(device, cell);
        Err(ScheduleError::Rule(format!("device {device} {what} {cell}")))
    };
    if orders.len() != map.devices() {
        let message = format!("{} orders for {} devices", orders.len(), map.devices());
        return Err(ScheduleError::Rule(message));
    }
    for (device, order) in orders.iter().enumerate() {
        let mut seen: BTreeSet<Cell> = BTreeSet::new();
        for cell in order.iter().flat_map(|turn| turn.cells()) {
            let runs = |pass| seen.contains(&Cell { pass, ..cell });
            let belongs = map.device(cell.instance) == device
                && cell.microbatch < end
                && map.feeds(cell.instance, cell.microbatch);
            let twice = match cell.pass {
                Pass::Forward => false,
                Pass::Backward => runs(Pass::BackwardInput) || runs(Pass::BackwardWeight),
                Pass::BackwardInput | Pass::BackwardWeight => runs(Pass::Backward),
            };
            if !belongs || twice || !seen.insert(cell) {
                return refuse(device, cell, "runs, twice or where it does not belong,");
            }
        }
        for instance in map.instances_on(device) {
            for microbatch in (0..end).filter(|&it| map.feeds(instance, it)) {
                let cell = |pass| Cell { pass, instance, microbatch };
                let whole = seen.contains(&cell(Pass::Backward));
                let needed: &[Pass] = match whole {
                    true => &[Pass::Forward],
                    false => &[Pass::Forward, Pass::BackwardInput, Pass::BackwardWeight],
                };
                let missing = needed.iter().map(|&pass| cell(pass)).find(|it| !seen.contains(it));
                match missing {
                    Some(missing) if missing.pass == Pass::Forward => {
                        return refuse(device, missing, "never runs");
                    }
                    // Neither whole nor in parts: say it as most schedules have it.
                    Some(_) if !seen.contains(&cell(Pass::BackwardInput)) => {
                        return refuse(device, cell(Pass::Backward), "never runs");
                    }
                    Some(missing) => return refuse(device, missing, "never runs"),
                    None => {}
                }
            }
        }
    }
    Ok(())
}

/// A greedy execution with bounded buffers.
struct Execution<'m> {
    map: &'m StageMap,
    buffers: usize,
    done: BTreeSet<Cell>,
    /// Messages sent to a stage and not yet received: activations, and gradients.
    waiting: BTreeMap<(Instance, bool), usize>,
    in_flight: Vec<usize>,
    peak: Vec<usize>,
}

impl<'m> Execution<'m> {
    fn new(map: &'m StageMap, buffers: usize) -> Execution<'m> {
        let devices = map.devices();
        Execution {
            map,
            buffers,
            done: BTreeSet::new(),
            waiting: BTreeMap::new(),
            in_flight: vec![0; devices],
            peak: vec![0; devices],
        }
    }

    fn run(mut self, orders: &[Vec<Turn>]) -> Result<Vec<usize>, ScheduleError> {
        let mut next = vec![0; orders.len()];
        loop {
            let mut moved = false;
            for (device, order) in orders.iter().enumerate() {
                while let Some(&turn) = order.get(next[device]) {
                    if !self.is_ready(turn) {
                        break;
                    }
                    turn.cells().for_each(|cell| self.execute(device, cell));
                    next[device] += 1;
                    moved = true;
                }
            }
            if next.iter().zip(orders).all(|(&next, order)| next == order.len()) {
                return Ok(self.peak);
            }
            if !moved {
                let stuck = orders.iter().zip(&next).enumerate().filter_map(|(device, it)| {
                    let turn = it.0.get(*it.1)?;
                    Some(format!("device {device} at {}", self.map.text(device, *turn)))
                });
                let stuck: Vec<String> = stuck.collect();
                let buffers = self.buffers;
                let message = format!("deadlock with {buffers} buffers: {}", stuck.join(", "));
                return Err(ScheduleError::Rule(message));
            }
        }
    }

    /// The stage that a pass receives from and the one it sends to, if they are not on this device.
    fn ways(&self, cell: Cell) -> (Option<Instance>, Option<Instance>) {
        let device = self.map.device(cell.instance);
        let other = |it: &Instance| self.map.device(*it) != device;
        let (before, after) = (self.map.before(cell.instance), self.map.after(cell.instance));
        match cell.pass {
            Pass::Forward => (before.filter(other), after.filter(other)),
            Pass::Backward | Pass::BackwardInput => (after.filter(other), before.filter(other)),
            Pass::BackwardWeight => (None, None),
        }
    }

    /// Whether what the passes of a turn need is there, and there is room for what they send.
    fn is_ready(&self, turn: Turn) -> bool {
        let way = |cell: Cell| Some((self.ways(cell).1?, cell.pass == Pass::Forward));
        let has_room = |to: (Instance, bool)| {
            let waiting = self.waiting.get(&to).copied().unwrap_or(0);
            waiting + turn.cells().filter(|&cell| way(cell) == Some(to)).count() <= self.buffers
        };
        let has_all = |cell: Cell| {
            let done = |any: &[Cell]| any.iter().any(|it| self.done.contains(it));
            let mut requirements = super::requirements(self.map, cell).into_iter().flatten();
            requirements.all(|required| done(required.as_slice()))
        };
        turn.cells().all(|cell| has_all(cell) && way(cell).is_none_or(has_room))
    }

    fn execute(&mut self, device: usize, cell: Cell) {
        let forward = cell.pass == Pass::Forward;
        let (from, to) = self.ways(cell);
        if from.is_some()
            && let Some(waiting) = self.waiting.get_mut(&(cell.instance, forward))
        {
            *waiting -= 1;
        }
        if let Some(to) = to {
            *self.waiting.entry((to, forward)).or_default() += 1;
        }
        if forward {
            self.in_flight[device] += 1;
            self.peak[device] = self.peak[device].max(self.in_flight[device]);
        }
        if cell.pass.ends() {
            self.in_flight[device] -= 1;
        }
        self.done.insert(cell);
    }
}
