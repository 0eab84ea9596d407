//! The end of a step: the gradient norm, the optimizer's statistics, and the update.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardloom_kernels::device::Update;
use shardloom_kernels::optimizer::{Optimizer, Step};
use shardloom_kernels::{Buffer, View as Elements, ViewMut};
use shardloom_program::{BucketId, Content, Instruction, ParamId, TensorId, View};
use smallvec::SmallVec;

use super::Rank;
use super::parameters::Owned;

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

/// The optimizer's state of a part of a parameter, taken out while it is changed: the tensors, which part of
/// them. No optimizer has more than two.
type Taken = SmallVec<[(TensorId, Range<usize>, Buffer); 2]>;

impl Rank {
    /// The squared norm of the gradients that this rank owns, of those that `instruction` reads.
    pub(super) fn find_norm(&mut self, instruction: &Instruction) {
        let class = self.class();
        let of = |read: &View| {
            let bucket = class.tensor(read.tensor).bucket.expect("gradients lie in buckets");
            let owned = class.owned(class.bucket(bucket), self.position);
            self.device().squared_norm(self.gradient(*read, &owned))
        };
        let squared = instruction.reads.iter().map(of).sum();
        self.set_squared_norm(squared);
    }

    /// A part of a bucket's reduced gradients, which lies in what this rank holds of them.
    fn gradient(&self, held: View, range: &Range<usize>) -> Elements<'_> {
        let first = self.parameters.origins[held.tensor.0 as usize];
        let gradients = self.store.get(held.tensor, 0).view();
        match range.is_empty() {
            true => gradients.slice(0..0),
            false => gradients.slice(range.start - first..range.end - first),
        }
    }

    /// The update of weights of a bucket that have had so many.
    fn step(&self, bucket: BucketId, updates: u64) -> Step {
        let norm = self.squared_norm().map(f64::sqrt);
        let clipped = match (self.shared.program.clip_norm, norm) {
            (Some(most), Some(norm)) if norm > most => most / norm,
            _ => 1.0,
        };
        Step {
            number: updates + 1,
            learning_rate: self.learning_rate(bucket),
            // Gradients are the mean's over the step, of which each update has as large a part.
            gradient_scale: (clipped * f64::from(self.updates)) as f32,
        }
    }

    /// The learning rate of a bucket in the step that is updated for.
    pub(super) fn learning_rate(&self, bucket: BucketId) -> f32 {
        let share = self.parameters.rate_share * self.learning_rate_share(bucket);
        (self.shared.learning_rate.at(self.now.of_step) * share) as f32
    }

    /// Counts updates as a copy has them: a copy made before an update brings their number back with what
    /// it was made of.
    pub(super) fn count_back(&mut self, from: TensorId, to: TensorId) {
        let content = |tensor| self.class().tensor(tensor).content;
        let (kept, restored) = (content(to) == Content::Backup, content(from) == Content::Backup);
        let Some(bucket) = self.class().tensor(to).bucket.filter(|_| kept || restored) else {
            return;
        };
        for owned in &mut self.parameters.owned[bucket.0 as usize] {
            match kept {
                true => owned.updates_kept = owned.updates,
                false => owned.updates = owned.updates_kept,
            }
        }
    }

    /// This rank's share of a bucket's statistics, its parameters' one after the other.
    pub(super) fn find_statistics(&mut self, instruction: &Instruction, round: usize) {
        let left_out = self.leaves_out();
        let optimizer = self.parameters.optimizer;
        let (gradients, weights) = (instruction.reads[0], instruction.reads[1]);
        let statistics = instruction.writes[0].to.tensor;
        let bucket = self.bucket_of(statistics);
        let mut owned = std::mem::take(&mut self.parameters.owned[bucket.0 as usize]);
        let elements = self.class().elements(statistics, self.position);
        let mut all = self.arena.take(statistics, elements);
        self.device().fill(all.view_mut(), 0.0);
        let read = self.take_sums(instruction);
        let mut before = read.as_ref().map(|(_, sums)| sums.view());
        let mut scratch = self.take_scratch();
        let mut rest = all.view_mut();
        for part in &mut owned {
            let len = |round| optimizer.statistics_len(&part.piece.block, round);
            let (out, tail) = rest.split_at(len(round));
            rest = tail;
            let sums = round.checked_sub(1).and_then(|last| split_off(&mut before, len(last)));
            if part.piece.elements() == 0 || left_out {
                continue;
            }
            let step = self.step(bucket, part.updates);
            let mut state = self.take_state(part);
            let gradient = self.gradient(gradients, &part.at);
            let first = self.parameters.origins[weights.tensor.0 as usize];
            let weights = self.store.newest(weights.tensor).view();
            let weights = weights.slice(part.at.start - first..part.at.end - first);
            let optimizer = self.decaying(optimizer, part.param);
            let update = Update { optimizer, step, piece: &part.piece };
            {
                let (state, scratch) = (&mut views(&mut state), scratch.view_mut());
                let device = self.device();
                device.statistics(update, round, weights, gradient, state, sums, out, scratch);
            }
            self.put_state(state);
        }
        self.scratch = Some(scratch);
        self.put_sums(read);
        self.parameters.owned[bucket.0 as usize] = owned;
        self.store.put(statistics, 0, all);
    }

    /// Takes out the statistics that an instruction reads.
    fn take_sums(&mut self, instruction: &Instruction) -> Option<(TensorId, Buffer)> {
        let mut read = instruction.reads.iter().map(|read| read.tensor);
        let sums = read.find(|&it| self.class().tensor(it).content == Content::Statistics)?;
        Some((sums, self.store.take(sums, 0).expect("statistics are found before they are used")))
    }

    fn put_sums(&mut self, sums: Option<(TensorId, Buffer)>) {
        if let Some((tensor, buffer)) = sums {
            self.store.put(tensor, 0, buffer);
        }
    }

    /// The bucket that a tensor is of.
    fn bucket_of(&self, tensor: TensorId) -> BucketId {
        self.class().tensor(tensor).bucket.expect("it lies in a bucket")
    }

    /// Takes out the optimizer's state of a part of a parameter.
    fn take_state(&mut self, part: &Owned) -> Taken {
        let held = "state is there all the time";
        let take = |(tensor, range): &(TensorId, Range<usize>)| {
            (*tensor, range.clone(), self.store.take(*tensor, 0).expect(held))
        };
        part.state.iter().map(take).collect()
    }

    fn put_state(&mut self, state: Taken) {
        for (tensor, _, buffer) in state {
            self.store.put(tensor, 0, buffer);
        }
    }

    /// `optimizer` as it is for a parameter, which may be one that does not decay.
    fn decaying(&self, optimizer: Optimizer, param: ParamId) -> Optimizer {
        let value = self.class().param(param).value;
        let parameter = self.shared.graph.value(value).parameter();
        match parameter.is_some_and(|parameter| parameter.decays) {
            true => optimizer,
            false => optimizer.without_weight_decay(),
        }
    }

    /// Makes the weights that operators read of the master weights that were updated.
    pub(super) fn cast(&mut self, instruction: &Instruction) {
        let (master, weights) = (instruction.reads[0].tensor, instruction.writes[0].to);
        self.store.keep_version(weights.tensor);
        let range = self.class().view_range(weights, self.position);
        let mut held = self.store.take(weights.tensor, 0).expect("weights are there all the time");
        let rounded = held.view_mut().slice(range);
        self.device().cast(self.store.newest(master).view(), rounded);
        self.store.put(weights.tensor, 0, held);
    }

    /// Updates the part of a bucket's weights that this rank owns: the master weights, if there are such.
    pub(super) fn update(&mut self, instruction: &Instruction) {
        let (gradients, weights) = (instruction.reads[0], instruction.writes[0].to.tensor);
        let id = self.bucket_of(weights);
        let last = id.0 as usize + 1 == self.class().buckets.len();
        self.store.keep_version(weights);
        if !self.leaves_out() {
            let optimizer = self.compensated(self.parameters.optimizer, id);
            let mut owned = std::mem::take(&mut self.parameters.owned[id.0 as usize]);
            let mut values = self.store.take(weights, 0).expect("weights are there all the time");
            let start = self.parameters.origins[weights.0 as usize];
            self.note_before_update(instruction, id, values.view());
            let read = self.take_sums(instruction);
            let mut sums = read.as_ref().map(|(_, sums)| sums.view());
            let mut scratch = self.take_scratch();
            let last_round = optimizer.rounds().checked_sub(1);
            for part in &mut owned {
                let len = |round| optimizer.statistics_len(&part.piece.block, round);
                let statistics = last_round.and_then(|round| split_off(&mut sums, len(round)));
                if part.piece.elements() == 0 {
                    continue;
                }
                let mut state = self.take_state(part);
                let gradient = self.gradient(gradients, &part.at);
                let weights = values.view_mut().slice(part.at.start - start..part.at.end - start);
                let optimizer = self.decaying(optimizer, part.param);
                let step = self.step(id, part.updates);
                let update = Update { optimizer, step, piece: &part.piece };
                {
                    let (state, scratch) = (&mut views(&mut state), scratch.view_mut());
                    self.device().update(update, weights, gradient, state, statistics, scratch);
                }
                self.put_state(state);
                part.updates += 1;
            }
            self.scratch = Some(scratch);
            self.note_after_update(instruction, id, values.view());
            self.store.put(weights, 0, values);
            self.put_sums(read);
            self.parameters.owned[id.0 as usize] = owned;
        }
        if last {
            self.parameters.sums.end_all();
        }
    }
}

/// The parts of state tensors that were taken out.
fn views(taken: &mut Taken) -> SmallVec<[ViewMut<'_>; 2]> {
    taken.iter_mut().map(|(_, range, buffer)| buffer.view_mut().slice(range.clone())).collect()
}

/// Takes the first `count` elements off, if there are any elements.
fn split_off<'a>(elements: &mut Option<Elements<'a>>, count: usize) -> Option<Elements<'a>> {
    let all = elements.take()?;
    *elements = Some(all.slice(count..all.len()));
    Some(all.slice(0..count))
}
