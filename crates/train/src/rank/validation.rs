//! The norm of a step's gradients, which decides about its update, and updates made before it is known.
//!
//! A rank that [updates early](shardloom_program::Class::updates_early) copies what the update changes, and
//! updates with what it knows unless that already says that gradients must be clipped or are not finite.
//! When the whole norm is there it validates: the norm of all is not finite, or too large, wherever that of
//! some is. So whether an update is amended is the same on all ranks, whichever of them had left it out.

use shardloom_kernels::{Buffer, DType};
use shardloom_program::{BucketId, Operand, Tenant};

use super::Rank;

/// What is known of a norm, and of the update that was made with it.
#[derive(Default)]
pub(super) struct Norm {
    /// Its square, over those ranks that the program has summed it up over.
    pub squared: Option<f64>,
    /// Whether the update of the step before is being made again.
    pub amending: bool,
    /// Whether the update that was validated last has to be made again.
    amends: bool,
    /// Whether a step of this row was skipped and that ends the run.
    stopped: bool,
    /// What the last update changed, as it was before.
    backups: Vec<Backup>,
}

/// Weights and optimizer state that a rank updates of one bucket.
struct Backup {
    bucket: BucketId,
    /// The weights, then the state, parameter by parameter.
    kept: Buffer,
}

impl Rank {
    /// The squared norm of the ranks that sum it up together.
    pub(super) fn settle_norm(&mut self, squared: f64) {
        self.norm.squared = Some(squared);
        if !self.class().ends_late() {
            self.outcome.decide(squared, self.shared.skip_non_finite);
            self.norm.stopped |= self.outcome.skipped && self.shared.stops;
        }
    }

    /// The squared norm as a message.
    pub(super) fn norm_in_words(&self) -> [u32; Operand::NORM_WORDS] {
        let bits = self.norm.squared.expect("a norm is sent after it is summed up").to_bits();
        [(bits >> 32) as u32, bits as u32]
    }

    /// Takes in a squared norm that other ranks have sent: that of ranks to add to, or that of all.
    pub(super) fn hear_of_norm(&mut self, words: &Buffer, add: bool) {
        let [high, low] = [0, 1].map(|word: usize| u64::from(words.as_u32()[word]));
        let heard = f64::from_bits(high << 32 | low);
        let own = match add {
            true => self.norm.squared.expect("a rank sums its own up before it adds others'"),
            false => 0.0,
        };
        self.norm.squared = Some(own + heard);
    }

    /// Whether the update is left out: the step is skipped or one before it has ended the run, or so far
    /// it is only known that it must be clipped or skipped.
    pub(super) fn leaves_out(&self) -> bool {
        if self.norm.stopped {
            return true;
        }
        let Some(squared) = self.norm.squared else { return false };
        match self.class().updates_early() && !self.norm.amending {
            true => self.program().amends(squared),
            false => self.shared.skip_non_finite && !squared.is_finite(),
        }
    }

    /// Copies what the update of a bucket is about to change.
    pub(super) fn back_up(&mut self, bucket: BucketId) {
        if self.leaves_out() {
            return;
        }
        let index = bucket.0 as usize;
        let state = self.parameters.owned[index].iter().flat_map(|owned| &owned.state);
        let parts = [self.updated_weights(index)].into_iter().chain(state.map(Buffer::as_f32));
        let elements = parts.clone().map(<[f32]>::len).sum();
        let mut kept = self.arena.take(Tenant::Backup(bucket), DType::F32, elements);
        let mut rest = kept.as_f32_mut();
        for part in parts {
            let (to, tail) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = tail;
        }
        self.norm.backups.push(Backup { bucket, kept });
    }

    /// Decides about the update of the step before, with the norm of all gradients.
    pub(super) fn validate(&mut self) {
        let squared = self.norm.squared.expect("the norm has come back");
        let outcome = self.outcomes.last_mut().expect("a step has ended");
        outcome.decide(squared, self.shared.skip_non_finite);
        self.norm.stopped |= outcome.skipped && self.shared.stops;
        self.norm.amends = self.program().amends(squared);
        if !self.norm.amends {
            self.norm.backups.clear();
            return;
        }
        while let Some(Backup { bucket, kept }) = self.norm.backups.pop() {
            let index = bucket.0 as usize;
            let weights = self.updated_weights_mut(index);
            let (from, mut rest) = kept.as_f32().split_at(weights.len());
            weights.copy_from_slice(from);
            for owned in &mut self.parameters.owned[index] {
                for state in &mut owned.state {
                    let (from, tail) = rest.split_at(state.len());
                    state.as_f32_mut().copy_from_slice(from);
                    rest = tail;
                }
                owned.updates -= u64::from(owned.piece.elements() > 0);
            }
        }
        // What the step has computed so far rests on wrong weights, its losses too.
        self.slots.clear();
        self.losses.retain(|&(step, _)| step != self.now.step);
    }

    /// Whether the update that was validated last has to be made again.
    pub fn amends(&self) -> bool {
        self.norm.amends
    }

    /// The part of a bucket's weights that this rank updates.
    fn updated_weights(&self, bucket: usize) -> &[f32] {
        let range = self.updated_range(bucket);
        &self.parameters.weights.resident[bucket].as_f32()[range]
    }

    fn updated_weights_mut(&mut self, bucket: usize) -> &mut [f32] {
        let range = self.updated_range(bucket);
        &mut self.parameters.weights.resident[bucket].as_f32_mut()[range]
    }

    /// Where the parameters that this rank updates lie in what it holds of a bucket.
    fn updated_range(&self, bucket: usize) -> std::ops::Range<usize> {
        let owned = self.parameters.owned[bucket].iter().filter(|it| it.piece.elements() > 0);
        let ends = owned.map(|it| (it.at.start, it.at.end));
        let all = ends.reduce(|(start, end), it| (start.min(it.0), end.max(it.1)));
        let (start, end) = all.unwrap_or((0, 0));
        let first = if start < end { self.parameters.weights.ranges[bucket].start } else { 0 };
        start - first..end - first
    }
}
