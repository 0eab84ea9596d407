//! The product by vectors: a tile of the result is kept in registers while the right operand's block, packed
//! into panels, stays in the second-level cache (after Goto and van de Geijn, "Anatomy of High-Performance
//! Matrix Multiplication", ACM TOMS 34(3), 2008).
//!
//! The rows of a tile are multiplied with all panels of a block before the next rows are. So the left operand's rows are
//! read from afar once and then from the first-level cache, which needs no copy of them, and the result is
//! written along its rows. Only a left operand whose columns are contiguous is packed.
//!
//! Sums are of fp32 numbers, or of pairs of bfloat16 ([`Pairs`]), which are as large: to all but a step of the sums
//! they are alike.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};
use std::cell::RefCell;

use gemm_common::cache::CACHE_INFO;
#[cfg(target_arch = "x86_64")]
use half::bf16;

use super::operand::{Operand, Pairs};
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::vector::{Four, Numbers, PairsOfBf16, Step, Vector};
use super::{Matrix, MatrixMut};
use crate::{Buffer, Format, Memory, processor};

/// Depth of a block: the rows of a tile, 6 or 12 KiB, stay in the first-level cache, through which panels of `b`,
/// of 8, 16 or 32 KiB, stream.
const DEPTH: usize = 256;
/// Rows of `a` that are packed together: their panels take 240 KiB of the second-level cache.
const PACKED_ROWS: usize = 240;
/// Up to so many rows, packing contiguous rows of `b` takes longer than it saves.
const FEW_ROWS: usize = 48;
/// The most rows and columns of a tile.
const MOST_ROWS: usize = 12;
const MOST_COLUMNS: usize = 32;

thread_local! {
    /// This thread's packed blocks of `a` and `b`.
    static PANELS: RefCell<[Buffer; 2]> = RefCell::new(
        [PACKED_ROWS * DEPTH, most_columns() * DEPTH]
            .map(|elements| Memory::new(processor()).alloc(Format::F32, elements)),
    );
}

/// Columns of a block: its panels fill half of the second-level cache, or 256 KiB where that is less. (Miri knows
/// of no caches.)
fn most_columns() -> usize {
    if cfg!(miri) {
        return 8 * MOST_COLUMNS;
    }
    let half = CACHE_INFO[1].cache_bytes / 2 / size_of::<f32>();
    (half / DEPTH / MOST_COLUMNS * MOST_COLUMNS).clamp(8 * MOST_COLUMNS, 64 * MOST_COLUMNS)
}

/// The size of the blocks that `len` is cut into evenly: a multiple of `unit`, as is `limit`.
pub(super) fn block_size(len: usize, unit: usize, limit: usize) -> usize {
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

impl<'a> Panels<'a> {
    /// A block that was packed into panels of `width`.
    fn packed(data: &'a [f32], width: usize, depth: usize) -> Panels<'a> {
        Panels { data, panel_stride: width * depth, stride: 1, step_stride: width }
    }

    /// Where panel `index`, of `len` elements a step and `depth` steps, begins.
    fn panel(&self, index: usize, len: usize, depth: usize) -> *const f32 {
        let panel = &self.data[index * self.panel_stride..];
        assert!((depth - 1) * self.step_stride + (len - 1) * self.stride < panel.len());
        panel.as_ptr()
    }
}

/// c = scale a b, or with `accumulate` c += scale a b, for views whose shapes match, with AVX-512.
///
/// # Safety
/// The processor has it.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn by_avx512(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    /// The whole of it, compiled for these instructions.
    #[target_feature(enable = "avx512f")]
    fn run(panels: [&mut [f32]; 2], scale: f32, a: Matrix, b: Matrix, c: MatrixMut, add: bool) {
        // SAFETY: the instructions are enabled.
        unsafe { multiply::<__m512, Numbers, 12, 32>(panels, scale, (&a, &b.transposed()), c, add) }
    }
    // SAFETY: the caller promises that the processor has them.
    with_panels(|panels| unsafe { run(panels, scale, a, b, c, accumulate) });
}

/// Likewise with AVX2 and FMA.
///
/// # Safety
/// The processor has them.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn by_avx2(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    /// The whole of it, compiled for these instructions.
    #[target_feature(enable = "avx2,fma")]
    fn run(panels: [&mut [f32]; 2], scale: f32, a: Matrix, b: Matrix, c: MatrixMut, add: bool) {
        // SAFETY: the instructions are enabled.
        unsafe { multiply::<__m256, Numbers, 6, 16>(panels, scale, (&a, &b.transposed()), c, add) }
    }
    // SAFETY: the caller promises that the processor has them.
    with_panels(|panels| unsafe { run(panels, scale, a, b, c, accumulate) });
}

