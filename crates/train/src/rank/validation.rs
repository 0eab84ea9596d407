//! The norm of a step's gradients, which decides about its update, and updates made before it is known.
//!
//! A rank that [updates early](shardloom_program::Class::updates_early) copies what the update changes, and
//! updates with what it knows unless that already says that gradients must be clipped or are not finite.
//! When the whole norm is there it validates: the norm of all is not finite, or too large, wherever that of
//! some is. So whether an update is rolled back and made again is the same on all ranks, whichever of them
//! had left it out.

use shardloom_kernels::View;
use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_program::{Class, Content, Instruction, Mode, TensorId};

use super::Rank;
use super::parameters::is_weight;

/// What is known of a norm, and of the update that was made with it.
#[derive(Default)]
pub(super) struct Norm {
    /// Where its square is, over those ranks that the program has summed it up over.
    tensor: Option<TensorId>,
    /// Whether it is known.
    is_known: bool,
    /// Whether the update of the step before is being made again.
    pub amending: bool,
    /// Whether the update that was validated last has to be made again.
    amends: bool,
    /// Whether a step of this row was skipped and that ends the run.
    stopped: bool,
}

impl Norm {
    /// Of nothing yet, for ranks of `class`.
    pub fn new(class: &Class) -> Norm {
        let tensor = class.tensors().find(|(_, tensor)| tensor.content == Content::Norm);
        Norm { tensor: tensor.map(|(id, _)| id), ..Norm::default() }
    }

    /// Forgets everything but where it is.
    pub fn clear(&mut self) {
        *self = Norm { tensor: self.tensor, ..Norm::default() };
    }
}

impl Rank {
    /// The squared norm of gradients, as far as it is known.
    pub(super) fn squared_norm(&self) -> Option<f64> {
        let tensor = self.norm.tensor.filter(|_| self.norm.is_known)?;
        Some(self.number(self.store.newest(tensor).view()))
    }

    /// The one element of a tensor in double precision.
    fn number(&self, of: View<'_>) -> f64 {
        let mut number = [0.0];
        self.device().download(of, HostSliceMut::F64(&mut number));
        number[0]
    }

    pub(super) fn set_squared_norm(&mut self, squared: f64) {
        let tensor = self.norm.tensor.expect("the program looks at the norm");
        let Rank { shared, store, .. } = self;
        shared.device.upload(HostSlice::F64(&[squared]), store.newest_mut(tensor).view_mut());
        self.norm.is_known = true;
    }

    /// Takes in the squared norm of the ranks that sum it up together.
    pub(super) fn settle_norm(&mut self, squared: f64) {
        self.set_squared_norm(squared);
        if !self.class().ends_late() {
            self.outcome.decide(squared, self.shared.skip_non_finite);
            self.norm.stopped |= self.outcome.skipped && self.shared.stops;
        }
    }

    /// Takes in a squared norm that other ranks have sent: that of ranks to add to, or that of all.
    pub(super) fn hear_of_norm(&mut self, heard: f64, mode: Mode) {
        let own = match mode {
            Mode::Set => 0.0,
            Mode::Add | Mode::AddUnlessFirst => {
                self.squared_norm().expect("a rank sums its own up before it adds others'")
            }
        };
        self.set_squared_norm(own + heard);
    }

    /// Whether the update is left out: the step is skipped or one before it has ended the run, or so far
    /// it is only known that it must be clipped or skipped.
    pub(super) fn leaves_out(&self) -> bool {
        if self.norm.stopped {
            return true;
        }
        let Some(squared) = self.squared_norm() else { return false };
        match self.class().updates_early() && !self.norm.amending {
            true => self.program().amends(squared),
            false => self.shared.skip_non_finite && !squared.is_finite(),
        }
    }

    /// Copies what the update of a bucket is about to change.
    pub(super) fn back_up(&mut self, instruction: &Instruction) {
        if self.leaves_out() {
            return;
        }
        for (read, write) in instruction.reads.iter().zip(&instruction.writes) {
            let range = self.class().view_range(*read, self.position);
            let mut copy = self.arena.take(write.to.tensor, range.len());
            let original = self.store.newest(read.tensor).view().slice(range);
            self.device().copy(original, copy.view_mut());
            self.store.put(write.to.tensor, 0, copy);
        }
    }

    /// Decides about the update of the step before, with the norm of all gradients.
    pub(super) fn validate(&mut self, instruction: &Instruction) {
        let squared = self.squared_norm().expect("the norm has come back");
        let outcome = self.outcomes.last_mut().expect("a step has ended");
        outcome.decide(squared, self.shared.skip_non_finite);
        self.norm.stopped |= outcome.skipped && self.shared.stops;
        self.norm.amends = self.program().amends(squared);
        if !self.norm.amends {
            return;
        }
        // Behind the norm stand the copies, in the order of what they are copies of.
        for (copy, write) in instruction.reads[1..].iter().zip(&instruction.writes) {
            // An update that was left out has changed nothing.
            let Some(copy) = self.store.take(copy.tensor, 0) else { continue };
            let range = self.class().view_range(write.to, self.position);
            let Rank { shared, store, .. } = self;
            let changed = store.newest_mut(write.to.tensor).view_mut().slice(range);
            shared.device.copy(copy.view(), changed);
            let tensor = self.shared.program.class(self.class).tensor(write.to.tensor);
            if let (true, Some(bucket)) = (is_weight(tensor), tensor.bucket) {
                for owned in &mut self.parameters.owned[bucket.0 as usize] {
                    owned.updates -= u64::from(owned.piece.elements() > 0);
                }
            }
        }
        // What the step has computed so far rests on wrong weights, its losses too.
        self.store.drop_microbatches();
        self.losses.retain(|&(step, _)| step != self.now.step);
    }

    /// Whether the update that was validated last has to be made again.
    pub fn amends(&self) -> bool {
        self.norm.amends
    }
}
