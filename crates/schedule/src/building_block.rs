//! Schedules from a building block (Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS
//! 2024, arXiv 2405.15362, sections 2 and 3): what happens to one micro-batch, repeated every few slots,
//! then squeezed.
//!
//! A block says in which slot each device runs the forwards and input gradients of the first
//! micro-batch; a period later it does the same for the next. Weight gradients take what slots are left.
//! How long a micro-batch stays on a device, from forward to weight gradients, divided by the period is
//! how many are in flight, which a block's offsets so choose. While the pipeline fills and drains slots
//! stay empty, and passes are moved forward into them as far as memory allows; then all idle slots that
//! the order does not need are dropped. That is done with weight gradients in whatever slots are left and,
//! for which few micro-batches with slow messages are better off, [with slots of their own](super::reordering);
//! the best is kept.

use std::collections::VecDeque;

use super::held::{Held, Use};
use super::pass_table::PassEnds;
use super::timing::{Purpose, best, time_with};
use super::weight_filling::{Memory, fill, without_weights};
use super::{Action, Instance, Pass, PassKind, Schedule, StageMap, reordering};

/// Slots after which the block repeats: as many as a device has passes for one micro-batch.
pub(super) const PERIOD: usize = 6;

/// For each device the slots of a micro-batch: forwards of its first and second stage, input gradients
/// of its second and first stage. No two of a device may differ by a multiple of the period.
pub(super) type Block = Vec<[usize; 4]>;

/// Slots of forwards and input gradients by device; those that are idle or for weight gradients are
/// none.
type Rows = Vec<Vec<Option<Pass>>>;

/// The orders on a map that goes to and fro once, with no more in flight than the block has when it
/// repeats; and made for the given times where these allow several.
pub(super) fn orders(map: &StageMap, purpose: Purpose<'_>, block: &Block) -> Vec<Vec<Action>> {
    let mut rows = repeated(map, block);
    let limit = rows.iter().map(|row| held(row).most()).max().unwrap_or(0);
    let mut orders = vec![];
    // What moved makes room for more.
    for _ in 0..2 {
        move_forward(map, &mut rows, limit);
        orders = rows.iter().map(|row| actions(row)).collect();
        (orders, rows) = squeezed(map, orders);
    }
    let mut candidates = vec![];
    for orders in [orders, reordering::orders(map, block)] {
        let bare = without_weights(&orders);
        let memory = Memory::microbatches(limit);
        let filled = [false, true].map(|eager| fill(map, purpose.times, &bare, memory, eager));
        candidates.extend([orders].into_iter().chain(filled));
    }
    best(map, purpose, candidates)
}

/// The block, once for each micro-batch.
fn repeated(map: &StageMap, block: &Block) -> Rows {
    let stages = 2 * map.devices();
    let row = |(device, offsets): (usize, &[usize; 4])| {
        let last = offsets.iter().max().unwrap_or(&0);
        let mut row = vec![None; last + PERIOD * map.microbatches() as usize];
        let passes = [
            PassKind::Forward,
            PassKind::Forward,
            PassKind::BackwardInput,
            PassKind::BackwardInput,
        ];
        let places = [device, stages - 1 - device, stages - 1 - device, device];
        for ((&offset, kind), stage) in offsets.iter().zip(passes).zip(places) {
            let instance = Instance { pipeline: 0, stage: stage as u16 };
            for microbatch in 0..map.microbatches() {
                let slot = offset + PERIOD * microbatch as usize;
                row[slot] = Some(Pass { kind, instance, microbatch });
            }
        }
        row
    };
    block.iter().enumerate().map(row).collect()
}

