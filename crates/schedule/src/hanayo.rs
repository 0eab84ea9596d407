//! Hanayo (Liu et al. 2023, arXiv 2308.15762, section 3).
//!
//! One pipeline of `2 W P` stages goes to and fro over `P` devices, `W` waves down and up again, so that
//! each device holds `2 W` stages and parameters are held once. Orders are greedy: what can start first
//! starts, and of what a device could start a backward pass comes before a forward pass, then the older
//! micro-batch. One is made as if backward passes took as long as forward passes, one for the given
//! times, and one as if messages took a little longer than they do; where messages take time, three more that
//! let fewer of them or fewer micro-batches wait, one as if they took half as long again. The best under the
//! given times is taken.
//!
//! With `f = b` and micro-batches in multiples of `P` the bubble is `(P - 1) b / W` and `P` micro-batches
//! are in flight, as if each wave were a pipeline of shorter passes; one message on each way is enough.
//! With `b = 2 f` and `P` micro-batches that order has a bubble of `2 (P - 1) f / W`; with `k P` of them,
//! `k` at least 2, of at most `((k + 1) (P - 1) - 1/2) f / W`. Others often have a smaller one, which
//! for one wave on 3 to 12 devices is below `4 (P - 1) f` for all `k` up to 8 but one (3 devices and 21
//! micro-batches have `17/4 (P - 1) f`), with nearly twice as many in flight. Slow messages keep more still
//! in flight, so orders are made for two messages on each way, which holds forwards back: without a limit,
//! backward passes that are much slower than forward passes would let them pile up.

use shardloom_plan::PassTimes;

use super::first::First;
use super::timing::{Purpose, best};
use super::{Action, Instance, Pass, PassKind, StageMap};
use crate::ScheduleError;

/// What a greedy order is made for.
#[derive(Clone, Copy)]
struct Rule {
    /// How long passes and messages are taken to be.
    times: PassTimes,
    /// Micro-batches in flight at most.
    most: u32,
    /// Messages that wait on a way at most.
    buffers: usize,
}

/// The orders on a wave.
pub(super) fn orders(
    map: &StageMap,
    purpose: Purpose<'_>,
) -> Result<Vec<Vec<Action>>, ScheduleError> {
    let times = purpose.times;
    let chunks = map.instances_on(0).count();
    if !chunks.is_multiple_of(2) {
        let rule = format!(
            "hanayo wants an even number of stages on each device, two for each wave, not {chunks}"
        );
        return Err(ScheduleError::chunks(chunks, rule));
    }
    let all = [times.forward, times.input, times.weight, times.message];
    if all.iter().any(|it| !it.is_finite() || *it < 0.0) {
        let message = format!("passes and messages take finite times from 0, not {all:?}");
        return Err(ScheduleError::Rule(message));
    }
    let mean = (times.forward + times.input + times.weight) / 2.0;
    let alike = PassTimes { forward: mean, input: mean / 2.0, weight: mean / 2.0, ..*times };
    // Of passes that could start at the same time that of the device itself then comes first: a backward
    // pass that has only just come from another device no longer always displaces a forward pass.
    let message = times.message + times.forward / 100.0;
    let later = PassTimes { message, ..*times };
    // Forward passes then pile up, so that their number needs a limit.
    let few = 2 * map.devices() as u32 - 1;
    let rule = |times, most, buffers| Rule { times, most, buffers };
    let usual = [rule(alike, u32::MAX, 2), rule(*times, u32::MAX, 2), rule(later, few, 2)];
    // Forward passes that fill every buffer keep gradients waiting, which slow messages make worse.
    let slower = PassTimes { message: 1.5 * times.message, ..*times };
    let slow = [rule(*times, u32::MAX, 1), rule(slower, u32::MAX, 1), rule(*times, few, 2)];
    let more = if times.message > 0.0 { &slow[..] } else { &[] };
    let candidates = usual.iter().chain(more).map(|&rule| greedy(map, rule));
    Ok(best(map, purpose, candidates))
}

/// The greedy orders by a rule.
fn greedy(map: &StageMap, rule: Rule) -> Vec<Vec<Action>> {
    let mut ready = Ready::new(map, rule);
    let mut orders = vec![vec![]; map.devices()];
    while let Some((device, pass)) = ready.run_next() {
        orders[device].push(Action::Alone(pass));
    }
    orders
}

/// What each device could run, and since when. Times are in units of which a whole device's are given, so
/// that whole numbers stay exact.
struct Ready<'m> {
    map: &'m StageMap,
    forward: f64,
    backward: f64,
    message: f64,
    /// Micro-batches in flight, and how many may be.
    in_flight: u32,
    most: u32,
    /// Messages that may wait on a way.
    buffers: usize,
    clocks: Vec<f64>,
    passes: Vec<Vec<(f64, Pass)>>,
    /// When each device could start the first of its passes, if any, as long as that is known.
    starts: First,
    /// Devices of which it is not.
    changed: Vec<usize>,
    /// By stage messages on the way to it, of activations and of gradients, and when last one was taken.
    waiting: Vec<[Option<(usize, f64)>; 2]>,
}

