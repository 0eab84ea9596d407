//! Copies blocks of a matrix into panels: groups of columns, each stored step by step, so that the
//! innermost loop of a product reads memory in order.

use std::ops::Range;

use half::bf16;

use super::Matrix;
use super::vector::{Vector, pair};

/// Panels that are written side by side, so that a row is read by whole cache lines.
const TOGETHER: usize = 4;

/// Writes the columns `columns` of the rows `rows` of `matrix` to `panels`, as consecutive panels of `WIDTH`
/// columns, a panel holding `WIDTH` elements for each row. What a last, narrower panel has beside its columns
/// stays as it is.
///
/// # Safety
/// The instructions of `V` are enabled.
#[inline(always)]
pub(super) unsafe fn pack<V: Vector, const WIDTH: usize>(
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
            let panel = panel.as_chunks_mut::<WIDTH>().0;
            // SAFETY: passed on from the caller.
            unsafe { transpose::<V, WIDTH>(source, matrix.column_stride, width, panel) };
        }
    }
}

/// Rows of the source, of `width` elements, are rows of the panels.
#[inline(always)]
fn copy_rows<const WIDTH: usize>(
    source: &[f32],
    stride: usize,
    width: usize,
    height: usize,
    panels: &mut [f32],
) {
    for row in 0..height {
        let (parts, rest) = source[row * stride..][..width].as_chunks::<WIDTH>();
        let mut at = row * WIDTH;
        for part in parts {
            panels[at..at + WIDTH].copy_from_slice(part);
            at += height * WIDTH;
        }
        if !rest.is_empty() {
            panels[at..at + rest.len()].copy_from_slice(rest);
        }
    }
}

/// Columns of the source, `stride` apart and contiguous, are rows of the panel: in squares that are transposed
/// in registers.
///
/// # Safety
/// The instructions of `V` are enabled.
#[inline(always)]
unsafe fn transpose<V: Vector, const WIDTH: usize>(
    source: &[f32],
    stride: usize,
    width: usize,
    panel: &mut [[f32; WIDTH]],
) {
    let height = panel.len();
    let (whole_width, whole_height) = (width / V::LANES * V::LANES, height / V::LANES * V::LANES);
    for column in (0..whole_width).step_by(V::LANES) {
        for row in (0..whole_height).step_by(V::LANES) {
            let from = &source[column * stride + row..];
            let to = &mut panel[row..row + V::LANES].as_flattened_mut()[column..];
            assert!((V::LANES - 1) * stride + V::LANES <= from.len());
            assert!((V::LANES - 1) * WIDTH + V::LANES <= to.len());
            // SAFETY: the squares lie within both, by the assertions.
            unsafe { V::transpose(from.as_ptr(), stride, to.as_mut_ptr(), WIDTH) };
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

/// The same of pairs of numbers along the rows of `matrix`, whose rows are lines and whose columns, two by two, are
/// steps.
///
/// # Safety
/// The instructions of `V` are enabled.
#[inline(always)]
pub(super) unsafe fn pack_pairs<V: Vector, const WIDTH: usize>(
    matrix: Matrix<'_, bf16>,
    steps: Range<usize>,
    lines: Range<usize>,
    panels: &mut [f32],
) {
    let Matrix { data, columns, row_stride, column_stride, .. } = matrix;
    let size = steps.len() * WIDTH;
    for (panel, first) in panels.chunks_exact_mut(size).zip(lines.clone().step_by(WIDTH)) {
        let width = WIDTH.min(lines.end - first);
        for (to, step) in (0..size).step_by(WIDTH).zip(steps.clone()) {
            let from = first * row_stride + 2 * step * column_stride;
            let has_both = 2 * step + 1 < columns;
            // What whole vectors write beside the panel's lines is of the next step, which is written after.
            let whole = WIDTH.next_multiple_of(V::LANES);
            let is_within = from + column_stride + whole <= data.len() && to + whole <= size;
            if row_stride == 1 && width == WIDTH && has_both && is_within {
                for line in (0..WIDTH).step_by(V::LANES) {
                    let low = data[from + line..].as_ptr();
                    let high = data[from + column_stride + line..].as_ptr();
                    let to = panel[to + line..].as_mut_ptr();
                    // SAFETY: a vector from there on is within the data and the panel.
                    unsafe { V::pair(low, high, to) };
                }
                continue;
            }
            for line in 0..width {
                let at = from + line * row_stride;
                let high = if has_both { data[at + column_stride] } else { bf16::ZERO };
                panel[to + line] = pair(data[at], high);
            }
        }
    }
}
