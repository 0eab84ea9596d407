//! Copies blocks of a matrix into panels: groups of `WIDTH` columns, each stored step by step, so
//! that the innermost loop of a product reads memory in order.

use super::Matrix;

/// Writes the columns `columns` of the rows `rows` of `matrix` to `panels`, as consecutive panels
/// of `WIDTH` columns (the last filled up with zeros), a panel holding `WIDTH` elements for each
/// row.
#[inline(always)]
pub(super) fn pack<const WIDTH: usize>(
    matrix: Matrix,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    panels: &mut [f32],
) {
    let height = rows.len();
    for (panel, first) in
        panels.chunks_exact_mut(height * WIDTH).zip(columns.clone().step_by(WIDTH))
    {
        let width = WIDTH.min(columns.end - first);
        let start = rows.start * matrix.row_stride + first * matrix.column_stride;
        let source = &matrix.data[start..];
        let (panel, _) = panel.as_chunks_mut::<WIDTH>();
        if matrix.column_stride == 1 {
            copy_rows(source, matrix.row_stride, width, panel);
        } else {
            transpose(source, matrix.column_stride, width, panel);
        }
    }
}

/// Rows of the source are rows of the panel.
#[inline(always)]
fn copy_rows<const WIDTH: usize>(
    source: &[f32],
    stride: usize,
    width: usize,
    panel: &mut [[f32; WIDTH]],
) {
    for (row, target) in panel.iter_mut().enumerate() {
        let source = &source[row * stride..];
        if width == WIDTH {
            target.copy_from_slice(&source[..WIDTH]);
        } else {
            target[..width].copy_from_slice(&source[..width]);
            target[width..].fill(0.0);
        }
    }
}

/// Columns of the source, `stride` apart and contiguous, are rows of the panel: in squares of four,
/// which the compiler transposes in registers.
#[inline(always)]
fn transpose<const WIDTH: usize>(
    source: &[f32],
    stride: usize,
    width: usize,
    panel: &mut [[f32; WIDTH]],
) {
    const SIDE: usize = 4;
    let height = panel.len();
    let mut column = 0;
    while column + SIDE <= width {
        let lines: [&[f32]; SIDE] =
            std::array::from_fn(|i| &source[(column + i) * stride..][..height]);
        let squares = lines.map(|line| line.as_chunks::<SIDE>().0);
        let (targets, rest) = panel.as_chunks_mut::<SIDE>();
        for (i, target) in targets.iter_mut().enumerate() {
            let square: [[f32; SIDE]; SIDE] = std::array::from_fn(|c| squares[c][i]);
            for (r, target) in target.iter_mut().enumerate() {
                let line: [f32; SIDE] = std::array::from_fn(|c| square[c][r]);
                target[column..column + SIDE].copy_from_slice(&line);
            }
        }
        let done = height - rest.len();
        for (r, target) in rest.iter_mut().enumerate() {
            for (c, line) in lines.iter().enumerate() {
                target[column + c] = line[done + r];
            }
        }
        column += SIDE;
    }
    for c in column..width {
        let line = &source[c * stride..][..height];
        for (target, &x) in panel.iter_mut().zip(line) {
            target[c] = x;
        }
    }
    if width < WIDTH {
        panel.iter_mut().for_each(|target| target[width..].fill(0.0));
    }
}
