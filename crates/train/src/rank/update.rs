//! The end of a step: the gradient norm, the optimizer's statistics, and the update.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardloom_kernels::device::Update as Kernel;
use shardloom_kernels::optimizer::Step;
use shardloom_kernels::random::Key;
use shardloom_kernels::{Buffer, Device, Format, View as Elements, ViewMut};
use shardloom_program::{BucketId, Content, Instruction, TensorId};
use smallvec::SmallVec;

use super::arena::Room;
use super::corrections::Corrected;
use super::link::Linker;
use super::parameters::Owned;
use super::store::Slot;
use super::table_rows::{self, rows_of};
use super::{At, Rank, Shared};

/// What a step came to on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepOutcome {
    /// The sum of this rank's part of the loss, where the rank computes the loss.
    pub loss_sum: Option<f64>,
    /// The global norm of the gradients before clipping, where the program computes it.
    pub gradient_norm: Option<f64>,
    /// Whether the update was left out because a gradient was not finite.
    pub skipped: bool,
}

/// The optimizer's state of a part of a parameter, taken out while it is changed: where it is, which part of
/// that. No optimizer has more than two.
type Taken = SmallVec<[(Slot, Range<usize>, Buffer); 2]>;

/// What a rank holds of a bucket: where it is, and the element of the bucket that it begins with.
#[derive(Clone, Copy)]
struct Held {
    slot: Slot,
    origin: usize,
}

/// An update of what the rank owns of a bucket.
pub(crate) struct Update {
    /// The bucket's number.
    bucket: usize,
    /// Whether it is the last bucket, with which an update ends.
    is_last: bool,
    gradients: Held,
    /// The rows that they are of, if they are not of all of the bucket.
    rows: Option<Slot>,
    weights: Held,
    /// The sums of the last round of statistics.
    sums: Option<Slot>,
    corrected: Corrected,
    /// What its part of the mean gradients is multiplied by.
    scale: f64,
}

/// A round of the optimizer's statistics of what the rank owns of a bucket.
pub(crate) struct Statistics {
    round: usize,
    bucket: usize,
    gradients: Held,
    /// The rows that they are of, if they are not of all of the bucket.
    rows: Option<Slot>,
    weights: Held,
    /// The sums of the round before.
    sums: Option<Slot>,
    /// How many updates late gradients are.
    delay: f64,
    /// What its part of the mean gradients is multiplied by.
    scale: f64,
    to: Room,
}

/// Weights that operators read, made of master weights.
pub(crate) struct Cast {
    master: Slot,
    weights: Slot,
    range: Range<usize>,
}

impl Held {
    fn link(linker: &Linker<'_>, tensor: TensorId) -> Held {
        let origin = linker.parameters.origins[tensor.0 as usize];
        Held { slot: linker.store.slot(tensor), origin }
    }

    /// A part of a bucket that is not empty, in what is held of it.
    fn part(self, of_bucket: &Range<usize>) -> Range<usize> {
        of_bucket.start - self.origin..of_bucket.end - self.origin
    }
}

/// The statistics that an instruction reads.
fn sums(linker: &Linker<'_>, instruction: &Instruction) -> Option<Slot> {
    let class = linker.class;
    let mut read = instruction.reads.iter();
    let sums = read.find(|read| class.tensor(read.tensor).content == Content::Statistics)?;
    Some(linker.slot(*sums))
}

/// What the rank's part of the mean gradients of a bucket over a step is multiplied by: where replicas update weights
/// of their own, or by themselves, it becomes the mean of their own gradients.
fn scale(linker: &Linker<'_>, bucket: BucketId) -> f64 {
    let bucket = linker.class.bucket(bucket);
    match bucket.apart {
        Some(apart) => linker.shared.program.microbatches as f64 / apart.microbatches as f64,
        None => linker.class.own_replica(bucket, linker.position).0 as f64,
    }
}

impl Update {
    /// Links an update.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Update {
        let class = linker.class;
        let (gradients, weights) = (instruction.reads[0].tensor, instruction.writes[0].to.tensor);
        let bucket = class.tensor(weights).bucket.expect("weights lie in a bucket");
        Update {
            bucket: bucket.0 as usize,
            is_last: bucket.0 as usize + 1 == class.buckets.len(),
            gradients: Held::link(linker, gradients),
            rows: rows_of(linker, instruction, gradients),
            weights: Held::link(linker, weights),
            sums: sums(linker, instruction),
            corrected: Corrected::link(linker, bucket, instruction),
            scale: scale(linker, bucket),
        }
    }
}

