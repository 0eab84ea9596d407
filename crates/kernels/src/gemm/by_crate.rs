//! The product by the `gemm` crates, with the instructions of a tier.

use gemm_common::Parallelism;

use super::{Matrix, MatrixMut};
use crate::tier::Tier;

/// c = scale a b, or with `accumulate` c += scale a b, for views whose shapes match.
pub(super) fn multiply(
    tier: Tier,
    scale: f32,
    a: Matrix,
    b: Matrix,
    c: MatrixMut,
    accumulate: bool,
) {
    let product = match tier {
        Tier::Portable => portable(),
        // The crate chooses AVX2 with FMA, having no better compiled in.
        Tier::Avx2 | Tier::Avx512 => gemm_f32::gemm::f32::get_gemm_fn(),
    };
    // SAFETY: the views were checked to lie within their slices when they were made, transposing
    // keeps the set of elements, and `c` is borrowed exclusively and so overlaps neither `a` nor
    // `b`. Strides fit in `isize` as the slices they were checked against do.
    unsafe {
        product(
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

/// Sizes, and for each of result, left and right operand a pointer and its column and row stride;
/// whether to read the result, its factor and that of the product; conjugations; threads.
type Product = unsafe fn(
    usize,
    usize,
    usize,
    *mut f32,
    isize,
    isize,
    bool,
    *const f32,
    isize,
    isize,
    *const f32,
    isize,
    isize,
    f32,
    f32,
    bool,
    bool,
    bool,
    Parallelism,
);

/// Where the baseline is without SIMD worth the name, the crate decides by the processor alone, so
/// its plain kernel has to be asked for.
#[cfg(target_arch = "x86_64")]
fn portable() -> Product {
    scalar
}

/// Elsewhere the crate's choice is part of the baseline.
#[cfg(not(target_arch = "x86_64"))]
fn portable() -> Product {
    gemm_f32::gemm::f32::get_gemm_fn()
}

/// The crate's product with its kernel without SIMD.
///
/// # Safety
/// As for every [`Product`]: the strided views lie in memory that may be read, and for the result
/// written, which overlaps no operand.
#[cfg(target_arch = "x86_64")]
unsafe fn scalar(
    m: usize,
    n: usize,
    k: usize,
    result: *mut f32,
    result_column_stride: isize,
    result_row_stride: isize,
    read_result: bool,
    left: *const f32,
    left_column_stride: isize,
    left_row_stride: isize,
    right: *const f32,
    right_column_stride: isize,
    right_row_stride: isize,
    result_factor: f32,
    product_factor: f32,
    conjugate_result: bool,
    conjugate_left: bool,
    conjugate_right: bool,
    parallelism: Parallelism,
) {
    use gemm_common::gemm::gemm_basic_generic;
    use gemm_common::simd::Scalar;
    use gemm_f32::microkernel::scalar::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
    // SAFETY: passed on from the caller.
    unsafe {
        gemm_basic_generic::<_, f32, 1, MR_DIV_N, NR, MR_DIV_N, H_M, H_N>(
            Scalar,
            m,
            n,
            k,
            result,
            result_column_stride,
            result_row_stride,
            read_result,
            left,
            left_column_stride,
            left_row_stride,
            right,
            right_column_stride,
            right_row_stride,
            result_factor,
            product_factor,
            conjugate_result,
            conjugate_left,
            conjugate_right,
            |a, b, c| a * b + c,
            &UKR,
            &H_UKR,
            false,
            parallelism,
        );
    }
}
