//! The product of bfloat16 by the tile registers of AMX: of 16 rows of 64 bytes each, which hold rows of the left
//! operand, pairs of steps of the right one's columns, or a square of the result in fp32.
//!
//! Blocks are as in [`blocked`](super::blocked): the rows of two registers are multiplied with all panels of a block
//! of the right operand, which is packed and lies in the second-level cache. The left operand is read where it is, if
//! its rows are contiguous, whole and well spread over the cache's sets. Four registers hold the sums, so that each
//! one that is loaded is used twice.
//!
//! The compiler has no stable types for these registers: assembly names them, and uses them between [`Tiles::new`]
//! and its end. Nothing else in the program touches them.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::{MaybeUninit, transmute};
use std::ops::Range;

use half::bf16;

use super::blocked::block_size;
use super::vector::{Vector, pair};
use super::{Matrix, MatrixMut};

/// Rows of a register, and fp32 numbers or pairs of bfloat16 in each.
const SIDE: usize = 16;
/// Rows and columns of the result that are computed together.
const TILE: usize = 2 * SIDE;
/// Bytes of a register's row.
const ROW_BYTES: usize = 64;
/// Rows, columns and steps from which on tiles are faster.
const LEAST: usize = 8;
/// The most steps whose sums are complete when they leave the registers, so that they can be rounded.
pub(super) const MOST_STEPS: usize = 1024;
/// Rows that begin a multiple of so many bytes apart lie in few sets of the first-level cache, and are copied.
const FEW_SETS: usize = 1024;
/// Panels of the right operand that are packed side by side, so that rows are read by whole cache lines.
const TOGETHER: usize = 4;

/// Whether products of these sizes are faster so than by vectors: a register's rows are used also where most are empty.
pub(super) fn are_faster(a: &Matrix<'_, bf16>, c: &MatrixMut<'_>) -> bool {
    a.rows >= LEAST && a.columns >= LEAST && c.columns >= LEAST
}

/// The tile registers, set up for this thread: all of 16 rows of 64 bytes.
struct Tiles(());

/// How the registers are used, as the processor reads it.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// # Safety
    /// The processor has AMX, and the operating system lets this process use it.
    unsafe fn new() -> Tiles {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        configuration.row_bytes[..8].fill(ROW_BYTES as u16);
        configuration.rows[..8].fill(SIDE as u8);
        // SAFETY: it reads the configuration, which is one that all of these processors take.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly));
        }
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are tile registers, as they were set up; it empties them, which saves the operating system
        // from keeping them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// c = a b, or with `accumulate` c += a b, of bfloat16, where `b` has a row for each column of `c`. Results that are
/// rounded may have a bias, an element for each column, and are of at most [`MOST_STEPS`].
///
/// # Safety
/// The processor has AMX for bfloat16 and AVX-512 with BW and BF16, and the operating system lets this process use
/// them. The panels hold a [`TILE`] of [`MOST_STEPS`] at least.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn multiply<R: Target>(
    [left_panel, right_panels]: [&mut [f32]; 2],
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    bias: Option<&[f32]>,
    c: MatrixMut<'_, R>,
    accumulate: bool,
) {
    let (m, n, k, c_stride) = (c.rows, c.columns, a.columns, c.row_stride);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        for row in 0..m {
            let c = &mut c.data[row * c_stride..][..n];
            for first in (0..n).step_by(TILE) {
                let columns = first..n.min(first + TILE);
                let bias = bias.map(|bias| &bias[columns.clone()]);
                R::put(&[0.0; TILE], bias, &mut c[columns], accumulate);
            }
        }
        return;
    }
    let depth = block_size(k.div_ceil(2), SIDE, R::DEPTH);
    let block_columns = block_size(n, TILE, right_panels.len() / depth);
    // SAFETY: passed on from the caller.
    let _tiles = unsafe { Tiles::new() };
    for column in (0..n).step_by(block_columns) {
        let columns = column..n.min(column + block_columns);
        for step in (0..k).step_by(2 * depth) {
            let steps = step..k.min(step + 2 * depth);
            let depth = steps.len().div_ceil(2).next_multiple_of(SIDE);
            let right = &mut right_panels[..columns.len().next_multiple_of(TILE) * depth];
            pack_right(&b, columns.clone(), steps.clone(), right);
            for row in (0..m).step_by(TILE) {
                let rows = row..m.min(row + TILE);
                let left = Left::new(&a, rows.clone(), steps.clone(), left_panel);
                for (number, panel) in right.chunks_exact(TILE * depth).enumerate() {
                    let first = column + number * TILE;
                    let width = TILE.min(columns.end - first);
                    let c = &mut c.data[row * c_stride + first..];
                    let tile = Tile {
                        steps: depth / SIDE,
                        left,
                        right: panel.as_ptr(),
                        c,
                        c_stride,
                        height: rows.len(),
                        width,
                        bias: bias.map(|bias| &bias[first..first + width]),
                        accumulate: accumulate || step > 0,
                    };
                    // SAFETY: registers are set up, and the panels hold so many steps of the tile's rows and columns.
                    unsafe { tile.multiply() };
                }
            }
        }
    }
}