/// What a device does: weight gradients in idle slots as soon as they can run, the rest in the end.
fn with_weights(row: &[Option<Pass>]) -> impl Iterator<Item = Pass> {
    let mut waiting: VecDeque<Pass> = VecDeque::new();
    let rest = row.iter().filter(|pass| pass.is_some_and(|it| it.kind == PassKind::BackwardInput));
    let slots = row.iter().copied().chain(rest.map(|_| None));
    slots.filter_map(move |slot| {
        let Some(pass) = slot else { return waiting.pop_front() };
        if pass.kind == PassKind::BackwardInput {
            waiting.push_back(Pass { kind: PassKind::BackwardWeight, ..pass });
        }
        Some(pass)
    })
}

fn actions(row: &[Option<Pass>]) -> Vec<Action> {
    with_weights(row).map(Action::Alone).collect()
}

/// What a device's slots are used for; weight gradients take idle ones.
fn held(row: &[Option<Pass>]) -> Held {
    let used = |pass: &Option<Pass>| match pass.map(|pass| pass.kind) {
        None => Use::Idle,
        Some(PassKind::Forward) => Use::Forward,
        Some(PassKind::Backward | PassKind::BackwardInput) => Use::Gradients,
        Some(PassKind::BackwardWeight) => Use::Weights,
    };
    Held::new(row.iter().map(used).collect())
}

/// Moves passes into earlier empty slots, while the pipeline fills and while it drains, as far as what
/// they wait for and `limit` allow. In the order of the slots, so what a pass waits for has moved before.
fn move_forward(map: &StageMap, rows: &mut Rows, limit: usize) {
    let mut ends = PassEnds::new(map, 1);
    for row in rows.iter() {
        for (slot, pass) in row.iter().enumerate() {
            pass.iter().for_each(|&pass| ends.insert(pass, (slot + 1) as f64));
        }
    }
    // Full from when the first micro-batch has left the first stage until the last has entered it.
    let first = Instance { pipeline: 0, stage: 0 };
    let slot = |kind, microbatch| {
        let end = ends.get(Pass { kind, instance: first, microbatch });
        end.expect("all passes have slots") as usize - 1
    };
    let full = slot(PassKind::BackwardInput, 0)..=slot(PassKind::Forward, map.microbatches() - 1);
    let mut queue: Vec<(usize, usize, Pass)> = vec![];
    for (device, row) in rows.iter().enumerate() {
        let moving = row.iter().enumerate().filter(|(slot, _)| !full.contains(slot));
        queue.extend(moving.filter_map(|(slot, pass)| Some((slot, device, (*pass)?))));
    }
    queue.sort_unstable();
    let mut devices: Vec<Held> = rows.iter().map(|row| held(row)).collect();
    for (slot, device, pass) in queue {
        let place = devices[device].move_forward(earliest(map, &ends, pass), slot, limit);
        rows[device].swap(place, slot);
        ends.insert(pass, (place + 1) as f64);
    }
}

/// The first slot in which `pass` can run, when what it waits for runs in its slot.
fn earliest(map: &StageMap, ends: &PassEnds, pass: Pass) -> usize {
    let required = super::requirements(map, pass).into_iter().flatten();
    let required = required.filter_map(|it| it.as_slice().iter().find_map(|&it| ends.get(it)));
    let before = pass.microbatch.checked_sub(1).map(|microbatch| Pass { microbatch, ..pass });
    let before = before.and_then(|before| ends.get(before));
    required.chain(before).fold(0.0, f64::max) as usize
}

/// The orders run without delay: in which slots what runs then.
fn squeezed(map: &StageMap, orders: Vec<Vec<Action>>) -> (Vec<Vec<Action>>, Rows) {
    let schedule = Schedule { map: map.clone(), orders };
    let timing = time_with(&schedule, 1, 0.0, |_| 1.0).expect("slots in time do not deadlock");
    let row = |actions: &Vec<super::Timed>| {
        let mut row = vec![None; timing.makespan as usize];
        for timed in actions {
            let passes = timed.action.passes().filter(|pass| pass.kind != PassKind::BackwardWeight);
            passes.for_each(|pass| row[timed.start as usize] = Some(pass));
        }
        row
    };
    let rows = timing.actions.iter().map(row).collect();
    (schedule.orders, rows)
}