/// Likewise with what every processor has.
pub(super) fn portable(scale: f32, a: Matrix, b: Matrix, c: MatrixMut, accumulate: bool) {
    // SAFETY: it needs no instructions that are not enabled.
    with_panels(|panels| unsafe {
        multiply::<Four, Numbers, 6, 8>(panels, scale, (&a, &b.transposed()), c, accumulate);
    });
}

/// c = a b, or with `accumulate` c += a b, of pairs along the sums (`b` with a row for each column of `c`), with
/// AVX-512 and AVX512-BF16.
///
/// # Safety
/// The processor has them.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn pairs_by_avx512(a: Pairs, b: Pairs, c: MatrixMut, accumulate: bool) {
    /// The whole of it, compiled for these instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn run(panels: [&mut [f32]; 2], a: Pairs, b: Pairs, c: MatrixMut, add: bool) {
        // SAFETY: the instructions are enabled.
        unsafe { multiply::<__m512, PairsOfBf16, 12, 32>(panels, 1.0, (&a, &b), c, add) }
    }
    // SAFETY: the caller promises that the processor has them.
    with_panels(|panels| unsafe { run(panels, a, b, c, accumulate) });
}

/// Likewise of bfloat16 with the tile registers of AMX, and AVX-512 around them.
///
/// # Safety
/// The processor has them, and the operating system lets this process use them.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn by_tiles<R: tiles::Target>(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    bias: Option<&[f32]>,
    c: MatrixMut<'_, R>,
    accumulate: bool,
) {
    // SAFETY: the caller promises it.
    with_panels(|panels| unsafe { tiles::multiply(panels, a, b, bias, c, accumulate) });
}

/// Likewise with what every processor has.
pub(super) fn pairs_portable(a: Pairs, b: Pairs, c: MatrixMut, accumulate: bool) {
    // SAFETY: it needs no instructions that are not enabled.
    with_panels(|panels| unsafe {
        multiply::<Four, PairsOfBf16, 6, 8>(panels, 1.0, (&a, &b), c, accumulate);
    });
}

/// Lends this thread's panels.
fn with_panels(user: impl FnOnce([&mut [f32]; 2])) {
    PANELS.with_borrow_mut(|panels| {
        user(panels.each_mut().map(|panels| panels.view_mut().elements_mut()));
    });
}