/// Where two registers of rows of the left operand are read: in memory or packed.
#[derive(Clone, Copy)]
struct Left {
    first: *const u8,
    /// Bytes from a row to the next, and from the first register of a step to that of the next.
    stride: usize,
    step_stride: usize,
}

impl Left {
    /// These rows and steps of `a`, packed into `panel` where they cannot be read as they lie.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new(
        a: &Matrix<'_, bf16>,
        rows: Range<usize>,
        steps: Range<usize>,
        panel: &mut [f32],
    ) -> Left {
        if a.column_stride == 1
            && !(a.row_stride * size_of::<bf16>()).is_multiple_of(FEW_SETS)
            && rows.len().is_multiple_of(SIDE)
            && steps.len().is_multiple_of(TILE)
        {
            let first = &a.data[rows.start * a.row_stride + steps.start..];
            assert!((rows.len() - 1) * a.row_stride + steps.len() <= first.len());
            let stride = a.row_stride * size_of::<bf16>();
            return Left { first: first.as_ptr().cast(), stride, step_stride: ROW_BYTES };
        }
        let panel = &mut panel[..TILE * steps.len().div_ceil(2).next_multiple_of(SIDE)];
        pack_left(a, rows, steps, panel);
        let first = panel.as_ptr().cast();
        Left { first, stride: ROW_BYTES, step_stride: TILE * ROW_BYTES }
    }
}