/// Whether it is activations or gradients that a pass waits for.
fn way(kind: PassKind) -> usize {
    usize::from(kind != PassKind::Forward)
}

impl<'m> Ready<'m> {
    fn new(map: &'m StageMap, Rule { times, most, buffers }: Rule) -> Ready<'m> {
        let first = Instance { pipeline: 0, stage: 0 };
        let mut ready = Ready {
            map,
            forward: times.forward,
            backward: times.input + times.weight,
            message: times.message / map.share(first),
            in_flight: 0,
            most,
            buffers,
            clocks: vec![0.0; map.devices()],
            passes: vec![vec![]; map.devices()],
            starts: First::new(map.devices()),
            changed: vec![],
            waiting: vec![[None; 2]; map.chains()[0].stages()],
        };
        ready.add(0.0, Pass { kind: PassKind::Forward, instance: first, microbatch: 0 });
        ready
    }

    fn add(&mut self, since: f64, pass: Pass) {
        let device = self.map.device(pass.instance);
        self.passes[device].push((since, pass));
        self.changed.push(device);
    }

    /// What waits for `pass`, and whether a message takes it there.
    fn next(&self, pass: Pass) -> Option<(Pass, bool)> {
        let (after, before) = (self.map.after(pass.instance), self.map.before(pass.instance));
        let next = match (pass.kind, after, before) {
            (PassKind::Forward, Some(instance), _) => Pass { instance, ..pass },
            (PassKind::Forward, None, _) => Pass { kind: PassKind::Backward, ..pass },
            (_, _, before) => Pass { instance: before?, ..pass },
        };
        Some((next, self.map.device(next.instance) != self.map.device(pass.instance)))
    }

    /// From when a pass could run that nothing but its device and its way has kept waiting since `since`;
    /// none while messages fill its way, or too many micro-batches are in flight for another.
    fn start(&self, device: usize, since: f64, pass: Pass) -> Option<f64> {
        let enters = pass.kind == PassKind::Forward && pass.instance.stage == 0;
        if enters && self.in_flight >= self.most {
            return None;
        }
        let start = since.max(self.clocks[device]);
        let Some((next, true)) = self.next(pass) else { return Some(start) };
        match self.waiting[usize::from(next.instance.stage)][way(next.kind)] {
            Some((waiting, _)) if waiting >= self.buffers => None,
            Some((_, taken)) => Some(start.max(taken)),
            None => Some(start),
        }
    }

    /// Runs what can start first, of the passes of its device the most urgent; what waits for it can run
    /// from then on.
    fn run_next(&mut self) -> Option<(usize, Pass)> {
        for device in std::mem::take(&mut self.changed) {
            let starts = self.passes[device].iter();
            let starts = starts.filter_map(|&(since, pass)| self.start(device, since, pass));
            let earliest = starts.min_by(f64::total_cmp);
            self.starts.set(device, earliest);
        }
        let (start, device) = self.starts.get()?;
        let can = |&(since, pass): &(f64, Pass)| self.start(device, since, pass) == Some(start);
        let passes = self.passes[device].iter().enumerate().filter(|(_, it)| can(it));
        // No two passes of one micro-batch can ever run at the same time.
        let urgency = |pass: Pass| (pass.kind == PassKind::Forward, pass.microbatch);
        let (index, _) = passes.min_by_key(|(_, it)| urgency(it.1))?;
        let (_, pass) = self.passes[device].swap_remove(index);
        let forward = pass.kind == PassKind::Forward;
        match (forward, pass.instance.stage) {
            (true, 0) => self.in_flight += 1,
            (false, 0) => self.in_flight -= 1,
            _ => {}
        }
        let end = start + if forward { self.forward } else { self.backward };
        self.clocks[device] = end;
        // Besides devices that get passes: this one has another clock and has filled its way, and the one that sends
        // to it may send again. Where micro-batches enter and leave is one device.
        let sender = match forward {
            true => self.map.before(pass.instance),
            false => self.map.after(pass.instance),
        };
        self.changed.extend(sender.map(|it| self.map.device(it)).into_iter().chain([device]));
        if let Some(waiting) = &mut self.waiting[usize::from(pass.instance.stage)][way(pass.kind)] {
            *waiting = (waiting.0 - 1, start);
        }
        if let Some((next, travels)) = self.next(pass) {
            if travels {
                let waiting = &mut self.waiting[usize::from(next.instance.stage)][way(next.kind)];
                waiting.get_or_insert((0, 0.0)).0 += 1;
            }
            self.add(if travels { end + self.message } else { end }, next);
        }
        // The oldest enter first, so that one that could enter is enough to know.
        let microbatch = pass.microbatch + 1;
        if forward && pass.instance.stage == 0 && microbatch < self.map.microbatches() {
            self.add(0.0, Pass { microbatch, ..pass });
        }
        Some((device, pass))
    }
}
