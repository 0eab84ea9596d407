//! The product with AVX-512: a tile of the result is kept in registers while the right operand's block,
//! packed into panels, stays in the second-level cache (after Goto and van de Geijn, "Anatomy of
//! High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008).
//!
//! The rows of a tile meet all panels of a block before the next rows do. So the left operand's rows are
//! read from afar once and then from the first-level cache, which needs no copy of them, and the result is
//! written along its rows. Only a left operand whose columns are contiguous is packed.

use std::arch::x86_64::*;
use std::cell::RefCell;

use gemm_common::cache::CACHE_INFO;

use super::pack::pack;
use super::{Matrix, MatrixMut};
use crate::{Buffer, Format, Memory, processor};

/// Elements of a vector register.
const VECTOR: usize = 16;
/// Rows of a tile: 12 x 2 accumulators leave registers for a row of `b` and an element of `a`.
const ROWS: usize = 12;
/// Columns of a tile.
const COLUMNS: usize = 2 * VECTOR;
/// Depth of a block: the rows of a tile, 12 KiB, stay in the first-level cache beside the panel of `b`, 32
/// KiB, that streams through it.
const DEPTH: usize = 256;
/// Rows of `a` that are packed together: their panels, 240 KiB, stay in the second-level cache.
const PACKED_ROWS: usize = 20 * ROWS;
/// Up to so many rows, packing contiguous rows of `b` takes longer than it saves.
const FEW_ROWS: usize = 4 * ROWS;

thread_local! {
    /// This thread's packed blocks of `a` and `b`.
    static PANELS: RefCell<[Buffer; 2]> = RefCell::new(
        [PACKED_ROWS * DEPTH, most_columns() * DEPTH]
            .map(|elements| Memory::new(processor()).alloc(Format::F32, elements)),
    );
}

/// Columns of a block: its panels fill half of the second-level cache.
fn most_columns() -> usize {
    let half = CACHE_INFO[1].cache_bytes / 2 / size_of::<f32>();
    (half / DEPTH / COLUMNS * COLUMNS).clamp(8 * COLUMNS, 64 * COLUMNS)
}

/// The size of the blocks that `len` is cut into evenly: a multiple of `unit`, as is `limit`.
fn block_size(len: usize, unit: usize, limit: usize) -> usize {
    len.div_ceil(len.div_ceil(limit)).next_multiple_of(unit)
}

/// Where the elements of an operand's block lie, by tiles: a panel holds what a tile needs of it.
#[derive(Clone, Copy)]
struct Panels<'a> {
    /// From the first element on.
    data: &'a [f32],
    /// From a panel to the next.
    panel_stride: usize,
    /// From an element of a panel to the next one of the same step.
    stride: usize,
    /// From a step of the sums to the next.
    step_stride: usize,
}

impl Panels<'_> {
    /// Where panel `index`, of `len` elements a step and `depth` steps, begins.
    fn panel(&self, index: usize, len: usize, depth: usize) -> *const f32 {
        let panel = &self.data[index * self.panel_stride..];
        assert!((depth - 1) * self.step_stride + (len - 1) * self.stride < panel.len());
        panel.as_ptr()
    }
}