/// Writes these rows and steps of `a` to `panel` as two registers of rows for each 16 pairs of steps, with 0 for what
/// is missing of the last of these. Registers of rows that are missing stay as they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_left(a: &Matrix<'_, bf16>, rows: Range<usize>, steps: Range<usize>, panel: &mut [f32]) {
    let Matrix { data, row_stride, column_stride, .. } = *a;
    for (registers, step) in panel.chunks_exact_mut(TILE * SIDE).zip(steps.clone().step_by(TILE)) {
        let steps = step..steps.end.min(step + TILE);
        let first = rows.start * row_stride + step * column_stride;
        if row_stride == 1 && rows.len() == TILE && steps.len() == TILE {
            assert!((TILE - 1) * column_stride + TILE <= data[first..].len());
            let mut pairs = [[[0.0_f32; SIDE]; SIDE]; 2];
            let [upper, lower] = &mut pairs;
            for (number, (upper, lower)) in upper.iter_mut().zip(lower).enumerate() {
                // SAFETY: 32 numbers of each of 32 steps lie in the data, by the assertion.
                unsafe {
                    let low = data.as_ptr().add(first + 2 * number * column_stride);
                    pair_lines(low, low.add(column_stride), upper, lower);
                }
            }
            let (above, below) = registers.split_at_mut(SIDE * SIDE);
            // SAFETY: all are squares of 16 rows of 16, and the instructions of AVX-512 are enabled.
            unsafe {
                __m512::transpose(pairs[0].as_ptr().cast(), SIDE, above.as_mut_ptr(), SIDE);
                __m512::transpose(pairs[1].as_ptr().cast(), SIDE, below.as_mut_ptr(), SIDE);
            }
            continue;
        }
        if column_stride == 1 && steps.len() == TILE {
            for (to, row) in registers.chunks_exact_mut(SIDE).zip(rows.clone()) {
                let from = &data[row * row_stride + step..][..TILE];
                // SAFETY: both are of 64 bytes.
                unsafe {
                    let numbers = _mm512_loadu_si512(from.as_ptr().cast());
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), numbers);
                }
            }
            continue;
        }
        registers.fill(0.0);
        for (to, row) in registers.chunks_exact_mut(SIDE).zip(rows.clone()) {
            for (to, step) in to.iter_mut().zip(steps.clone().step_by(2)) {
                let at = row * row_stride + step * column_stride;
                let high = if step + 1 < steps.end { data[at + column_stride] } else { bf16::ZERO };
                *to = pair(data[at], high);
            }
        }
    }
}

/// Interleaves 32 numbers of two steps: pairs of the first 16 lines and of the others.
///
/// # Safety
/// Both are readable for 32 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pair_lines(
    low: *const bf16,
    high: *const bf16,
    first: &mut [f32; SIDE],
    second: &mut [f32; SIDE],
) {
    const FIRST: [i16; TILE] = interleaved(0);
    const SECOND: [i16; TILE] = interleaved(SIDE);
    // SAFETY: all are of 64 bytes.
    unsafe {
        let low = _mm512_loadu_si512(low.cast());
        let high = _mm512_loadu_si512(high.cast());
        let indices = _mm512_loadu_si512(FIRST.as_ptr().cast());
        let pairs = _mm512_permutex2var_epi16(low, indices, high);
        _mm512_storeu_si512(first.as_mut_ptr().cast(), pairs);
        let indices = _mm512_loadu_si512(SECOND.as_ptr().cast());
        let pairs = _mm512_permutex2var_epi16(low, indices, high);
        _mm512_storeu_si512(second.as_mut_ptr().cast(), pairs);
    }
}

/// Of 32 numbers, and 32 others behind them, those from `first` on in turn.
const fn interleaved(first: usize) -> [i16; TILE] {
    let mut indices = [0; TILE];
    let mut lane = 0;
    while lane < TILE {
        indices[lane] = (first + lane / 2 + lane % 2 * TILE) as i16;
        lane += 1;
    }
    indices
}

/// Writes these lines and steps of `b` to `panels`, of 32 lines each, by pairs of steps, with 0 for what is missing of
/// the last 16 of these. What a last, narrower panel has beside its lines stays as it is.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack_right(b: &Matrix<'_, bf16>, lines: Range<usize>, steps: Range<usize>, panels: &mut [f32]) {
    let pairs = steps.len().div_ceil(2);
    let depth = pairs.next_multiple_of(SIDE);
    let first_lines = lines.clone().step_by(TOGETHER * TILE);
    for (panels, first) in panels.chunks_mut(TOGETHER * TILE * depth).zip(first_lines) {
        let lines = first..lines.end.min(first + TOGETHER * TILE);
        for panel in panels.chunks_exact_mut(TILE * depth) {
            panel[TILE * pairs..].fill(0.0);
        }
        match b.row_stride {
            1 => interleave(b, lines, steps.clone(), panels),
            _ => transpose(b, lines, steps.clone(), panels),
        }
    }
}

