//! Steps of the compression of gradients, on the processor.

use super::{CHUNK, Processor};
use crate::compression::{Step, finite, one_bit, top_k};
use crate::device::{Combine, Device};
use crate::{View, ViewMut};

/// Carries a step out.
///
/// # Panics
/// If it does not read and write what it says.
pub(super) fn compress(step: &Step, reads: &[View<'_>], writes: &mut [ViewMut<'_>]) {
    match (step, reads, writes) {
        (Step::Round, [gradients], [rounded, residual]) => round(*gradients, rounded, residual),
        (Step::Signs(shares), [gradients], [signs, residual]) => {
            one_bit::signs(shares, gradients.elements(), of(signs), of(residual));
        }
        (Step::SignsOfSum(share), [all], [sums, residual]) => {
            one_bit::signs_of_sum(share, all.elements(), of(sums), of(residual));
        }
        (Step::FromSigns(shares), [signs], [gradients]) => {
            one_bit::from_signs(shares, signs.elements(), of(gradients));
        }
        (Step::Largest, [gradients], [words, residual]) => {
            top_k::largest(gradients.elements(), of(words), of(residual));
        }
        (&Step::FromLargest { members }, [words], [gradients]) => {
            top_k::from_largest(words.elements(), members, of(gradients));
        }
        (Step::Left(factors), [gradients], [left, residual, right]) => {
            factors.left(gradients.elements(), of(left), of(residual), of(right));
        }
        (Step::Right(factors), [residual], [right, left]) => {
            factors.right(residual.elements(), of(right), of(left));
        }
        (Step::FromFactors { factors, members }, [left], [gradients, residual, right]) => {
            let left = left.elements();
            factors.product(left, *members, of(gradients), of(residual), of(right));
        }
        (step, reads, writes) => {
            panic!("{step:?} does not read {} and write {} tensors", reads.len(), writes.len())
        }
    }
}

/// The elements of what is written.
fn of<'a, T: super::region::Element>(view: &'a mut ViewMut<'_>) -> &'a mut [T] {
    view.reborrow().elements_mut()
}

/// [`Step::Round`].
fn round(gradients: View<'_>, rounded: &mut ViewMut<'_>, residual: &mut ViewMut<'_>) {
    Processor.combine(residual.reborrow(), gradients, Combine::Sum);
    Processor.cast(residual.as_view(), rounded.reborrow());
    let mut wide = [0.0; CHUNK];
    for (index, kept) in of::<f32>(residual).chunks_mut(CHUNK).enumerate() {
        let start = index * CHUNK;
        let sent = rounded.as_view().slice(start..start + kept.len());
        let sent = super::operands::widened(sent, &mut wide.as_mut_slice());
        for (kept, sent) in kept.iter_mut().zip(sent) {
            *kept = finite(*kept - sent);
        }
    }
}