/// c = scale a b, or with `accumulate` c += scale a b, for views whose shapes match.
#[target_feature(enable = "avx512f")]
pub(super) fn multiply(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    let (m, n, k, c_stride) = (c.rows, c.columns, a.columns, c.row_stride);
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
    PANELS.with_borrow_mut(|panels| {
        let [a_panels, b_panels] =
            panels.each_mut().map(|panels| panels.view_mut().elements_mut::<f32>());
        let block_columns = block_size(n, COLUMNS, b_panels.len() / DEPTH);
        for column in (0..n).step_by(block_columns) {
            let columns = column..n.min(column + block_columns);
            for step in (0..k).step_by(depth) {
                let steps = step..k.min(step + depth);
                let depth = steps.len();
                let b = if b.column_stride == 1 && m <= FEW_ROWS {
                    Panels {
                        data: &b.data[step * b.row_stride + column..],
                        panel_stride: COLUMNS,
                        stride: 1,
                        step_stride: b.row_stride,
                    }
                } else {
                    let len = columns.len().next_multiple_of(COLUMNS) * depth;
                    pack::<COLUMNS>(b, steps.clone(), columns.clone(), &mut b_panels[..len]);
                    packed::<COLUMNS>(&b_panels[..len], depth)
                };
                for row in (0..m).step_by(PACKED_ROWS) {
                    let rows = row..m.min(row + PACKED_ROWS);
                    let a = if a.column_stride == 1 {
                        Panels {
                            data: &a.data[row * a.row_stride + step..],
                            panel_stride: ROWS * a.row_stride,
                            stride: a.row_stride,
                            step_stride: 1,
                        }
                    } else {
                        let len = rows.len().next_multiple_of(ROWS) * depth;
                        let (a, steps) = (a.transposed(), steps.clone());
                        pack::<ROWS>(a, steps, rows.clone(), &mut a_panels[..len]);
                        packed::<ROWS>(&a_panels[..len], depth)
                    };
                    let c = &mut c.data[row * c.row_stride + column..];
                    let sizes = [rows.len(), columns.len(), depth];
                    multiply_block(sizes, a, b, c, c_stride, scale, accumulate || step > 0);
                }
            }
        }
    });
}

/// A block that was packed into panels of `WIDTH`.
fn packed<const WIDTH: usize>(data: &[f32], depth: usize) -> Panels<'_> {
    Panels { data, panel_stride: WIDTH * depth, stride: 1, step_stride: WIDTH }
}

/// The product of `[m, depth]` and `[depth, n]`, to rows of `c` that lie `c_stride` apart.
#[target_feature(enable = "avx512f")]
fn multiply_block(
    [m, n, depth]: [usize; 3],
    a: Panels,
    b: Panels,
    c: &mut [f32],
    c_stride: usize,
    scale: f32,
    accumulate: bool,
) {
    for row in (0..m).step_by(ROWS) {
        let height = ROWS.min(m - row);
        let left = a.panel(row / ROWS, height, depth);
        for column in (0..n).step_by(COLUMNS) {
            let width = COLUMNS.min(n - column);
            let right = b.panel(column / COLUMNS, width, depth);
            let tile = &mut c[row * c_stride + column..];
            assert!((height - 1) * c_stride + width <= tile.len());
            let tile = Tile {
                width,
                depth,
                a: left,
                a_stride: a.stride,
                a_step: a.step_stride,
                b: right,
                b_step: b.step_stride,
                c: tile.as_mut_ptr(),
                c_stride,
                scale,
                accumulate,
            };
            // SAFETY: the panels hold `depth` steps of the tile's rows and columns, and the tile of `height`
            // rows and `width` columns lies in `c`, by the assertions.
            unsafe { tile.multiply(height) };
        }
    }
}

/// A tile of a product.
struct Tile {
    /// Columns, at most [`COLUMNS`].
    width: usize,
    /// Steps of the sums.
    depth: usize,
    a: *const f32,
    /// From a row of `a` to the next, and from a step to the next.
    a_stride: usize,
    a_step: usize,
    b: *const f32,
    b_step: usize,
    c: *mut f32,
    c_stride: usize,
    scale: f32,
    accumulate: bool,
}

