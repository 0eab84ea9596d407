//! A building block repeated and reordered with weight gradients in slots of their own (Qi et al., NeurIPS
//! 2024, arXiv 2405.15362, section 3; the steps of the authors' released code,
//! sail-sg/zero-bubble-pipeline-parallelism).
//!
//! Where the pipeline fills and drains all passes, weight gradients among them, move into earlier empty
//! slots; idle slots that the order does not need are dropped; then what drains moves once more, with weight
//! gradients wherever it leaves slots.

use super::building_block::{Block, PERIOD};
use super::held::{Held, Use};
use super::{Action, Instance, Pass, PassKind, StageMap};

/// Passes of a device by the order in which a micro-batch meets them: forwards of its first and its second
/// stage, input gradients of its second and its first, and weight gradients of either, oldest first.
const KINDS: usize = 5;
const WEIGHTS: usize = KINDS - 1;

/// In which slot a device runs the n-th pass of each kind.
type Slots = [Vec<usize>; KINDS];

/// The orders on a map that goes to and fro once.
pub(super) fn orders(map: &StageMap, block: &Block) -> Vec<Vec<Action>> {
    let microbatches = map.microbatches() as usize;
    let repeated = |offsets: &[usize; 4]| -> Slots {
        let [a, b, c, d] =
            offsets.map(|offset| (0..microbatches).map(|it| offset + PERIOD * it).collect());
        [a, b, c, d, vec![]]
    };
    let mut devices: Vec<Slots> = block.iter().map(repeated).collect();
    devices.iter_mut().for_each(add_weights);
    reorder(&mut devices);
    squeeze(&mut devices);
    devices.iter_mut().for_each(|slots| slots[WEIGHTS].clear());
    reorder(&mut devices);
    devices.iter_mut().for_each(add_weights);
    squeeze(&mut devices);
    devices.iter_mut().for_each(|slots| slots[WEIGHTS].clear());
    let actions = |(device, slots): (usize, &Slots)| actions(map, device, slots);
    devices.iter().enumerate().map(actions).collect()
}

/// What a device runs in each of its slots.
fn row(slots: &Slots) -> Vec<Option<usize>> {
    let last = slots.iter().flatten().max().map_or(0, |last| last + 1);
    let mut row = vec![None; last];
    for (kind, slots) in slots.iter().enumerate() {
        slots.iter().for_each(|&slot| row[slot] = Some(kind));
    }
    row
}

/// Puts weight gradients into idle slots as soon as they can run, the rest behind.
fn add_weights(slots: &mut Slots) {
    let row = row(slots);
    let mut waiting = 0;
    for (slot, kind) in row.iter().enumerate() {
        match kind {
            Some(2 | 3) => waiting += 1,
            None if waiting > 0 => {
                slots[WEIGHTS].push(slot);
                waiting -= 1;
            }
            _ => {}
        }
    }
    slots[WEIGHTS].extend(row.len()..row.len() + waiting);
}

/// What a device's slots are used for. Weight gradients without slots take idle ones.
fn held(slots: &Slots) -> Held {
    let used = |kind: Option<usize>| match kind {
        None => Use::Idle,
        Some(0 | 1) => Use::Forward,
        Some(WEIGHTS) => Use::Weights,
        Some(_) => Use::Gradients,
    };
    Held::new(row(slots).into_iter().map(used).collect())
}

/// All passes, earliest first: slot, device, kind and number.
fn earliest_first(devices: &[Slots]) -> Vec<(usize, usize, usize, usize)> {
    let mut all = vec![];
    for (device, slots) in devices.iter().enumerate() {
        for (kind, slots) in slots.iter().enumerate() {
            let passes = slots.iter().enumerate();
            all.extend(passes.map(|(number, &slot)| (slot, device, kind, number)));
        }
    }
    all.sort_unstable();
    all
}

/// The slot of what another device hands to a pass.
fn handed(devices: &[Slots], device: usize, kind: usize, number: usize) -> Option<usize> {
    let from = match kind {
        0 | 2 => device.checked_sub(1)?,
        1 | 3 => device + 1,
        _ => return None,
    };
    devices.get(from).map(|slots| slots[kind][number])
}

