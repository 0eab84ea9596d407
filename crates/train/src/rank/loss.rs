//! The losses of micro-batches, and of steps.

use shardloom_kernels::device::HostSliceMut;

use super::store::Slot;
use super::{At, Rank};

impl Rank {
    /// Notes the loss of a micro-batch. One that is run once more has the loss that it comes to then.
    pub(super) fn note_loss(&mut self, loss: Slot, at: At) {
        let mut value = [0.0_f32];
        let loss = self.store.get(loss, at).view();
        self.device().download(loss, HostSliceMut::F32(&mut value));
        let (loss, microbatch) = (f64::from(value[0]), at.microbatch());
        // There are no more than micro-batches in flight.
        match self.losses.iter_mut().find(|(of, _)| *of == microbatch) {
            Some((_, known)) => *known = loss,
            None => self.losses.push((microbatch, loss)),
        }
    }

    /// The sum of the losses of a step of the row, which are not needed any more.
    pub(super) fn take_loss(&mut self, step: u64) -> Option<f64> {
        let microbatches = self.shared.program.microbatches as u64;
        let mut sum = None;
        self.losses.retain(|&(microbatch, loss)| {
            let is_of_step = u64::from(microbatch) / microbatches == step;
            if is_of_step {
                *sum.get_or_insert(0.0) += loss;
            }
            !is_of_step
        });
        sum
    }
}