/// Lines that are beside each other in memory: pairs of steps are interleaved.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave(b: &Matrix<'_, bf16>, lines: Range<usize>, steps: Range<usize>, panels: &mut [f32]) {
    let Matrix { data, column_stride, .. } = *b;
    let depth = panels.len() / lines.len().div_ceil(TILE) / TILE;
    for (number, step) in steps.clone().step_by(2).enumerate() {
        let is_pair = step + 1 < steps.end;
        for (panel, first) in panels.chunks_exact_mut(TILE * depth).zip(lines.clone().step_by(TILE))
        {
            let to = &mut panel[number * TILE..][..TILE];
            let width = TILE.min(lines.end - first);
            let from = step * column_stride + first;
            if let ([upper, lower], true) = (to.as_chunks_mut().0, width == TILE && is_pair) {
                assert!(column_stride + TILE <= data[from..].len());
                // SAFETY: 32 numbers of both steps lie in the data, by the assertion.
                unsafe {
                    let low = data.as_ptr().add(from);
                    pair_lines(low, low.add(column_stride), upper, lower);
                }
                continue;
            }
            for (line, to) in to[..width].iter_mut().enumerate() {
                let high = if is_pair { data[from + column_stride + line] } else { bf16::ZERO };
                *to = pair(data[from + line], high);
            }
        }
    }
}

/// Lines that are contiguous, or neither: squares of pairs are transposed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose(b: &Matrix<'_, bf16>, lines: Range<usize>, steps: Range<usize>, panels: &mut [f32]) {
    let Matrix { data, row_stride, column_stride, .. } = *b;
    let depth = panels.len() / lines.len().div_ceil(TILE) / TILE;
    for (panel, first) in panels.chunks_exact_mut(TILE * depth).zip(lines.clone().step_by(TILE)) {
        for half in [0, SIDE] {
            let first = first + half;
            let count = SIDE.min(lines.end.saturating_sub(first));
            for (rows, step) in panel.chunks_exact_mut(TILE * SIDE).zip(steps.clone().step_by(TILE))
            {
                if column_stride == 1 && count == SIDE && step + TILE <= steps.end {
                    let from = &data[first * row_stride + step..];
                    assert!((SIDE - 1) * row_stride + TILE <= from.len());
                    let mut pairs = [0.0_f32; SIDE * SIDE];
                    let to = &mut rows[half..];
                    assert!((SIDE - 1) * TILE + SIDE <= to.len());
                    for (line, pairs) in pairs.chunks_exact_mut(SIDE).enumerate() {
                        // SAFETY: 16 pairs of each of 16 lines lie in the data, by the assertion.
                        unsafe {
                            let line = from.as_ptr().add(line * row_stride);
                            _mm512_storeu_si512(
                                pairs.as_mut_ptr().cast(),
                                _mm512_loadu_si512(line.cast()),
                            );
                        }
                    }
                    // SAFETY: 16 rows of 16 lie in both, by the assertions.
                    unsafe { __m512::transpose(pairs.as_ptr(), SIDE, to.as_mut_ptr(), TILE) };
                    continue;
                }
                let last = steps.end.min(step + TILE);
                for (to, step) in rows.chunks_exact_mut(TILE).zip((step..last).step_by(2)) {
                    for line in 0..count {
                        let at = (first + line) * row_stride + step * column_stride;
                        let has_both = step + 1 < last;
                        let high = if has_both { data[at + column_stride] } else { bf16::ZERO };
                        to[half + line] = pair(data[at], high);
                    }
                }
            }
        }
    }
}

/// Numbers of a result.
pub(super) trait Target: Copy {
    /// The most pairs of steps in a block.
    const DEPTH: usize;

    /// Where whole registers are stored, if that is all.
    fn registers(c: &mut [Self]) -> Option<*mut f32>;

    /// Writes sums, and a bias, or adds them. Of 32 sums there is one for each element.
    ///
    /// The processor has the instructions that [`multiply`] needs.
    fn put(sums: &[f32; TILE], bias: Option<&[f32]>, to: &mut [Self], accumulate: bool);
}

