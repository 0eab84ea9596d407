//! Filling the gaps of an order with weight gradients (Qi et al. 2024, arXiv 2401.10241, section 3.1):
//! nobody waits for them, so they go where a device would stand idle, or where it needs the memory.

use std::collections::VecDeque;

use shardloom_plan::PassTimes;

use super::first::First;
use super::pass_table::PassEnds;
use super::timing::pass_time;
use super::{Action, Pass, PassKind, StageMap};

/// A device on the way through its order.
#[derive(Default)]
struct Device {
    order: Vec<Action>,
    /// When it started, if it did.
    began: Option<f64>,
    /// When it is done with what it has run.
    clock: f64,
    /// For how long it stood idle since it started.
    idle: f64,
    /// Micro-batches that went forward and have no input gradients yet.
    forward: usize,
    /// Weight gradients that can run, oldest first.
    waiting: VecDeque<Pass>,
}

/// What a device has room for, in units of what a forward pass of a stage leaves.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    /// The most of it, summed over a device's stages.
    limit: f64,
    /// What is left of a unit between input and weight gradients.
    kept: f64,
}

impl Memory {
    /// Room for so many micro-batches from forward pass to weight gradients.
    pub(super) fn microbatches(limit: usize) -> Memory {
        Memory { limit: limit as f64, kept: 1.0 }
    }

    /// Room for what so many forward passes leave, of which input gradients free all but a share.
    pub(super) fn forwards(limit: usize, kept: f64) -> Memory {
        Memory { limit: limit as f64, kept }
    }

    /// How many forwards there is room for before the first gradient.
    pub(super) fn first(self) -> u32 {
        self.limit as u32
    }

    /// Whether there is room for `forward` micro-batches that went forward, and `waiting` more that wait
    /// for their weight gradients.
    fn holds(self, forward: usize, waiting: usize) -> bool {
        // Shares add up to whole units but for rounding.
        forward as f64 + waiting as f64 * self.kept <= self.limit + 1e-9
    }
}

/// Which of the gaps that are too short for them weight gradients fill.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    /// None.
    Never,
    /// Those after which the device would have stood idle for longer than any other.
    WhereCostly,
    /// All.
    Always,
}