/// The product with tiles of `ROWS` x `COLUMNS`, which are [`Vector::ROWS`] and two vectors.
///
/// # Safety
/// The instructions of `V` and `S` are enabled. (What is inlined here has them too; the rest is slower but right.)
#[inline(always)]
unsafe fn multiply<V: Vector, S: Step<V>, const ROWS: usize, const COLUMNS: usize>(
    [a_panels, b_panels]: [&mut [f32]; 2],
    scale: f32,
    (left, right): (&impl Operand, &impl Operand),
    c: MatrixMut,
    accumulate: bool,
) {
    const { assert!(ROWS == V::ROWS && ROWS <= MOST_ROWS && PACKED_ROWS.is_multiple_of(ROWS)) };
    const { assert!(COLUMNS == 2 * V::LANES && COLUMNS <= MOST_COLUMNS) };
    let (m, n, k, c_stride) = (c.rows, c.columns, left.steps(), c.row_stride);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            for row in 0..m {
                c.data[row * c_stride..][..n].fill(0.0);
            }
        }
        return;
    }
    let depth = block_size(k, 1, DEPTH);
    let block_columns = block_size(n, COLUMNS, b_panels.len() / DEPTH);
    for column in (0..n).step_by(block_columns) {
        let columns = column..n.min(column + block_columns);
        for step in (0..k).step_by(depth) {
            let steps = step..k.min(step + depth);
            let depth = steps.len();
            let in_place = |it: &Matrix<'_>| it.row_stride == 1 && m <= FEW_ROWS;
            let b = if let Some(b) = right.elements().filter(in_place) {
                Panels {
                    data: &b.data[step * b.column_stride + column..],
                    panel_stride: COLUMNS,
                    stride: 1,
                    step_stride: b.column_stride,
                }
            } else {
                let panels = &mut b_panels[..columns.len().next_multiple_of(COLUMNS) * depth];
                // SAFETY: passed on from the caller; so it is below.
                unsafe { right.pack::<V, COLUMNS>(steps.clone(), columns.clone(), panels) };
                Panels::packed(panels, COLUMNS, depth)
            };
            for row in (0..m).step_by(PACKED_ROWS) {
                let rows = row..m.min(row + PACKED_ROWS);
                let in_place = |it: &Matrix<'_>| it.column_stride == 1;
                let a = if let Some(a) = left.elements().filter(in_place) {
                    Panels {
                        data: &a.data[row * a.row_stride + step..],
                        panel_stride: ROWS * a.row_stride,
                        stride: a.row_stride,
                        step_stride: 1,
                    }
                } else {
                    let panels = &mut a_panels[..rows.len().next_multiple_of(ROWS) * depth];
                    // SAFETY: as above.
                    unsafe { left.pack::<V, ROWS>(steps.clone(), rows.clone(), panels) };
                    Panels::packed(panels, ROWS, depth)
                };
                let c = &mut c.data[row * c_stride + column..];
                let sizes = [rows.len(), columns.len(), depth];
                let accumulate = accumulate || step > 0;
                // SAFETY: as above.
                unsafe { multiply_block::<V, S>(sizes, a, b, c, c_stride, scale, accumulate) };
            }
        }
    }
}

/// The product of `[m, depth]` and `[depth, n]`, to rows of `c` that lie `c_stride` apart.
///
/// # Safety
/// The instructions of `V` and `S` are enabled.
#[inline(always)]
unsafe fn multiply_block<V: Vector, S: Step<V>>(
    [m, n, depth]: [usize; 3],
    a: Panels,
    b: Panels,
    c: &mut [f32],
    c_stride: usize,
    scale: f32,
    accumulate: bool,
) {
    for row in (0..m).step_by(V::ROWS) {
        let height = V::ROWS.min(m - row);
        let left = a.panel(row / V::ROWS, height, depth);
        for column in (0..n).step_by(2 * V::LANES) {
            let width = (n - column).min(2 * V::LANES);
            let right = b.panel(column / (2 * V::LANES), width, depth);
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
            unsafe { tile.multiply::<V, S>(height) };
        }
    }
}

