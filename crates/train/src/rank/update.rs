//! The end of a step: the gradient norm, the optimizer's statistics, and the update.

use std::ops::Range;

use shardloom_kernels::optimizer::{Optimizer, Piece, Step};
use shardloom_kernels::{Buffer, DType, reduce};
use shardloom_program::{BucketId, ParamId, Tenant};
use smallvec::SmallVec;

use super::Rank;
use super::parameters::{Owned, answered_for};

/// What a step came to on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepOutcome {
    /// The sum of this rank's part of the loss, where the rank computes the loss.
    pub loss_sum: Option<f64>,
    /// The global norm of the gradients before clipping, where the program computes it.
    pub gradient_norm: Option<f64>,
    /// Whether the update was left out because a gradient was not finite.
    pub skipped: bool,
}

impl StepOutcome {
    /// Takes in the squared norm of all gradients.
    pub(super) fn decide(&mut self, squared_norm: f64, skip_non_finite: bool) {
        self.gradient_norm = Some(squared_norm.sqrt());
        self.skipped = skip_non_finite && !squared_norm.is_finite();
    }
}

impl Rank {
    /// The squared norm of the gradients this rank answers for.
    pub(super) fn own_squared_norm(&self) -> f64 {
        let class = self.class();
        class
            .buckets()
            .map(|(id, _)| {
                let range = answered_for(class, self.class, id, self.position);
                reduce::squared_norm(self.gradient(id, &range))
            })
            .sum()
    }

    /// A part of a bucket's reduced gradient, which lies in what this rank holds of it.
    fn gradient(&self, bucket: BucketId, range: &Range<usize>) -> &[f32] {
        let index = bucket.0 as usize;
        let gradients = &self.parameters.gradients;
        match &gradients.shards[index] {
            Some(shard) => {
                let own = self.class().shard_range(self.class().bucket(bucket), self.position);
                match range.is_empty() {
                    true => &[],
                    false => &shard.as_f32()[range.start - own.start..range.end - own.start],
                }
            }
            None => {
                let full = gradients.full[index].as_ref();
                &full.expect("unsharded gradients are whole").as_f32()[range.clone()]
            }
        }
    }

    /// The update of weights of a bucket that have had so many.
    fn step(&self, bucket: BucketId, updates: u64) -> Step {
        let norm = self.norm.squared.map(f64::sqrt);
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
        let step = self.now.step - u64::from(self.norm.amending);
        let share = self.parameters.rate_share * self.learning_rate_share(bucket);
        (self.shared.learning_rate.at(step) * share) as f32
    }

    /// This rank's share of a bucket's statistics, its parameters' one after the other.
    pub(super) fn own_statistics(&mut self, bucket: BucketId, round: usize) -> Buffer {
        let left_out = self.leaves_out();
        let optimizer = self.parameters.optimizer;
        let mut owned = std::mem::take(&mut self.parameters.owned[bucket.0 as usize]);
        let len = |part: &Owned| optimizer.statistics_len(&part.piece.block, round);
        let tenant = Tenant::Statistics(bucket);
        let mut all = self.arena.take(tenant, DType::F32, owned.iter().map(len).sum());
        all.as_f32_mut().fill(0.0);
        let mut rest = all.as_f32_mut();
        for part in &mut owned {
            let (out, tail) = rest.split_at_mut(len(part));
            rest = tail;
            if part.piece.elements() == 0 || left_out {
                continue;
            }
            let step = self.step(bucket, part.updates);
            let gradient = self.gradient(bucket, &part.at);
            let weights = self.weights(bucket, part);
            // What is left of the step before is no round of this one.
            let Owned { param, piece, state, statistics, .. } = part;
            let optimizer = self.decaying(optimizer, *param);
            let previous = if round == 0 { &[][..] } else { statistics };
            let mut state = slices(state);
            optimizer.statistics(step, round, piece, weights, gradient, &mut state, previous, out);
        }
        self.parameters.owned[bucket.0 as usize] = owned;
        all
    }

    pub(super) fn settle_statistics(&mut self, bucket: BucketId, round: usize, sums: Buffer) {
        let optimizer = self.parameters.optimizer;
        let mut rest = sums.as_f32();
        for part in &mut self.parameters.owned[bucket.0 as usize] {
            let len = optimizer.statistics_len(&part.piece.block, round);
            let (own, tail) = rest.split_at(len);
            rest = tail;
            part.statistics.clear();
            part.statistics.extend_from_slice(own);
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

    fn weights(&self, bucket: BucketId, part: &Owned) -> &[f32] {
        let index = bucket.0 as usize;
        let weights = &self.parameters.weights;
        let start = weights.ranges[index].start;
        &weights.resident[index].as_f32()[part.at.start - start..part.at.end - start]
    }

    /// Updates the part of a bucket's weights that this rank owns.
    pub(super) fn update(&mut self, bucket: BucketId) {
        let index = bucket.0 as usize;
        let last = index + 1 == self.class().buckets.len();
        self.parameters.weights.keep(index);
        let left_out = self.leaves_out();
        if !left_out {
            let optimizer = self.compensated(self.parameters.optimizer, bucket);
            let (acts, decay) = self.velocity_decay(bucket);
            let mut owned = std::mem::take(&mut self.parameters.owned[index]);
            let start = self.parameters.weights.ranges[index].start;
            let nothing = self.memory.alloc(DType::F32, 0);
            let mut weights =
                std::mem::replace(&mut self.parameters.weights.resident[index], nothing);
            self.parameters.corrections.before(index, weights.as_f32(), decay, acts);
            for Owned { param, piece, at, state, statistics, updates } in &mut owned {
                if piece.elements() == 0 {
                    continue;
                }
                let gradient = self.gradient(bucket, at);
                let mut state = slices(state);
                let weights = &mut weights.as_f32_mut()[at.start - start..at.end - start];
                let piece: &Piece = piece;
                let optimizer = self.decaying(optimizer, *param);
                let step = self.step(bucket, *updates);
                optimizer.apply(step, piece, weights, gradient, &mut state, statistics);
                *updates += 1;
            }
            self.parameters.corrections.after(index, weights.as_f32(), decay, acts);
            self.parameters.weights.resident[index] = weights;
            self.parameters.owned[index] = owned;
        }
        if last {
            self.parameters.forget_gradients();
        }
    }
}

/// The state of one parameter; no optimizer has more than two tensors of it.
fn slices(state: &mut [Buffer]) -> SmallVec<[&mut [f32]; 2]> {
    state.iter_mut().map(Buffer::as_f32_mut).collect()
}
