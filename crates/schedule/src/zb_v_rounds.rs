//! ZB-V for given times: rounds in which each device runs input gradients of one of its stages and a forward
//! pass of one (Qi et al. 2024, arXiv 2401.10241, section 6; the order in which the authors' released
//! scheduler, sail-sg/zero-bubble-pipeline-parallelism, tries passes).
//!
//! Weight gradients fill gaps that they fit into, and shorter ones where a device would otherwise stand
//! idle for longer than any other. Whether they may before forwards, and before the gradients of second
//! stages, is tried both ways. What devices stood idle in one try is theirs to idle in the next.

use shardloom_plan::PassTimes;

use super::weight_filling::{Filling, Memory, Short};
use super::{Action, Instance, Pass, PassKind, StageMap};

/// A device's stages by the order in which forwards reach them.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Down,
    Up,
}

/// How often a device ran its passes.
#[derive(Clone, Copy, Default)]
struct Count {
    forward_down: u32,
    forward_up: u32,
    gradient_up: u32,
    gradient_down: u32,
}

/// All orders that are found for devices with room for `memory`.
pub(super) fn orders(map: &StageMap, times: &PassTimes, memory: Memory) -> Vec<Vec<Vec<Action>>> {
    let mut found = vec![];
    for bits in 0..4 {
        let short = |may: bool| if may { Short::WhereCostly } else { Short::Never };
        let (forwards, gradients) = (short(bits & 1 == 0), short(bits & 2 == 0));
        let mut allowance = vec![0.0; map.devices()];
        let mut least = f64::INFINITY;
        loop {
            let filling = Filling::allowing(map, times, memory, allowance);
            let counts = vec![Count::default(); map.devices()];
            let mut rounds = Rounds { map, times, filling, counts, forwards, gradients };
            if rounds.run().is_none() {
                break;
            }
            allowance = (0..map.devices()).map(|device| rounds.filling.idle(device)).collect();
            let most = allowance.iter().copied().fold(0.0, f64::max);
            found.push(rounds.filling.finish());
            if most >= least {
                break;
            }
            least = most;
        }
    }
    found
}

struct Rounds<'a> {
    map: &'a StageMap,
    times: &'a PassTimes,
    filling: Filling<'a>,
    counts: Vec<Count>,
    /// Which gaps weight gradients fill before forwards.
    forwards: Short,
    /// And before input gradients of a device's second stage.
    gradients: Short,
}

