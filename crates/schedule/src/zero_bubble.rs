//! Zero bubble, one stage per device: ZB-H1, ZB-H2, ZB-1p and ZB-2p (Qi et al., ICLR 2024, arXiv
//! 2401.10241, section 2 and the heuristic of section 3.1).
//!
//! Backward passes are split, and only input gradients are passed on; weight gradients fill gaps. A
//! device warms up with as many forwards as fit before its first gradient arrives and into memory, then
//! alternates. Eight variants are drafted for the given times, and two orders are made in which devices run
//! what [comes first](super::earliest_first), which are shorter where messages are slow; the best is kept.
//!
//! The best has the shortest time of a device's own, or the least makespan where steps wait for each other
//! ([`Succession`]).
//!
//! H1 holds as many micro-batches as 1F1B's first stage, the `p` devices; H2 holds `2p - 1`. The bubble of
//! a device is what it stands idle between its own start and end: devices start one after the other and
//! end so, and the next step fits in. With `2p` micro-batches or more and messages in no time it is
//! `(p - 1) max(F + I - W, I)` for H1 and `(p - 1) max(F + I - 2W, I - F, 0)` for H2: the paper's
//! formulas where `W <= F`, and for H2 also `2W <= F + I`. Elsewhere memory ends the warm-up before the first
//! gradient is there, or, for H2, no bubble is left.
//!
//! H1 and H2 count a micro-batch as a whole until its weight gradients are there. ZB-1p and ZB-2p have room
//! for what `p` or `2p` forwards leave, of which input gradients free a part at once
//! ([`PassTimes::kept`] is the rest): the less is kept, the more micro-batches may be in flight, and the
//! smaller is the bubble. Where all is kept, ZB-1p is H1, and ZB-2p may hold one micro-batch more than H2.
//!
//! One message on a way is enough where a gradient comes back within a forward, `I` and two messages in
//! no more than `F`; else, or rather where devices then warm up further, `p` are.

use shardloom_plan::{Arrangement, PassTimes, ScheduleKind};

use super::earliest_first;
use super::timing::{Purpose, Succession, best};
use super::weight_filling::{Filling, Memory};
use super::{Action, Instance, Pass, PassKind, Schedule, StageMap};
use crate::ScheduleError;

impl Schedule {
    /// The zero-bubble schedule of one stage on each device with at most `limit` micro-batches in flight
    /// on a device: H1 with as many as there are devices, H2 with `2p - 1`, and whatever memory allows
    /// between, below and above.
    ///
    /// # Errors
    /// If the map is not one pipeline with one stage on each device, or the limit is 0.
    pub fn zero_bubble(
        map: StageMap,
        times: &PassTimes,
        limit: usize,
        succession: Succession,
    ) -> Result<Schedule, ScheduleError> {
        map.check(ScheduleKind::ZeroBubbleH1, Arrangement::Chain)?;
        if limit == 0 {
            let message = "a device that holds no micro-batch runs nothing; at least 1 in flight is \
                           needed";
            return Err(ScheduleError::Rule(message.into()));
        }
        let purpose = Purpose { times, succession };
        let orders = orders(&map, purpose, Memory::microbatches(limit));
        Ok(Schedule { map, orders })
    }
}

/// What the heuristic tries both ways.
#[derive(Clone, Copy)]
struct Variant {
    /// Whether a device warms up with a forward that is not over when its first gradient arrives.
    overrun: bool,
    /// Whether a device that is ahead of the next one may take a gradient instead of a forward.
    gradients_first: bool,
    /// Whether weight gradients fill gaps that are too short for them.
    eager: bool,
}

/// The orders for passes of the given times and devices of the given memory.
pub(super) fn orders(map: &StageMap, purpose: Purpose<'_>, memory: Memory) -> Vec<Vec<Action>> {
    let times = purpose.times;
    let variants = (0..8).map(|bits| Variant {
        overrun: bits & 1 != 0,
        gradients_first: bits & 2 != 0,
        eager: bits & 4 != 0,
    });
    let drafts = variants.map(|variant| draft(map, times, memory, variant));
    let others = [false, true].map(|eager| earliest_first::orders(map, times, memory, eager));
    best(map, purpose, drafts.chain(others))
}

fn draft(map: &StageMap, times: &PassTimes, memory: Memory, variant: Variant) -> Vec<Vec<Action>> {
    let devices = map.devices();
    let microbatches = map.microbatches();
    let mut filling = Filling::new(map, times, memory, variant.eager);
    let mut forwards = vec![0; devices];
    let forward = |filling: &mut Filling, forwards: &mut Vec<u32>, device: usize| {
        filling.run(pass(PassKind::Forward, device, forwards[device]));
        forwards[device] += 1;
    };
    (0..devices).for_each(|device| forward(&mut filling, &mut forwards, device));
    for (device, count) in warm_up(&filling, map, times, memory, variant.overrun).iter().enumerate()
    {
        (0..*count).for_each(|_| forward(&mut filling, &mut forwards, device));
    }
    for round in 0..microbatches {
        if round > 0 {
            let mut takes = vec![false; devices];
            for device in (0..devices).rev() {
                let next = forwards.get(device + 1).copied();
                // What the next device does not take yet is not worth making.
                takes[device] = forwards[device] < microbatches
                    && takes.get(device + 1).is_none_or(|&it| it)
                    && !(variant.gradients_first
                        && next.is_some_and(|next| forwards[device] >= next + 2)
                        && is_gradient_better(&filling, times, device));
            }
            for device in (0..devices).filter(|&device| takes[device]) {
                forward(&mut filling, &mut forwards, device);
            }
        }
        for device in (0..devices).rev() {
            filling.run(pass(PassKind::BackwardInput, device, round));
        }
    }
    filling.finish()
}

/// A pass of the one stage of `device`.
pub(super) fn pass(kind: PassKind, device: usize, microbatch: u32) -> Pass {
    let instance = Instance { pipeline: 0, stage: device as u16 };
    Pass { kind, instance, microbatch }
}

/// How many more forwards each device runs after its first and before its first gradient.
fn warm_up(
    filling: &Filling,
    map: &StageMap,
    times: &PassTimes,
    memory: Memory,
    overrun: bool,
) -> Vec<u32> {
    let devices = map.devices();
    let most = map.microbatches().min(memory.first());
    let mut counts = vec![0; devices];
    let mut sent = filling.clock(devices - 1) + times.input;
    for device in (0..devices - 1).rev() {
        let arrival = sent + times.message;
        let mut clock = filling.clock(device);
        let fits = |clock: f64| match overrun {
            true => clock < arrival,
            false => clock + times.forward <= arrival,
        };
        while counts[device] + 1 < most && fits(clock) {
            clock += times.forward;
            counts[device] += 1;
        }
        sent = clock.max(arrival) + times.input;
    }
    // A forward that the device before has not run is waited for; the last ones all devices have.
    for device in 1..devices {
        if counts[device] + 1 < map.microbatches() {
            counts[device] = counts[device].min(u32::saturating_sub(counts[device - 1], 1));
        }
    }
    counts
}

/// Whether `device` had better wait for the gradient that the next device will send after its next
/// forward than run a forward before.
fn is_gradient_better(filling: &Filling, times: &PassTimes, device: usize) -> bool {
    let arrival = filling.clock(device + 1) + times.forward + times.input + times.message;
    let clock = filling.clock(device);
    let forward = times.forward + filling.time_to_make_room(device);
    clock >= arrival || (clock + forward > arrival && arrival - clock <= filling.slack(device))
}
