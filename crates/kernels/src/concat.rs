//! Tensors side by side along one axis, and the gradient of each.
//!
//! A row runs from the joined axis to the last one, so tensors that agree in all other axes have
//! equally many rows, and a row of the result is a row of each part in turn.

use crate::simd::simd;

simd! {
    /// `y[i]` = the i-th rows of all `parts` one after another, of `rows` rows.
    pub fn concat(parts: &[&[f32]], rows: usize, y: &mut [f32]) {
        assert_eq!(
            parts.iter().map(|part| part.len()).sum::<usize>(),
            y.len(),
            "concat moves each element of its parts once"
        );
        let columns = y.len() / rows;
        let mut first = 0;
        for part in parts {
            assert_eq!(part.len() % rows, 0, "{} elements in {rows} rows", part.len());
            let width = part.len() / rows;
            for (y, part) in y.chunks_exact_mut(columns).zip(part.chunks_exact(width)) {
                y[first..first + width].copy_from_slice(part);
            }
            first += width;
        }
    }

    /// Gradient of the part of [`concat()`] whose rows begin at column `first` of the result's:
    /// `dx[i, j]` = `dy[i, first + j]`, for `rows` rows.
    pub fn concat_input_grad(
        dy: &[f32],
        rows: usize,
        first: usize,
        dx: &mut [f32],
        accumulate: bool,
    ) {
        assert!(
            dy.len().is_multiple_of(rows) && dx.len().is_multiple_of(rows),
            "{} and {} elements in {rows} rows",
            dy.len(),
            dx.len()
        );
        let (columns, width) = (dy.len() / rows, dx.len() / rows);
        for (dx, dy) in dx.chunks_exact_mut(width).zip(dy.chunks_exact(columns)) {
            let dy = &dy[first..first + width];
            match accumulate {
                true => dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy),
                false => dx.copy_from_slice(dy),
            }
        }
    }
}