impl Target for f32 {
    /// A tile's rows of both operands stay in the first-level cache.
    const DEPTH: usize = 256;

    fn registers(c: &mut [f32]) -> Option<*mut f32> {
        Some(c.as_mut_ptr())
    }

    #[inline(always)]
    fn put(sums: &[f32; TILE], bias: Option<&[f32]>, to: &mut [f32], accumulate: bool) {
        debug_assert!(bias.is_none(), "a bias is in what is added to");
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = if accumulate { *to + sum } else { *sum };
        }
    }
}

impl Target for bf16 {
    /// All of them: sums are rounded once.
    const DEPTH: usize = MOST_STEPS / 2;

    fn registers(_: &mut [bf16]) -> Option<*mut f32> {
        None
    }

    #[inline(always)]
    fn put(sums: &[f32; TILE], bias: Option<&[f32]>, to: &mut [bf16], accumulate: bool) {
        let mask = u32::MAX >> (TILE - to.len());
        let [low, high] = [mask as u16, (mask >> SIDE) as u16];
        // SAFETY: the processor has the instructions; masks keep to the elements.
        unsafe {
            let mut first = _mm512_loadu_ps(sums.as_ptr());
            let mut second = _mm512_loadu_ps(sums[SIDE..].as_ptr());
            if let Some(bias) = bias {
                assert_eq!(bias.len(), to.len(), "a bias for each element");
                first = _mm512_add_ps(first, _mm512_maskz_loadu_ps(low, bias.as_ptr()));
                let bias = bias.as_ptr().wrapping_add(SIDE);
                second = _mm512_add_ps(second, _mm512_maskz_loadu_ps(high, bias));
            }
            let mut rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            if accumulate {
                let before = _mm512_maskz_loadu_epi16(mask, to.as_ptr().cast());
                first = _mm512_add_ps(first_wide(before), first_wide(rounded));
                second = _mm512_add_ps(second_wide(before), second_wide(rounded));
                rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            }
            _mm512_mask_storeu_epi16(to.as_mut_ptr().cast(), mask, rounded);
        }
    }
}

/// The first 16 of 32 numbers in bfloat16, in fp32.
///
/// # Safety
/// The processor has AVX-512; so below.
#[inline(always)]
unsafe fn first_wide(numbers: __m512i) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { wide(_mm512_castsi512_si256(numbers)) }
}

/// The others.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn second_wide(numbers: __m512i) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { wide(_mm512_extracti64x4_epi64::<1>(numbers)) }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn wide(numbers: __m256i) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(numbers))) }
}

/// A tile of a product.
struct Tile<'a, R> {
    /// Registers of pairs of steps.
    steps: usize,
    left: Left,
    right: *const f32,
    /// From the first element on.
    c: &'a mut [R],
    c_stride: usize,
    height: usize,
    width: usize,
    bias: Option<&'a [f32]>,
    accumulate: bool,
}

/// Adds up the products of `$steps` registers of steps: for each, what `$load_rows`, `$load_columns` and `$products`
/// say is executed.
macro_rules! add_products {
    ($tile:ident, $($instruction:literal),+) => {
        asm!(
            "2:",
            $($instruction,)+
            "add {upper}, {left_step}",
            "add {lower}, {left_step}",
            "add {right}, {right_step}",
            "dec {steps}",
            "jnz 2b",
            upper = inout(reg) $tile.left.first => _,
            lower = inout(reg) $tile.left.first.wrapping_add(SIDE * $tile.left.stride) => _,
            right = inout(reg) $tile.right => _,
            steps = inout(reg) $tile.steps => _,
            left_stride = in(reg) $tile.left.stride,
            left_step = in(reg) $tile.left.step_stride,
            right_stride = in(reg) TILE * size_of::<f32>(),
            right_step = const SIDE * TILE * size_of::<f32>(),
            options(nostack, readonly),
        )
    };
}