impl Statistics {
    /// Links a round of statistics.
    pub(super) fn link(linker: &Linker<'_>, round: usize, instruction: &Instruction) -> Statistics {
        let class = linker.class;
        let to = instruction.writes[0].to.tensor;
        let bucket = class.tensor(to).bucket.expect("statistics are of a bucket");
        Statistics {
            round,
            bucket: bucket.0 as usize,
            gradients: Held::link(linker, instruction.reads[0].tensor),
            rows: rows_of(linker, instruction, instruction.reads[0].tensor),
            weights: Held::link(linker, instruction.reads[1].tensor),
            sums: sums(linker, instruction),
            delay: linker.shared.program.update_delay(class, bucket),
            scale: scale(linker, bucket),
            to: linker.room(to),
        }
    }
}

impl Cast {
    /// Links a cast.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Cast {
        let (master, weights) = (instruction.reads[0], instruction.writes[0].to);
        let range = linker.class.view_range(weights, linker.position);
        Cast { master: linker.slot(master), weights: linker.slot(weights), range }
    }
}

impl Rank {
    /// The update of weights that have had so many, but for that number, of gradients so late, of which the part that
    /// is here is multiplied by `scale`.
    fn step(&self, delay: f64, scale: f64) -> impl Fn(u64) -> Step + use<> {
        let norm = self.squared_norm().map(f64::sqrt);
        let clipped = match (self.shared.program.clip_norm, norm) {
            (Some(most), Some(norm)) if norm > most => most / norm,
            _ => 1.0,
        };
        let learning_rate = self.learning_rate(delay);
        // Gradients are the mean's over the step, of which each update has as large a part, and they are of the
        // scaled loss.
        let gradient_scale = (clipped * f64::from(self.updates) * scale / self.loss_scale) as f32;
        move |updates| Step { number: updates + 1, learning_rate, gradient_scale }
    }

    /// The learning rate in the step that is updated for, with gradients so late.
    pub(super) fn learning_rate(&self, delay: f64) -> f32 {
        let share = self.parameters.rate_share * self.learning_rate_share(delay);
        (self.shared.learning_rate.at(self.now.of_step) * share) as f32
    }

    /// This rank's share of a bucket's statistics, its parameters' one after the other.
    pub(super) fn find_statistics(&mut self, of: &Statistics, at: At) {
        let Statistics { round, bucket, gradients, rows, weights, delay, scale, .. } = *of;
        let left_out = self.leaves_out();
        let optimizer = self.parameters.optimizer;
        let step = self.step(delay, scale);
        let mut owned = std::mem::take(&mut self.parameters.owned[bucket]);
        let mut all = self.arena.take(&of.to, at);
        self.device().fill(all.view_mut(), 0.0);
        let read = self.take_sums(of.sums, at);
        let mut before = read.as_ref().map(|(_, sums)| sums.view());
        let (mut scratch, mut wide) = (self.take_scratch(), self.wide.take());
        let mut rest = all.view_mut();
        for part in &mut owned {
            let len = |round| optimizer.statistics_len(&part.piece.block, round);
            let (out, tail) = rest.split_at(len(round));
            rest = tail;
            let sums = round.checked_sub(1).and_then(|last| split_off(&mut before, len(last)));
            if part.piece.elements() == 0 || left_out {
                continue;
            }
            let mut state = self.take_state(part, at);
            let own = (gradients.slot, gradients.part(&part.at));
            let gradient = table_rows::gradients(&self.store, rows, own, at);
            let weights = self.store.newest(weights.slot).view().slice(weights.part(&part.at));
            let widened = widened(&mut wide, weights, &**self.device());
            let weights = widened.as_ref().map_or(weights, ViewMut::as_view);
            let optimizer = part.decaying(optimizer);
            let update = Kernel { optimizer, step: step(part.updates), piece: &part.piece };
            {
                let (state, scratch) = (&mut views(&mut state), scratch.view_mut());
                let device = self.device();
                device.statistics(update, round, weights, gradient, state, sums, out, scratch);
            }
            self.put_state(state, at);
        }
        (self.scratch, self.wide) = (Some(scratch), wide);
        self.put_sums(read, at);
        self.parameters.owned[bucket] = owned;
        self.store.put(of.to.slot, at, all);
    }

    /// Takes out the statistics that an instruction reads.
    fn take_sums(&mut self, sums: Option<Slot>, at: At) -> Option<(Slot, Buffer)> {
        let sums = sums?;
        Some((sums, self.store.take(sums, at).expect("statistics are found before they are used")))
    }

    fn put_sums(&mut self, sums: Option<(Slot, Buffer)>, at: At) {
        if let Some((slot, buffer)) = sums {
            self.store.put(slot, at, buffer);
        }
    }