/// The slots of a device's input gradients, earliest first.
fn gradients(slots: &Slots) -> Vec<usize> {
    let mut gradients: Vec<usize> = slots[2].iter().chain(&slots[3]).copied().collect();
    gradients.sort_unstable();
    gradients
}

/// Moves one of ascending `slots` to an earlier place.
fn move_in(slots: &mut [usize], from: usize, to: usize) {
    let old = slots.partition_point(|&slot| slot < from);
    let new = slots.partition_point(|&slot| slot < to);
    slots[old] = to;
    slots[new..=old].rotate_right(1);
}

/// Moves passes into earlier empty slots without holding more: while the pipeline drains, and where weight
/// gradients have slots also while it fills.
fn reorder(devices: &mut [Slots]) {
    let mut held: Vec<Held> = devices.iter().map(held).collect();
    let limit = held.iter_mut().map(Held::most).max().unwrap_or(0);
    let fills = !devices[0][WEIGHTS].is_empty();
    let mut gradients: Vec<Vec<usize>> = devices.iter().map(gradients).collect();
    let (mut is_full, mut drains) = (false, false);
    for (slot, device, kind, number) in earliest_first(devices) {
        // Full from when the first device has the first gradients of its first stage, to the last forward.
        is_full |= (device, kind) == (0, 3);
        if is_full && !drains || !is_full && !fills {
            drains |= is_full && kind == 0 && number + 1 == devices[0][0].len();
            continue;
        }
        let own = &devices[device];
        let before = match kind {
            0 => None,
            WEIGHTS => Some(gradients[device][number]),
            _ => Some(own[kind - 1][number]),
        };
        let last = number.checked_sub(1).map(|number| own[kind][number]);
        let required = [before, last, handed(devices, device, kind, number)];
        let first = required.into_iter().flatten().max().map_or(0, |slot| slot + 1);
        let place = held[device].move_forward(first, slot, limit);
        devices[device][kind][number] = place;
        if matches!(kind, 2 | 3) {
            move_in(&mut gradients[device], slot, place);
        }
    }
}

/// Runs all passes in their order, each as soon as it can, in one slot each.
fn squeeze(devices: &mut [Slots]) {
    let mut clocks = vec![0; devices.len()];
    for (_, device, kind, number) in earliest_first(devices) {
        let before = match kind {
            1..WEIGHTS => Some(devices[device][kind - 1][number]),
            _ => None,
        };
        let required = [before, handed(devices, device, kind, number)];
        let ready = required.into_iter().flatten().max().map_or(0, |slot| slot + 1);
        let slot = ready.max(clocks[device]);
        devices[device][kind][number] = slot;
        clocks[device] = slot + 1;
    }
}

/// A device's order: weight gradients in idle slots, those of the second stage before those of the first.
fn actions(map: &StageMap, device: usize, slots: &Slots) -> Vec<Action> {
    let up = 2 * map.devices() - 1 - device;
    let mut run = [0; KINDS + 1];
    let mut order = vec![];
    let mut put = |run: &mut [u32; KINDS + 1], kind: usize| {
        let (pass, stage) = [
            (PassKind::Forward, device),
            (PassKind::Forward, up),
            (PassKind::BackwardInput, up),
            (PassKind::BackwardInput, device),
            (PassKind::BackwardWeight, up),
            (PassKind::BackwardWeight, device),
        ][kind];
        let instance = Instance { pipeline: 0, stage: stage as u16 };
        order.push(Action::Alone(Pass { kind: pass, instance, microbatch: run[kind] }));
        run[kind] += 1;
    };
    let rest = slots[0].len() * 2;
    for kind in row(slots).into_iter().chain((0..rest).map(|_| None)) {
        match kind {
            Some(kind) => put(&mut run, kind),
            None if run[WEIGHTS] < run[2] => put(&mut run, WEIGHTS),
            None if run[KINDS] < run[3] => put(&mut run, KINDS),
            None => {}
        }
    }
    order
}