/// A tile of a product.
struct Tile {
    /// Columns.
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
    /// As of [`Tile::multiply_rows`], with `height` in 1 ..= [`Vector::ROWS`].
    #[inline(always)]
    unsafe fn multiply<V: Vector, S: Step<V>>(self, height: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match (height, self.width == 2 * V::LANES) {
                (1, true) => self.multiply_rows::<V, S, 1, true>(),
                (2, true) => self.multiply_rows::<V, S, 2, true>(),
                (3, true) => self.multiply_rows::<V, S, 3, true>(),
                (4, true) => self.multiply_rows::<V, S, 4, true>(),
                (5, true) => self.multiply_rows::<V, S, 5, true>(),
                (6, true) => self.multiply_rows::<V, S, 6, true>(),
                (7, true) => self.multiply_rows::<V, S, 7, true>(),
                (8, true) => self.multiply_rows::<V, S, 8, true>(),
                (9, true) => self.multiply_rows::<V, S, 9, true>(),
                (10, true) => self.multiply_rows::<V, S, 10, true>(),
                (11, true) => self.multiply_rows::<V, S, 11, true>(),
                (_, true) => self.multiply_rows::<V, S, 12, true>(),
                (1, false) => self.multiply_rows::<V, S, 1, false>(),
                (2, false) => self.multiply_rows::<V, S, 2, false>(),
                (3, false) => self.multiply_rows::<V, S, 3, false>(),
                (4, false) => self.multiply_rows::<V, S, 4, false>(),
                (5, false) => self.multiply_rows::<V, S, 5, false>(),
                (6, false) => self.multiply_rows::<V, S, 6, false>(),
                (7, false) => self.multiply_rows::<V, S, 7, false>(),
                (8, false) => self.multiply_rows::<V, S, 8, false>(),
                (9, false) => self.multiply_rows::<V, S, 9, false>(),
                (10, false) => self.multiply_rows::<V, S, 10, false>(),
                (11, false) => self.multiply_rows::<V, S, 11, false>(),
                (_, false) => self.multiply_rows::<V, S, 12, false>(),
            }
        }
    }

    /// Computes `H` rows, of all columns that a tile can have or of fewer.
    ///
    /// # Safety
    /// `a` points to `H` elements for each of `depth` steps and `b` to `width` (at most two vectors,
    /// and if `WHOLE` exactly two), at the strides given, and `c` to `H` rows of `width` writable elements.
    #[inline(always)]
    unsafe fn multiply_rows<V: Vector, S: Step<V>, const H: usize, const WHOLE: bool>(self) {
        /// Rows that are addressed from one pointer, by its stride and twice that.
        const GROUP: usize = 3;
        let Tile { a_stride, c_stride, .. } = self;
        // SAFETY: rows, columns and steps are those that the caller promises, and masks keep to the columns.
        // Pointers are wrapping where the last advance, or a vector that a mask leaves empty, may be outside.
        unsafe {
            let first = V::mask(self.width.min(V::LANES));
            let second = V::mask(self.width.saturating_sub(V::LANES));
            for row in 0..H {
                // Lines are fetched while sums are computed, also those that will only be written.
                let row = self.c.wrapping_add(row * c_stride).cast_const();
                V::prefetch(row);
                V::prefetch(row.wrapping_add(2 * V::LANES - 1));
            }
            let mut sums = [[V::splat(0.0); 2]; H];
            let mut groups = [self.a; 4];
            for (group, a) in groups.iter_mut().enumerate() {
                *a = a.wrapping_add(group * GROUP * a_stride);
            }
            let mut b = self.b;
            for _ in 0..self.depth {
                // A mask costs a load an operation on a port that products need.
                let [b0, b1] = match WHOLE {
                    true => [V::load(b), V::load(b.add(V::LANES))],
                    false => {
                        [V::load_some(b, first), V::load_some(b.wrapping_add(V::LANES), second)]
                    }
                };
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = V::splat(*groups[row / GROUP].add(row % GROUP * a_stride));
                    sums[0] = S::add(a, b0, sums[0]);
                    sums[1] = S::add(a, b1, sums[1]);
                }
                for a in &mut groups {
                    *a = a.wrapping_add(self.a_step);
                }
                b = b.wrapping_add(self.b_step);
            }
            let scale = V::splat(self.scale);
            for (row, sums) in sums.iter().enumerate() {
                for (half, (&sum, mask)) in sums.iter().zip([first, second]).enumerate() {
                    let c = self.c.wrapping_add(row * c_stride + half * V::LANES);
                    let value = match (self.accumulate, WHOLE) {
                        (true, true) => scale.times_plus(sum, V::load(c)),
                        (true, false) => scale.times_plus(sum, V::load_some(c, mask)),
                        (false, _) => scale.times(sum),
                    };
                    match WHOLE {
                        true => value.store(c),
                        false => value.store_some(c, mask),
                    }
                }
            }
        }
    }
}