    /// Takes out the optimizer's state of a part of a parameter.
    fn take_state(&mut self, part: &Owned, at: At) -> Taken {
        let held = "state is there all the time";
        let take = |(slot, range): &(Slot, Range<usize>)| {
            (*slot, range.clone(), self.store.take(*slot, at).expect(held))
        };
        part.state.iter().map(take).collect()
    }

    fn put_state(&mut self, state: Taken, at: At) {
        for (slot, _, buffer) in state {
            self.store.put(slot, at, buffer);
        }
    }

    /// Makes the weights that operators read of the master weights that were updated.
    pub(super) fn cast(&mut self, of: &Cast, at: At) {
        self.store.keep_version(of.weights);
        let mut held = self.store.take(of.weights, at).expect("weights are there all the time");
        let rounded = held.view_mut().slice(of.range.clone());
        self.device().cast(self.store.newest(of.master).view(), rounded);
        self.store.put(of.weights, at, held);
    }

    /// Updates the part of a bucket's weights that this rank owns: the master weights, if there are such.
    pub(super) fn update(&mut self, of: &Update, at: At) {
        let Update { bucket, gradients, rows, weights, ref corrected, scale, .. } = *of;
        self.store.keep_version(weights.slot);
        if !self.leaves_out() {
            let optimizer = self.compensated(self.parameters.optimizer, corrected.delay);
            let step = self.step(corrected.delay, scale);
            let mut owned = std::mem::take(&mut self.parameters.owned[bucket]);
            let held = self.store.take(weights.slot, at);
            let mut values = held.expect("weights are there all the time");
            self.note_before_update(corrected, values.view());
            let read = self.take_sums(of.sums, at);
            let mut sums = read.as_ref().map(|(_, sums)| sums.view());
            let (mut scratch, mut wide) = (self.take_scratch(), self.wide.take());
            let last_round = optimizer.rounds().checked_sub(1);
            for part in &mut owned {
                let len = |round| optimizer.statistics_len(&part.piece.block, round);
                let statistics = last_round.and_then(|round| split_off(&mut sums, len(round)));
                if part.piece.elements() == 0 {
                    continue;
                }
                let mut state = self.take_state(part, at);
                let own = (gradients.slot, gradients.part(&part.at));
                let gradient = table_rows::gradients(&self.store, rows, own, at);
                let mut weights = values.view_mut().slice(weights.part(&part.at));
                let optimizer = part.decaying(optimizer);
                let update = Kernel { optimizer, step: step(part.updates), piece: &part.piece };
                let mut widened = widened(&mut wide, weights.as_view(), &**self.device());
                {
                    let (state, scratch) = (&mut views(&mut state), scratch.view_mut());
                    let weights = widened.as_mut().unwrap_or(&mut weights).reborrow();
                    self.device().update(update, weights, gradient, state, statistics, scratch);
                }
                if let Some(updated) = widened {
                    let Shared { seed, .. } = *self.shared;
                    let key = Key { seed, stream: part.rounding, step: self.now.of_step };
                    let device = self.device();
                    device.round_stochastically(updated.as_view(), weights, key, &part.piece);
                }
                self.put_state(state, at);
                part.updates += 1;
            }
            (self.scratch, self.wide) = (Some(scratch), wide);
            self.note_after_update(corrected, values.view());
            self.store.put(weights.slot, at, values);
            self.put_sums(read, at);
            self.parameters.owned[bucket] = owned;
            self.updated[bucket] += 1;
        }
        if of.is_last {
            self.parameters.sums.end_all();
        }
    }
}

/// The parts of state tensors that were taken out.
fn views(taken: &mut Taken) -> SmallVec<[ViewMut<'_>; 2]> {
    taken.iter_mut().map(|(_, range, buffer)| buffer.view_mut().slice(range.clone())).collect()
}

/// Weights of 16 bits in fp32, in the room that there is for them; none of such as are in fp32.
fn widened<'a>(
    wide: &'a mut Option<Buffer>,
    weights: Elements<'_>,
    device: &dyn Device,
) -> Option<ViewMut<'a>> {
    if weights.format() == Format::F32 {
        return None;
    }
    let room = wide.as_mut().expect("there is room for weights of 16 bits that are updated");
    let mut room = room.view_mut().slice(0..weights.len());
    device.cast(weights, room.reborrow());
    Some(room)
}

/// Takes the first `count` elements off, if there are any elements.
fn split_off<'a>(elements: &mut Option<Elements<'a>>, count: usize) -> Option<Elements<'a>> {
    let all = elements.take()?;
    *elements = Some(all.slice(count..all.len()));
    Some(all.slice(0..count))
}
