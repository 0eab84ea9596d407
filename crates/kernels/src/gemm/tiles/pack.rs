//! Operands in tile registers: the left one's rows, where they lie or packed, and the right one's columns, packed.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::Matrix;
use super::super::vector::{Vector, pair};
use super::{ROW_BYTES, SIDE, TILE};

/// Rows that begin a multiple of so many bytes apart lie in few sets of the first-level cache, and are copied.
const FEW_SETS: usize = 1024;
/// Panels of the right operand that are packed side by side, so that rows are read by whole cache lines.
const TOGETHER: usize = 4;

/// Where two registers of rows of the left operand are read: in memory or packed.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub first: *const u8,
    /// Bytes from a row to the next, and from the first register of a step to that of the next.
    pub stride: usize,
    pub step_stride: usize,
}

impl Left {
    /// These rows and steps of `a`, packed into `panel` where they cannot be read as they lie.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn new(
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
pub(super) fn pack_right(
    b: &Matrix<'_, bf16>,
    lines: Range<usize>,
    steps: Range<usize>,
    panels: &mut [f32],
) {
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
