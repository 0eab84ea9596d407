//! The checker: proves of given orders what every schedule promises.

use std::collections::BTreeMap;

use super::pass_table::PassSet;
use super::{Action, Instance, Pass, PassKind, Schedule, StageMap};
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
/// The first promise that is broken, with device and pass.
pub fn check(schedule: &Schedule, buffers: usize) -> Result<Vec<usize>, ScheduleError> {
    let map = &schedule.map;
    let steps = match schedule.ahead() {
        0 => 1,
        ahead => ahead + 2,
    };
    for (device, order) in schedule.orders.iter().enumerate() {
        let early =
            |pass: &Pass| pass.kind != PassKind::Forward && pass.microbatch >= map.microbatches();
        if let Some(pass) = order.iter().flat_map(|action| action.passes()).find(early) {
            let pass = map.pass_text(device, pass);
            let message =
                format!("device {device} runs {pass}, and only forwards may be of later steps");
            return Err(ScheduleError::Rule(message));
        }
    }
    let orders = schedule.unrolled(steps);
    check_passes(map, &orders, steps)?;
    Execution::new(map, buffers, steps).run(&orders)
}

/// Whether every pass that belongs to the steps runs once, where its stage lives.
fn check_passes(map: &StageMap, orders: &[Vec<Action>], steps: u32) -> Result<(), ScheduleError> {
    let end = steps * map.microbatches();
    let refuse = |device: usize, pass: Pass, what: &str| {
        let pass = map.pass_text(device, pass);
        Err(ScheduleError::Rule(format!("device {device} {what} {pass}")))
    };
    if orders.len() != map.devices() {
        let message = format!("{} orders for {} devices", orders.len(), map.devices());
        return Err(ScheduleError::Rule(message));
    }
    let mut seen = PassSet::new(map, steps);
    let mut stages: Vec<Vec<Instance>> = vec![vec![]; map.devices()];
    map.instances().for_each(|instance| stages[map.device(instance)].push(instance));
    for (device, order) in orders.iter().enumerate() {
        for pass in order.iter().flat_map(|action| action.passes()) {
            let runs = |kind| seen.contains(Pass { kind, ..pass });
            let belongs = map.device(pass.instance) == device
                && pass.microbatch < end
                && map.feeds(pass.instance, pass.microbatch);
            let twice = match pass.kind {
                PassKind::Forward => false,
                PassKind::Backward => {
                    runs(PassKind::BackwardInput) || runs(PassKind::BackwardWeight)
                }
                PassKind::BackwardInput | PassKind::BackwardWeight => runs(PassKind::Backward),
            };
            if !belongs || twice || !seen.insert(pass) {
                return refuse(device, pass, "runs, twice or where it does not belong,");
            }
        }
        for &instance in &stages[device] {
            let of_step = |step: u32| {
                map.microbatches_of(instance).iter().map(move |it| step * map.microbatches() + it)
            };
            for microbatch in (0..steps).flat_map(of_step) {
                let pass = |kind| Pass { kind, instance, microbatch };
                let whole = seen.contains(pass(PassKind::Backward));
                let needed: &[PassKind] = match whole {
                    true => &[PassKind::Forward],
                    false => {
                        &[PassKind::Forward, PassKind::BackwardInput, PassKind::BackwardWeight]
                    }
                };
                let missing = needed.iter().map(|&kind| pass(kind)).find(|&it| !seen.contains(it));
                match missing {
                    Some(missing) if missing.kind == PassKind::Forward => {
                        return refuse(device, missing, "never runs");
                    }
                    // Neither whole nor in parts: say it as most schedules have it.
                    Some(_) if !seen.contains(pass(PassKind::BackwardInput)) => {
                        return refuse(device, pass(PassKind::Backward), "never runs");
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
    done: PassSet,
    /// Messages sent to a stage and not yet received: activations, and gradients.
    waiting: BTreeMap<(Instance, bool), usize>,
    in_flight: Vec<usize>,
    peak: Vec<usize>,
}

impl<'m> Execution<'m> {
    fn new(map: &'m StageMap, buffers: usize, steps: u32) -> Execution<'m> {
        let devices = map.devices();
        Execution {
            map,
            buffers,
            done: PassSet::new(map, steps),
            waiting: BTreeMap::new(),
            in_flight: vec![0; devices],
            peak: vec![0; devices],
        }
    }

    fn run(mut self, orders: &[Vec<Action>]) -> Result<Vec<usize>, ScheduleError> {
        let mut next = vec![0; orders.len()];
        loop {
            let mut moved = false;
            for (device, order) in orders.iter().enumerate() {
                while let Some(&action) = order.get(next[device]) {
                    if !self.is_ready(action) {
                        break;
                    }
                    action.passes().for_each(|pass| self.execute(device, pass));
                    next[device] += 1;
                    moved = true;
                }
            }
            if next.iter().zip(orders).all(|(&next, order)| next == order.len()) {
                return Ok(self.peak);
            }
            if !moved {
                let stuck = orders.iter().zip(&next).enumerate().filter_map(|(device, it)| {
                    let action = it.0.get(*it.1)?;
                    Some(format!("device {device} at {}", self.map.text(device, *action)))
                });
                let stuck: Vec<String> = stuck.collect();
                let buffers = self.buffers;
                let message = format!("deadlock with {buffers} buffers: {}", stuck.join(", "));
                return Err(ScheduleError::Rule(message));
            }
        }
    }

    /// The stage that a pass receives from and the one it sends to, if they are not on this device.
    fn ways(&self, pass: Pass) -> (Option<Instance>, Option<Instance>) {
        let device = self.map.device(pass.instance);
        let other = |it: &Instance| self.map.device(*it) != device;
        let (before, after) = (self.map.before(pass.instance), self.map.after(pass.instance));
        match pass.kind {
            PassKind::Forward => (before.filter(other), after.filter(other)),
            PassKind::Backward | PassKind::BackwardInput => {
                (after.filter(other), before.filter(other))
            }
            PassKind::BackwardWeight => (None, None),
        }
    }

    /// Whether what the passes of an action need is there, and there is room for what they send.
    fn is_ready(&self, action: Action) -> bool {
        let way = |pass: Pass| Some((self.ways(pass).1?, pass.kind == PassKind::Forward));
        let has_room = |to: (Instance, bool)| {
            let waiting = self.waiting.get(&to).copied().unwrap_or(0);
            waiting + action.passes().filter(|&pass| way(pass) == Some(to)).count() <= self.buffers
        };
        let has_all = |pass: Pass| {
            let done = |any: &[Pass]| any.iter().any(|&it| self.done.contains(it));
            let mut requirements = super::requirements(self.map, pass).into_iter().flatten();
            requirements.all(|required| done(required.as_slice()))
        };
        action.passes().all(|pass| has_all(pass) && way(pass).is_none_or(has_room))
    }

    fn execute(&mut self, device: usize, pass: Pass) {
        let forward = pass.kind == PassKind::Forward;
        let (from, to) = self.ways(pass);
        if from.is_some()
            && let Some(waiting) = self.waiting.get_mut(&(pass.instance, forward))
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
        if pass.kind.ends() {
            self.in_flight[device] -= 1;
        }
        self.done.insert(pass);
    }
}
