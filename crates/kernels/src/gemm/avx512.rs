//! The product with AVX-512: blocks packed into panels that fit the caches (Goto and van de Geijn,
//! "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008), and a tile of the
//! result kept in registers.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::pack::pack;
use super::{Matrix, MatrixMut};
use crate::{Buffer, Format, Memory, processor};

/// Elements of a vector register.
const VECTOR: usize = 16;
/// Rows of a tile: 12 x 2 accumulators leave registers for a row of `b` and an element of `a`.
const ROWS: usize = 12;
/// Columns of a tile.
const COLUMNS: usize = 2 * VECTOR;
/// Depth of a block: a panel of `b`, 32 KiB, stays in the first-level cache.
const DEPTH: usize = 256;
/// Rows of a block: its panels of `a`, 240 KiB, stay in the second-level cache.
const BLOCK_ROWS: usize = 20 * ROWS;
/// Columns of a block.
const BLOCK_COLUMNS: usize = 1024;

thread_local! {
    /// This thread's packed blocks of `a` and `b`.
    static PANELS: RefCell<[Buffer; 2]> = RefCell::new(
        [BLOCK_ROWS * DEPTH, BLOCK_COLUMNS * DEPTH]
            .map(|elements| Memory::new(processor()).alloc(Format::F32, elements)),
    );
}

/// The size of the blocks that `len` is cut into evenly: a multiple of `unit`, as is `limit`.
fn block_size(len: usize, unit: usize, limit: usize) -> usize {
    len.div_ceil(len.div_ceil(limit)).next_multiple_of(unit)
}

/// c = scale a b, or with `accumulate` c += scale a b, for views whose shapes match.
#[target_feature(enable = "avx512f")]
pub(super) fn multiply(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    let (m, n, k) = (c.rows, c.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            for row in 0..m {
                c.data[row * c.row_stride..][..n].fill(0.0);
            }
        }
        return;
    }
    let depth = block_size(k, 1, DEPTH);
    let block_rows = block_size(m, ROWS, BLOCK_ROWS);
    let block_columns = block_size(n, COLUMNS, BLOCK_COLUMNS);
    PANELS.with_borrow_mut(|[a_panels, b_panels]| {
        let [a_panels, b_panels] =
            [a_panels, b_panels].map(|panels| panels.view_mut().elements_mut());
        for column in (0..n).step_by(block_columns) {
            let columns = column..n.min(column + block_columns);
            for step in (0..k).step_by(depth) {
                let steps = step..k.min(step + depth);
                let depth = steps.len();
                let b_len = columns.len().next_multiple_of(COLUMNS) * depth;
                pack::<COLUMNS>(b, steps.clone(), columns.clone(), &mut b_panels[..b_len]);
                for row in (0..m).step_by(block_rows) {
                    let rows = row..m.min(row + block_rows);
                    let a_len = rows.len().next_multiple_of(ROWS) * depth;
                    pack::<ROWS>(
                        a.transposed(),
                        steps.clone(),
                        rows.clone(),
                        &mut a_panels[..a_len],
                    );
                    let accumulate = accumulate || step > 0;
                    for (b, column) in b_panels[..b_len]
                        .chunks_exact(COLUMNS * depth)
                        .zip(columns.clone().step_by(COLUMNS))
                    {
                        let width = COLUMNS.min(columns.end - column);
                        for (a, row) in a_panels[..a_len]
                            .chunks_exact(ROWS * depth)
                            .zip(rows.clone().step_by(ROWS))
                        {
                            let height = ROWS.min(rows.end - row);
                            let at = row * c.row_stride + column;
                            let tile = &mut c.data[at..];
                            assert!((height - 1) * c.row_stride + width <= tile.len());
                            // SAFETY: the panels hold `depth` steps of a tile; the tile of `height`
                            // rows and `width` columns lies in `c` by the assertion.
                            unsafe {
                                multiply_tile(
                                    height,
                                    width,
                                    depth,
                                    a.as_ptr(),
                                    b.as_ptr(),
                                    tile.as_mut_ptr(),
                                    c.row_stride,
                                    scale,
                                    accumulate,
                                );
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Picks the kernel for a tile of `height` rows.
///
/// # Safety
/// As of [`tile`], with `height` in 1 ..= [`ROWS`] and `width` in 1 ..= [`COLUMNS`].
#[target_feature(enable = "avx512f")]
unsafe fn multiply_tile(
    height: usize,
    width: usize,
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    c_stride: usize,
    scale: f32,
    accumulate: bool,
) {
    let kernel = match height {
        1 => tile::<1>,
        2 => tile::<2>,
        3 => tile::<3>,
        4 => tile::<4>,
        5 => tile::<5>,
        6 => tile::<6>,
        7 => tile::<7>,
        8 => tile::<8>,
        9 => tile::<9>,
        10 => tile::<10>,
        11 => tile::<11>,
        _ => tile::<12>,
    };
    // SAFETY: passed on from the caller.
    unsafe { kernel(width, depth, a, b, c, c_stride, scale, accumulate) }
}

/// Computes a tile of `H` rows and `width` columns.
///
/// # Safety
/// `a` points to `depth` steps of [`ROWS`] elements, `b` to `depth` steps of [`COLUMNS`] elements,
/// and `c` to `H` rows, `c_stride` apart, of `width` (at most [`COLUMNS`]) writable elements.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const H: usize>(
    width: usize,
    depth: usize,
    mut a: *const f32,
    mut b: *const f32,
    c: *mut f32,
    c_stride: usize,
    scale: f32,
    accumulate: bool,
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; H];
    for _ in 0..depth {
        // SAFETY: the loop stays within the `depth` steps that the caller promises, and the advance
        // ends at most one past them.
        unsafe {
            let b0 = _mm512_loadu_ps(b);
            let b1 = _mm512_loadu_ps(b.add(VECTOR));
            for (row, sums) in sums.iter_mut().enumerate() {
                let a = _mm512_set1_ps(*a.add(row));
                sums[0] = _mm512_fmadd_ps(a, b0, sums[0]);
                sums[1] = _mm512_fmadd_ps(a, b1, sums[1]);
            }
            a = a.add(ROWS);
            b = b.add(COLUMNS);
        }
    }
    let lanes = ((1_u64 << width) - 1) as u32;
    let masks = [lanes as __mmask16, (lanes >> VECTOR) as __mmask16];
    let scale = _mm512_set1_ps(scale);
    for (row, sums) in sums.into_iter().enumerate() {
        for (half, (sum, mask)) in sums.into_iter().zip(masks).enumerate() {
            // Wrapping, as a half that the mask leaves empty may start outside.
            let c = c.wrapping_add(row * c_stride + half * VECTOR);
            // SAFETY: the mask keeps to the tile's elements, which the caller promises.
            unsafe {
                let value = if accumulate {
                    _mm512_fmadd_ps(scale, sum, _mm512_maskz_loadu_ps(mask, c))
                } else {
                    _mm512_mul_ps(scale, sum)
                };
                _mm512_mask_storeu_ps(c, mask, value);
            }
        }
    }
}