impl Tile {
    /// Computes `height` rows.
    ///
    /// # Safety
    /// As of [`Tile::multiply_rows`], with `height` in 1 ..= [`ROWS`].
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply(self, height: usize) {
        let kernel = match (height, self.width == COLUMNS) {
            (1, true) => Tile::multiply_rows::<1, true>,
            (2, true) => Tile::multiply_rows::<2, true>,
            (3, true) => Tile::multiply_rows::<3, true>,
            (4, true) => Tile::multiply_rows::<4, true>,
            (5, true) => Tile::multiply_rows::<5, true>,
            (6, true) => Tile::multiply_rows::<6, true>,
            (7, true) => Tile::multiply_rows::<7, true>,
            (8, true) => Tile::multiply_rows::<8, true>,
            (9, true) => Tile::multiply_rows::<9, true>,
            (10, true) => Tile::multiply_rows::<10, true>,
            (11, true) => Tile::multiply_rows::<11, true>,
            (_, true) => Tile::multiply_rows::<12, true>,
            (1, false) => Tile::multiply_rows::<1, false>,
            (2, false) => Tile::multiply_rows::<2, false>,
            (3, false) => Tile::multiply_rows::<3, false>,
            (4, false) => Tile::multiply_rows::<4, false>,
            (5, false) => Tile::multiply_rows::<5, false>,
            (6, false) => Tile::multiply_rows::<6, false>,
            (7, false) => Tile::multiply_rows::<7, false>,
            (8, false) => Tile::multiply_rows::<8, false>,
            (9, false) => Tile::multiply_rows::<9, false>,
            (10, false) => Tile::multiply_rows::<10, false>,
            (11, false) => Tile::multiply_rows::<11, false>,
            (_, false) => Tile::multiply_rows::<12, false>,
        };
        // SAFETY: passed on from the caller.
        unsafe { kernel(self) }
    }

    /// Computes `H` rows, of all columns a tile can have or of fewer.
    ///
    /// # Safety
    /// `a` points to `H` elements for each of `depth` steps and `b` to `width` (1 ..= [`COLUMNS`]), at the
    /// strides given, and `c` to `H` rows of `width` writable elements.
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply_rows<const H: usize, const WHOLE: bool>(self) {
        /// Rows that are addressed from one pointer, by its stride and twice that.
        const GROUP: usize = 3;
        let Tile { a_stride, c_stride, .. } = self;
        let lanes = ((1_u64 << self.width) - 1) as u32;
        let masks = [lanes as __mmask16, (lanes >> VECTOR) as __mmask16];
        for row in 0..H {
            let row = self.c.wrapping_add(row * c_stride).cast_const();
            // Lines are fetched while sums are computed, also those that will only be written.
            _mm_prefetch::<_MM_HINT_T0>(row.cast());
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(2 * VECTOR - 1).cast());
        }
        let mut sums = [[_mm512_setzero_ps(); 2]; H];
        let mut groups: [*const f32; ROWS / GROUP] =
            std::array::from_fn(|group| self.a.wrapping_add(group * GROUP * a_stride));
        let mut b = self.b;
        for _ in 0..self.depth {
            // SAFETY: rows, columns and steps are those that the caller promises; masks keep to the columns.
            unsafe {
                // A mask costs a load an operation on a port that products need.
                let [b0, b1] = if WHOLE {
                    [_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(VECTOR))]
                } else {
                    let second = b.wrapping_add(VECTOR);
                    [_mm512_maskz_loadu_ps(masks[0], b), _mm512_maskz_loadu_ps(masks[1], second)]
                };
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = _mm512_set1_ps(*groups[row / GROUP].add(row % GROUP * a_stride));
                    sums[0] = _mm512_fmadd_ps(a, b0, sums[0]);
                    sums[1] = _mm512_fmadd_ps(a, b1, sums[1]);
                }
            }
            // Wrapping, as the last advance may end outside.
            groups = groups.map(|a| a.wrapping_add(self.a_step));
            b = b.wrapping_add(self.b_step);
        }
        let scale = _mm512_set1_ps(self.scale);
        for (row, sums) in sums.into_iter().enumerate() {
            for (half, (sum, mask)) in sums.into_iter().zip(masks).enumerate() {
                // Wrapping, as a half that the mask leaves empty may start outside.
                let c = self.c.wrapping_add(row * c_stride + half * VECTOR);
                // SAFETY: the mask keeps to the tile's elements, which the caller promises.
                unsafe {
                    let value = if self.accumulate {
                        _mm512_fmadd_ps(scale, sum, _mm512_maskz_loadu_ps(mask, c))
                    } else {
                        _mm512_mul_ps(scale, sum)
                    };
                    _mm512_mask_storeu_ps(c, mask, value);
                }
            }
        }
    }
}