/// An execution that decides where weight gradients go.
pub(super) struct Filling<'a> {
    map: &'a StageMap,
    times: &'a PassTimes,
    memory: Memory,
    short: Short,
    /// For how long each device may stand idle anyway.
    allowance: Vec<f64>,
    /// The longest of these.
    most_allowed: f64,
    /// For how long the device stood idle that did for longest.
    most_idle: f64,
    ends: PassEnds,
    devices: Vec<Device>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(
        map: &'a StageMap,
        times: &'a PassTimes,
        memory: Memory,
        eager: bool,
    ) -> Filling<'a> {
        let short = if eager { Short::Always } else { Short::WhereCostly };
        Filling { short, ..Filling::allowing(map, times, memory, vec![0.0; map.devices()]) }
    }

    /// An execution in which devices may stand idle for so long, if as long as the one that may longest.
    pub(super) fn allowing(
        map: &'a StageMap,
        times: &'a PassTimes,
        memory: Memory,
        allowance: Vec<f64>,
    ) -> Filling<'a> {
        let devices = (0..map.devices()).map(|_| Device::default()).collect();
        let (short, ends) = (Short::WhereCostly, PassEnds::new(map, 1));
        let most_allowed = allowance.iter().copied().fold(0.0, f64::max);
        let most_idle = 0.0;
        Filling { map, times, memory, short, allowance, most_allowed, most_idle, ends, devices }
    }

    /// For how long `device` stood idle since it started.
    pub(super) fn idle(&self, device: usize) -> f64 {
        self.devices[device].idle
    }

    /// When `device` is done with what it has run.
    pub(super) fn clock(&self, device: usize) -> f64 {
        self.devices[device].clock
    }

    /// When what `pass` waits for is there; none if some of it has not run.
    pub(super) fn arrival(&self, pass: Pass) -> Option<f64> {
        let mut arrival = 0.0f64;
        for required in super::requirements(self.map, pass).into_iter().flatten() {
            let mut done = required.as_slice().iter();
            let (required, end) = done.find_map(|&it| Some((it, self.ends.get(it)?)))?;
            let travels = self.map.device(required.instance) != self.map.device(pass.instance);
            arrival = arrival.max(if travels { end + self.times.message } else { end });
        }
        Some(arrival)
    }

    /// How much longer `device` may stand idle without standing idle longer than every other, or than it is
    /// allowed to.
    pub(super) fn slack(&self, device: usize) -> f64 {
        let allowed = self.most_allowed - self.allowance[device];
        self.most_idle.max(allowed) - self.devices[device].idle
    }

    /// How long the weight gradients take that must run before `device` has room for a forward pass.
    pub(super) fn time_to_make_room(&self, device: usize) -> f64 {
        let it = &self.devices[device];
        let all = it.waiting.len();
        let enough = |count: &usize| self.memory.holds(it.forward + 1, all - count);
        let needed = (0..all).find(enough).unwrap_or(all);
        it.waiting.iter().take(needed).map(|&pass| pass_time(self.map, self.times, pass)).sum()
    }

    /// Whether `device` has room for a forward pass once all its weight gradients have run that can.
    pub(super) fn can_make_room(&self, device: usize) -> bool {
        self.memory.holds(self.devices[device].forward + 1, 0)
    }

    /// Whether `device` has room for so many forward passes.
    pub(super) fn has_room_for(&self, device: usize, forwards: usize) -> bool {
        let it = &self.devices[device];
        self.memory.holds(it.forward + forwards, it.waiting.len())
    }

    /// Runs a forward pass or input gradients that can run, and before it the weight gradients that
    /// there is time for or that must make room.
    pub(super) fn run(&mut self, pass: Pass) {
        self.run_with(pass, self.short);
    }

    /// The same, where weight gradients fill short gaps as given.
    pub(super) fn run_with(&mut self, pass: Pass, short: Short) {
        let device = self.map.device(pass.instance);
        let arrival = self.arrival(pass).expect("a schedule runs what can run");
        if pass.kind == PassKind::Forward {
            while !self.has_room_for(device, 1) && self.run_weight(device) {}
        }
        while let Some(&weight) = self.devices[device].waiting.front() {
            let gap = arrival - self.clock(device);
            let fits = pass_time(self.map, self.times, weight) <= gap;
            let fills = match short {
                Short::Never => false,
                Short::WhereCostly => gap > 0.0 && gap > self.slack(device),
                Short::Always => gap > 0.0,
            };
            if !fits && !fills {
                break;
            }
            self.run_weight(device);
        }
        self.put(device, pass, arrival);
    }

    /// Runs all weight gradients that are left and returns the orders.
    pub(super) fn finish(mut self) -> Vec<Vec<Action>> {
        for device in 0..self.devices.len() {
            while self.run_weight(device) {}
        }
        self.devices.into_iter().map(|it| it.order).collect()
    }

    /// Runs the oldest weight gradients on `device`. Whether there were any.
    fn run_weight(&mut self, device: usize) -> bool {
        let pass = self.devices[device].waiting.pop_front();
        if let Some(pass) = pass {
            self.put(device, pass, 0.0);
        }
        pass.is_some()
    }

    fn put(&mut self, device: usize, pass: Pass, arrival: f64) {
        let it = &mut self.devices[device];
        let start = it.clock.max(arrival);
        match it.began {
            Some(_) => {
                it.idle += start - it.clock;
                self.most_idle = self.most_idle.max(it.idle);
            }
            None => it.began = Some(start),
        }
        it.clock = start + pass_time(self.map, self.times, pass);
        it.order.push(Action::Alone(pass));
        let end = it.clock;
        self.ends.insert(pass, end);
        match pass.kind {
            PassKind::Forward => it.forward += 1,
            PassKind::BackwardInput => {
                it.forward -= 1;
                it.waiting.push_back(Pass { kind: PassKind::BackwardWeight, ..pass });
            }
            PassKind::Backward => it.forward -= 1,
            // It has just left those that wait.
            PassKind::BackwardWeight => {}
        }
    }
}

/// Puts weight gradients into orders of forward passes and input gradients that do not deadlock.
pub(super) fn fill(
    map: &StageMap,
    times: &PassTimes,
    orders: &[Vec<Pass>],
    memory: Memory,
    eager: bool,
) -> Vec<Vec<Action>> {
    let mut filling = Filling::new(map, times, memory, eager);
    let mut next = vec![0; orders.len()];
    let start = |filling: &Filling, next: &[usize], device: usize| {
        let arrival = filling.arrival(*orders[device].get(next[device])?)?;
        Some(arrival.max(filling.clock(device)))
    };
    // Earliest first, so that idle times are compared at about the same time.
    let mut first = First::new(orders.len());
    for device in 0..orders.len() {
        first.set(device, start(&filling, &next, device));
    }
    while let Some((_, device)) = first.get() {
        let pass = orders[device][next[device]];
        filling.run(pass);
        next[device] += 1;
        // Only the device itself and those of the stages next to this one may have waited for it.
        let beside = [map.before(pass.instance), map.after(pass.instance)];
        let beside = beside.into_iter().flatten().map(|instance| map.device(instance));
        for device in [device].into_iter().chain(beside) {
            first.set(device, start(&filling, &next, device));
        }
    }
    filling.finish()
}

/// What of `orders` is no weight gradients.
pub(super) fn without_weights(orders: &[Vec<Action>]) -> Vec<Vec<Pass>> {
    let order = |order: &Vec<Action>| {
        let passes = order.iter().flat_map(|action| action.passes());
        passes.filter(|pass| pass.kind != PassKind::BackwardWeight).collect()
    };
    orders.iter().map(order).collect()
}
