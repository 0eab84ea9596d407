//! Copies blocks of a matrix into panels: groups of `WIDTH` columns, each stored step by step, so
//! that the innermost loop of a product reads memory in order.

use std::arch::x86_64::*;
use std::ops::Range;

use super::Matrix;

/// Panels that are written side by side, so that a row is read by whole cache lines.
const TOGETHER: usize = 4;
/// Rows and columns of the squares that are transposed in registers.
const SIDE: usize = 16;

/// Writes the columns `columns` of the rows `rows` of `matrix` to `panels`, as consecutive panels
/// of `WIDTH` columns, a panel holding `WIDTH` elements for each row. What a last, narrower panel has
/// beside its columns stays as it is.
#[target_feature(enable = "avx512f")]
pub(super) fn pack<const WIDTH: usize>(
    matrix: Matrix,
    rows: Range<usize>,
    columns: Range<usize>,
    panels: &mut [f32],
) {
    let height = rows.len();
    let start = rows.start * matrix.row_stride + columns.start * matrix.column_stride;
    let source = &matrix.data[start..];
    if matrix.column_stride == 1 {
        let mut first = 0;
        for panels in panels.chunks_mut(TOGETHER * height * WIDTH) {
            let width = (columns.len() - first).min(TOGETHER * WIDTH);
            copy_rows::<WIDTH>(&source[first..], matrix.row_stride, width, height, panels);
            first += width;
        }
    } else {
        for (panel, first) in
            panels.chunks_exact_mut(height * WIDTH).zip((0..columns.len()).step_by(WIDTH))
        {
            let width = WIDTH.min(columns.len() - first);
            let source = &source[first * matrix.column_stride..];
            transpose(source, matrix.column_stride, width, panel.as_chunks_mut::<WIDTH>().0);
        }
    }
}

/// Rows of the source, of `width` elements, are rows of the panels.
#[target_feature(enable = "avx512f")]
fn copy_rows<const WIDTH: usize>(
    source: &[f32],
    stride: usize,
    width: usize,
    height: usize,
    panels: &mut [f32],
) {
    for row in 0..height {
        let (parts, rest) = source[row * stride..][..width].as_chunks::<WIDTH>();
        for (index, part) in parts.iter().enumerate() {
            let target = &mut panels[index * height * WIDTH + row * WIDTH..];
            copy(part, target.first_chunk_mut().expect("a row of a panel"));
        }
        if !rest.is_empty() {
            panels[parts.len() * height * WIDTH + row * WIDTH..][..rest.len()]
                .copy_from_slice(rest);
        }
    }
}

/// Copies by vectors, of which the last may be filled in part.
#[target_feature(enable = "avx512f")]
fn copy<const WIDTH: usize>(from: &[f32; WIDTH], to: &mut [f32; WIDTH]) {
    for start in (0..WIDTH).step_by(SIDE) {
        let lanes = ((1_u32 << (WIDTH - start).min(SIDE)) - 1) as __mmask16;
        // SAFETY: both have the elements that the mask keeps.
        unsafe {
            let values = _mm512_maskz_loadu_ps(lanes, from[start..].as_ptr());
            _mm512_mask_storeu_ps(to[start..].as_mut_ptr(), lanes, values);
        }
    }
}

/// Columns of the source, `stride` apart and contiguous, are rows of the panel.
#[target_feature(enable = "avx512f")]
fn transpose<const WIDTH: usize>(
    source: &[f32],
    stride: usize,
    width: usize,
    panel: &mut [[f32; WIDTH]],
) {
    let height = panel.len();
    let (whole_width, whole_height) = (width / SIDE * SIDE, height / SIDE * SIDE);
    for column in (0..whole_width).step_by(SIDE) {
        for row in (0..whole_height).step_by(SIDE) {
            let from = &source[column * stride + row..];
            let to = &mut panel[row..row + SIDE].as_flattened_mut()[column..];
            assert!((SIDE - 1) * stride + SIDE <= from.len());
            assert!((SIDE - 1) * WIDTH + SIDE <= to.len());
            // SAFETY: the squares lie within both, by the assertions.
            unsafe { transpose_square(from.as_ptr(), stride, to.as_mut_ptr(), WIDTH) };
        }
    }
    for column in 0..width {
        let rows = if column < whole_width { whole_height } else { 0 };
        let line = &source[column * stride..][..height];
        for (target, &x) in panel[rows..].iter_mut().zip(&line[rows..]) {
            target[column] = x;
        }
    }
}

/// Exchanges rows and columns of a square: first within pairs and fours of rows, then among quarters of
/// vectors.
///
/// # Safety
/// `from` points to [`SIDE`] rows of as many elements, `stride` apart, and `to` to such rows that may be
/// written.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_square(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
    let mut lines = [_mm512_setzero_ps(); SIDE];
    for (i, line) in lines.iter_mut().enumerate() {
        // SAFETY: a row of the caller's square.
        *line = unsafe { _mm512_loadu_ps(from.add(i * stride)) };
    }
    let mut pairs = lines;
    for i in (0..SIDE).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(lines[i], lines[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(lines[i], lines[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..SIDE).step_by(4) {
        let (a, b) = (_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[i + 1]));
        let (c, d) = (_mm512_castps_pd(pairs[i + 2]), _mm512_castps_pd(pairs[i + 3]));
        fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        fours[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        fours[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        fours[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    // Of `fours[4 q + j]`, quarter p holds rows 4 q .. 4 q + 4 of column 4 p + j.
    for j in 0..4 {
        let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
        let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
        let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
        let columns = [
            _mm512_shuffle_f32x4::<0x88>(even[0], even[1]),
            _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]),
            _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]),
            _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]),
        ];
        for (p, column) in columns.into_iter().enumerate() {
            // SAFETY: a row of the caller's square.
            unsafe { _mm512_storeu_ps(to.add((4 * p + j) * to_stride), column) };
        }
    }
}
