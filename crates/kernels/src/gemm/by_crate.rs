//! The product by the `gemm` crates, where they are faster.

use gemm_common::Parallelism;

use super::{Matrix, MatrixMut};
use crate::tier::Tier;

/// Below this many rows or columns their kernels for a matrix and a vector, which need no packing, are faster
/// than own code, whose tile would be mostly padding.
const LEAST: (usize, usize) = (2, 16);

/// Whether they compute `c` faster. They choose AVX2 with FMA where the processor has it, and so are not for its
/// portable kernels; on other architectures what they choose is part of the baseline.
pub(super) fn is_faster(tier: Tier, c: &MatrixMut) -> bool {
    let is_thin = c.rows < LEAST.0 || c.columns < LEAST.1;
    match cfg!(target_arch = "x86_64") {
        true => is_thin && tier != Tier::Portable,
        false => true,
    }
}

/// c = scale a b, or with `accumulate` c += scale a b, for views whose shapes match.
pub(super) fn multiply(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    // SAFETY: the views were checked to lie within their slices when they were made, transposing
    // keeps the set of elements, and `c` is borrowed exclusively and so overlaps neither `a` nor
    // `b`. Strides fit in `isize` as the slices they were checked against do.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            c.rows,
            c.columns,
            a.columns,
            c.data.as_mut_ptr(),
            1,
            c.row_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