impl Rounds<'_> {
    /// Runs all passes but the last weight gradients. None if memory or what passes wait for forbids it.
    fn run(&mut self) -> Option<()> {
        self.warm_up()?;
        let microbatches = self.map.microbatches();
        for _ in 0..2 * microbatches {
            let devices = self.map.devices();
            let ways: Vec<Way> = (0..devices).map(|device| self.gradient_way(device)).collect();
            // Gradients come down from the second stages of the first devices and back.
            let down = (0..devices).rev().filter(|&device| ways[device] == Way::Down);
            let up = (0..devices).filter(|&device| ways[device] == Way::Up);
            for device in down.chain(up).collect::<Vec<_>>() {
                let short = match ways[device] {
                    Way::Down => Short::WhereCostly,
                    Way::Up => self.gradients,
                };
                self.gradient(device, ways[device], short)?;
            }
            for device in 0..devices {
                if let Some(way) = self.forward_way(device) {
                    self.forward(device, way, self.forwards)?;
                }
            }
        }
        Some(())
    }

    /// Forwards before the first gradient.
    fn warm_up(&mut self) -> Option<()> {
        let (devices, microbatches) = (self.map.devices(), self.map.microbatches());
        for device in 0..devices {
            self.forward(device, Way::Down, Short::Never)?;
        }
        for device in (0..devices).rev() {
            // More of the first stages, on the devices before as well, while the second one waits.
            let arrival = self.filling.arrival(self.pass(PassKind::Forward, device, Way::Up, 0))?;
            let forward = self.times.forward / 2.0;
            while device + 1 < devices
                && self.filling.has_room_for(device, 2 + 2 * device)
                && self.filling.clock(device) + forward <= arrival
                && self.counts[device].forward_down < microbatches
            {
                for before in 0..=device {
                    self.forward(before, Way::Down, Short::Never)?;
                }
            }
            self.forward(device, Way::Up, Short::Never)?;
        }
        let mut way = Way::Down;
        for device in 1..devices {
            loop {
                let (before, it) = (self.counts[device - 1], self.counts[device]);
                let fewer =
                    it.forward_down + it.forward_up < before.forward_down + before.forward_up;
                let due = it.forward_up <= before.forward_up && before.forward_up < microbatches;
                if !fewer && !due {
                    break;
                }
                for after in (device..devices).rev() {
                    if self.forwards_run(after, way) < microbatches {
                        self.forward(after, way, Short::Never)?;
                    }
                }
                way = if way == Way::Down { Way::Up } else { Way::Down };
            }
        }
        Some(())
    }

    /// Of which stage a device runs input gradients next.
    fn gradient_way(&self, device: usize) -> Way {
        let it = self.counts[device];
        let next = self.counts.get(device + 1);
        let arrives = next.is_none_or(|next| next.gradient_down > it.gradient_down)
            || it.gradient_up >= self.map.microbatches();
        match it.gradient_down < it.gradient_up && arrives {
            true => Way::Down,
            false => Way::Up,
        }
    }

    /// Of which stage a device runs a forward next, if of any.
    fn forward_way(&self, device: usize) -> Option<Way> {
        let (it, microbatches) = (self.counts[device], self.map.microbatches());
        let arrives_up =
            self.counts.get(device + 1).is_none_or(|next| next.forward_up > it.forward_up);
        let arrives_down = device
            .checked_sub(1)
            .is_none_or(|before| self.counts[before].forward_down > it.forward_down);
        if it.forward_up >= microbatches {
            None
        } else if it.forward_up >= it.forward_down {
            Some(Way::Down)
        } else if arrives_up {
            Some(Way::Up)
        } else {
            (it.forward_down < microbatches && arrives_down).then_some(Way::Down)
        }
    }

    fn forwards_run(&self, device: usize, way: Way) -> u32 {
        match way {
            Way::Down => self.counts[device].forward_down,
            Way::Up => self.counts[device].forward_up,
        }
    }

    fn forward(&mut self, device: usize, way: Way, short: Short) -> Option<()> {
        let pass = self.pass(PassKind::Forward, device, way, self.forwards_run(device, way));
        let exists = pass.microbatch < self.map.microbatches();
        if !exists || !self.filling.can_make_room(device) {
            return None;
        }
        self.filling.arrival(pass)?;
        self.filling.run_with(pass, short);
        let it = &mut self.counts[device];
        *(if way == Way::Down { &mut it.forward_down } else { &mut it.forward_up }) += 1;
        Some(())
    }

    fn gradient(&mut self, device: usize, way: Way, short: Short) -> Option<()> {
        let it = self.counts[device];
        let count = if way == Way::Down { it.gradient_down } else { it.gradient_up };
        let pass = self.pass(PassKind::BackwardInput, device, way, count);
        if pass.microbatch >= self.map.microbatches() {
            return None;
        }
        self.filling.arrival(pass)?;
        self.filling.run_with(pass, short);
        let it = &mut self.counts[device];
        *(if way == Way::Down { &mut it.gradient_down } else { &mut it.gradient_up }) += 1;
        Some(())
    }

    fn pass(&self, kind: PassKind, device: usize, way: Way, microbatch: u32) -> Pass {
        let stage = match way {
            Way::Down => device,
            Way::Up => 2 * self.map.devices() - 1 - device,
        };
        Pass { kind, instance: Instance { pipeline: 0, stage: stage as u16 }, microbatch }
    }
}