/// Runs an instruction on the register that holds the sums of a square of the tile.
macro_rules! on_square {
    ($square:expr, $before:literal, $after:literal, $($operands:tt)*) => {
        match $square {
            [0, 0] => asm!(concat!($before, "tmm0", $after), $($operands)*),
            [0, 1] => asm!(concat!($before, "tmm1", $after), $($operands)*),
            [1, 0] => asm!(concat!($before, "tmm2", $after), $($operands)*),
            _ => asm!(concat!($before, "tmm3", $after), $($operands)*),
        }
    };
}

impl<R: Target> Tile<'_, R> {
    /// # Safety
    /// The registers are set up, and `left` and `right` hold `steps` registers of the tile's rows and columns, those
    /// that are not whole filled up. The processor has the instructions of [`multiply`].
    #[inline(always)]
    unsafe fn multiply(self) {
        let Tile { height, width, accumulate, c_stride, bias, .. } = self;
        assert!((height - 1) * c_stride + width <= self.c.len());
        let is_whole = height.is_multiple_of(SIDE) && width.is_multiple_of(SIDE);
        if let Some(c) = R::registers(self.c).filter(|_| is_whole) {
            // SAFETY: so many rows and columns lie in the slice, by the assertion.
            return unsafe { self.multiply_to(c, c_stride, accumulate) };
        }
        let mut sums = match width > SIDE {
            true => MaybeUninit::<[[f32; TILE]; TILE]>::uninit(),
            false => MaybeUninit::zeroed(),
        };
        // SAFETY: there is room for a whole tile.
        unsafe { self.multiply_to(sums.as_mut_ptr().cast(), TILE, false) };
        for (row, c) in self.c.chunks_mut(c_stride).take(height).enumerate() {
            // SAFETY: so many rows were written, of two registers, or of one beside zeros.
            let sums = unsafe { &*sums.as_ptr().cast::<[f32; TILE]>().add(row) };
            R::put(sums, bias, &mut c[..width], accumulate);
        }
    }

    /// Writes whole registers to `c`.
    ///
    /// # Safety
    /// As of [`Tile::multiply`], and `c` is writable for as many rows, `stride` elements apart, and columns as the
    /// registers of the tile have; with `accumulate` also readable.
    unsafe fn multiply_to(&self, c: *mut f32, stride: usize, accumulate: bool) {
        let (has_lower, has_second) = (self.height > SIDE, self.width > SIDE);
        let squares = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let squares = squares
            .into_iter()
            .filter(|it| it[0] <= usize::from(has_lower) && it[1] <= usize::from(has_second));
        let bytes = stride * size_of::<f32>();
        let at = |[row, column]: [usize; 2]| c.wrapping_add(SIDE * (row * stride + column));
        // SAFETY: registers are set up; what is read and written is what the caller promises.
        unsafe {
            for square in squares.clone() {
                match accumulate {
                    true => on_square!(
                        square, "tileloadd ", ", [{at} + {stride}]",
                        at = in(reg) at(square), stride = in(reg) bytes, options(nostack, readonly)
                    ),
                    false => on_square!(square, "tilezero ", "", options(nostack, nomem)),
                }
            }
            match (has_lower, has_second) {
                (true, true) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tileloadd tmm5, [{lower} + {left_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{right} + {right_stride} + 64]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ),
                (true, false) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tileloadd tmm5, [{lower} + {left_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm2, tmm5, tmm6"
                ),
                (false, true) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tileloadd tmm7, [{right} + {right_stride} + 64]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7"
                ),
                (false, false) => add_products!(
                    self,
                    "tileloadd tmm4, [{upper} + {left_stride}]",
                    "tileloadd tmm6, [{right} + {right_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6"
                ),
            }
            for square in squares {
                on_square!(
                    square, "tilestored [{at} + {stride}], ", "",
                    at = in(reg) at(square), stride = in(reg) bytes, options(nostack)
                );
            }
        }
    }
}
