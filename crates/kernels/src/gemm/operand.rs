//! Operands of a product, as blocks of them are read.

use std::ops::Range;

use half::bf16;

use super::Matrix;
use super::pack::{pack, pack_pairs};
use super::vector::Vector;

/// An operand of a product, seen as lines, which are rows of the left one and columns of the right one, of steps of
/// the sums.
pub(super) trait Operand {
    /// Steps of the sums.
    fn steps(&self) -> usize;

    /// All of it, a row for each line and a column for each step, where elements lie as sums take them.
    fn elements(&self) -> Option<Matrix<'_>>;

    /// Writes some steps of some lines to `panels`, as consecutive panels of `WIDTH` lines, a panel holding `WIDTH`
    /// elements for each step. What a last, narrower panel has beside its lines stays as it is.
    ///
    /// # Safety
    /// The instructions of `V` are enabled.
    unsafe fn pack<V: Vector, const WIDTH: usize>(
        &self,
        steps: Range<usize>,
        lines: Range<usize>,
        panels: &mut [f32],
    );
}

impl Operand for Matrix<'_> {
    fn steps(&self) -> usize {
        self.columns
    }

    fn elements(&self) -> Option<Matrix<'_>> {
        Some(*self)
    }

    #[inline(always)]
    unsafe fn pack<V: Vector, const WIDTH: usize>(
        &self,
        steps: Range<usize>,
        lines: Range<usize>,
        panels: &mut [f32],
    ) {
        // SAFETY: passed on from the caller.
        unsafe { pack::<V, WIDTH>(self.transposed(), steps, lines, panels) }
    }
}

/// Lines of bfloat16, of which two along a line are an element: the bits of both, the first in the lower half. Behind
/// an odd number of them is 0.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a>(pub Matrix<'a, bf16>);

impl Operand for Pairs<'_> {
    fn steps(&self) -> usize {
        self.0.columns.div_ceil(2)
    }

    /// Where lines are contiguous, and all pairs of them begin where fp32 numbers may.
    fn elements(&self) -> Option<Matrix<'_>> {
        let Matrix { data, rows, columns, row_stride, column_stride } = self.0;
        let is_even = |number: usize| number.is_multiple_of(2);
        if column_stride != 1 || !is_even(columns) || !(is_even(row_stride) || rows <= 1) {
            return None;
        }
        // SAFETY: any bits of two such numbers are those of an fp32 number, which is never looked at as one.
        let (before, pairs, _) = unsafe { data.align_to::<f32>() };
        before.is_empty().then(|| Matrix::new(pairs, rows, columns / 2, row_stride / 2))
    }

    #[inline(always)]
    unsafe fn pack<V: Vector, const WIDTH: usize>(
        &self,
        steps: Range<usize>,
        lines: Range<usize>,
        panels: &mut [f32],
    ) {
        match self.elements() {
            // SAFETY: passed on from the caller.
            Some(pairs) => unsafe { pairs.pack::<V, WIDTH>(steps, lines, panels) },
            // SAFETY: as above.
            None => unsafe { pack_pairs::<V, WIDTH>(self.0, steps, lines, panels) },
        }
    }
}
