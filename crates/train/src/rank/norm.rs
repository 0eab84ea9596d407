//! The norm of gradients, and what follows from it: what a step came to, whether its update is left out, and
//! whether one that was made before the norm of all was known is right.
//!
//! The norm that a rank has goes from that of its own gradients to that of all as others are added to it. What
//! it says is taken down for the step that it is of each time, so that the last one counts: one that is not
//! finite stays so whatever is added.

use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_program::{Class, Content, Instruction, Mode, TensorId, View};

use super::Rank;

/// Where a norm is, and what it has come to in a row of steps.
#[derive(Default)]
pub(super) struct Norm {
    /// Where its square is; none where the program does not look at it.
    tensor: Option<TensorId>,
    /// Whether a step of this row was skipped and that ends the run.
    stopped: bool,
}

impl Norm {
    /// Of nothing yet, for ranks of `class`.
    pub fn new(class: &Class) -> Norm {
        let tensor = class.tensors().find(|(_, tensor)| tensor.content == Content::Norm);
        Norm { tensor: tensor.map(|(id, _)| id), stopped: false }
    }

    /// Forgets everything but where it is.
    pub fn clear(&mut self) {
        self.stopped = false;
    }
}

impl Rank {
    /// The squared norm of gradients, as far as it is known; none where the program does not look at it.
    pub(super) fn squared_norm(&self) -> Option<f64> {
        let tensor = self.norm.tensor?;
        let mut squared = [0.0];
        self.device().download(self.store.newest(tensor).view(), HostSliceMut::F64(&mut squared));
        Some(squared[0])
    }

    /// Takes in the squared norm as far as it is known now.
    pub(super) fn set_squared_norm(&mut self, squared: f64) {
        let tensor = self.norm.tensor.expect("the program looks at the norm");
        let Rank { shared, store, .. } = self;
        shared.device.upload(HostSlice::F64(&[squared]), store.newest_mut(tensor).view_mut());
        let skipped = self.shared.skip_non_finite && !squared.is_finite();
        let outcome = self.outcome(self.now.of_step);
        (outcome.gradient_norm, outcome.skipped) = (Some(squared.sqrt()), skipped);
        self.norm.stopped |= skipped && self.shared.stops;
    }

    /// Takes in a squared norm that other ranks have sent: that of ranks to add to, or that of all.
    pub(super) fn hear_of_norm(&mut self, heard: f64, mode: Mode) {
        let own = match mode {
            Mode::Set => 0.0,
            Mode::Add | Mode::AddUnlessFirst => {
                self.squared_norm().expect("a rank that adds to a norm has one")
            }
        };
        self.set_squared_norm(own + heard);
    }

    /// Whether the update is left out: the step is skipped, or one before it has ended the run.
    pub(super) fn leaves_out(&self) -> bool {
        let is_finite = self.squared_norm().is_none_or(f64::is_finite);
        self.norm.stopped || (self.shared.skip_non_finite && !is_finite)
    }

    /// Says whether an update that was made without looking at the norm is right, now that there is one.
    pub(super) fn test(&mut self, instruction: &Instruction) {
        let squared = self.squared_norm().expect("the program looks at the norm");
        let flag = instruction.writes[0].to.tensor;
        let mut right = self.arena.take(flag, 1);
        let is_right = u8::from(self.program().needs_no_norm(squared));
        self.device().upload(HostSlice::U8(&[is_right]), right.view_mut());
        self.store.put(flag, 0, right);
    }

    /// Whether a flag holds.
    pub fn holds(&self, flag: View) -> bool {
        let mut holds = [0];
        let held = self.store.get(flag.tensor, 0).view();
        self.device().download(held, HostSliceMut::U8(&mut holds));
        holds[0] != 0
    }
}
