//! The norm of gradients, and what follows from it: what a step came to, whether its update is left out, and
//! whether one that was made before the norm of all was known is right.
//!
//! The norm that a rank has goes from that of its own gradients to that of all as others are added to it. What
//! it says is taken down for the step that it is of each time, so that the last one counts: one that is not
//! finite stays so whatever is added.

use std::ops::Range;

use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_program::{Class, Content, Instruction, Mode, View};

use super::arena::Room;
use super::link::Linker;
use super::store::{Slot, Store};
use super::table_rows::{of_rows, rows_of};
use super::{At, Rank};

/// Where a norm is, and what it has come to in a row of steps.
pub(super) struct Norm {
    /// Where its square is; none where the program does not look at it.
    slot: Option<Slot>,
    /// Whether a step of this row was skipped and that ends the run.
    stopped: bool,
}

/// Gradients whose squares are summed: those that the rank owns, by where they lie in what it holds.
pub(crate) struct Norms(Box<[Owned]>);

/// Gradients of a bucket that a rank owns.
struct Owned {
    gradients: Slot,
    /// The rows that they are of, if they are not of all of it.
    rows: Option<Slot>,
    /// Where those that the rank owns lie in what it holds, or in the table.
    range: Range<usize>,
}

/// Where it is said whether an update was right.
pub(crate) struct Test {
    flag: Room,
}

impl Norms {
    /// Links a sum of squares.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Norms {
        let Linker { class, position, .. } = *linker;
        let of = |&read: &View| {
            let bucket = class.tensor(read.tensor).bucket.expect("gradients lie in buckets");
            let owned = class.owned(class.bucket(bucket), position);
            let first = linker.parameters.origins[read.tensor.0 as usize];
            let range = match owned.is_empty() {
                true => 0..0,
                false => owned.start - first..owned.end - first,
            };
            let rows = rows_of(linker, instruction, read.tensor);
            Owned { gradients: linker.slot(read), rows, range }
        };
        let is_gradient = |read: &&View| class.tensor(read.tensor).content == Content::Gradient;
        Norms(instruction.reads.iter().filter(is_gradient).map(of).collect())
    }
}

impl Test {
    /// Links a test.
    pub(super) fn link(linker: &Linker<'_>, instruction: &Instruction) -> Test {
        Test { flag: linker.room(instruction.writes[0].to.tensor) }
    }
}

impl Norm {
    /// Of nothing yet, for ranks of `class`.
    pub fn new(class: &Class, store: &Store) -> Norm {
        let tensor = class.tensors().find(|(_, tensor)| tensor.content == Content::Norm);
        Norm { slot: tensor.map(|(id, _)| store.slot(id)), stopped: false }
    }

    /// Forgets everything but where it is.
    pub fn clear(&mut self) {
        self.stopped = false;
    }
}

impl Rank {
    /// The squared norm of the gradients that this rank owns, without the scale of the loss.
    pub(super) fn find_norm(&mut self, norms: &Norms, at: At) {
        let of = |Owned { gradients, rows, range }: &Owned| match *rows {
            Some(rows) => {
                let rows = of_rows(&self.store, rows, *gradients, at);
                self.device().squared_norm_of_rows(rows, range.clone())
            }
            None => {
                let gradients = self.store.get(*gradients, at).view();
                self.device().squared_norm(gradients.slice(range.clone()))
            }
        };
        let scaled: f64 = norms.0.iter().map(of).sum();
        self.set_squared_norm(scaled / self.loss_scale.powi(2));
    }

    /// The squared norm of gradients, as far as it is known; none where the program does not look at it.
    pub(super) fn squared_norm(&self) -> Option<f64> {
        let slot = self.norm.slot?;
        let mut squared = [0.0];
        self.device().download(self.store.newest(slot).view(), HostSliceMut::F64(&mut squared));
        Some(squared[0])
    }

    /// Takes in the squared norm as far as it is known now.
    pub(super) fn set_squared_norm(&mut self, squared: f64) {
        let slot = self.norm.slot.expect("the program looks at the norm");
        let Rank { shared, store, .. } = self;
        shared.device.upload(HostSlice::F64(&[squared]), store.newest_mut(slot).view_mut());
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
    pub(super) fn test(&mut self, Test { flag }: &Test, at: At) {
        let squared = self.squared_norm().expect("the program looks at the norm");
        let mut right = self.arena.take(flag, at);
        let is_right = u8::from(self.program().needs_no_norm(squared));
        self.device().upload(HostSlice::U8(&[is_right]), right.view_mut());
        self.store.put(flag.slot, at, right);
    }

    /// Whether a flag holds.
    pub fn holds(&self, flag: View) -> bool {
        let mut holds = [0];
        let held = self.store.get(self.store.slot(flag.tensor), At::START).view();
        self.device().download(held, HostSliceMut::U8(&mut holds));
        holds[0] != 0
    }
}
