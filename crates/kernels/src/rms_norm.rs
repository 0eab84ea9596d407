//! Root-mean-square normalisation over the last axis (Zhang and Sennrich, arXiv 1910.07467).
//!
//! `x` and `y` are `[rows, columns]`, `gain` `[columns]`, and `stats` `[rows]` holds what the
//! gradients need of each row: the reciprocal of its root mean square. An offset of 1 is for gains that
//! are stored less one, 0 for others.

use crate::reduce::{column_sums, sum, sum_triples};
use crate::simd::simd;

fn check(columns: usize, elements: usize, stats: usize) {
    assert!(
        columns > 0 && elements.is_multiple_of(columns) && stats == elements / columns,
        "RMS norm of {elements} elements in rows of {columns} with {stats} statistics"
    );
}

simd! {
    /// y = (offset + gain) x / sqrt(mean(x^2) + epsilon), and the statistics.
    pub fn rms_norm(
        x: &[f32],
        gain: &[f32],
        offset: f32,
        epsilon: f32,
        y: &mut [f32],
        stats: &mut [f32],
    ) {
        let columns = gain.len();
        check(columns, x.len(), stats.len());
        assert_eq!(y.len(), x.len(), "RMS norm keeps the shape");
        let rows = x.chunks_exact(columns).zip(y.chunks_exact_mut(columns));
        for ((x, y), stat) in rows.zip(stats) {
            let square = sum(x, |x| x * x) / columns as f32;
            let inverse = 1.0 / (square + epsilon).sqrt();
            for ((y, &x), &gain) in y.iter_mut().zip(x).zip(gain) {
                *y = x * inverse * (offset + gain);
            }
            *stat = inverse;
        }
    }

    /// Input gradient of [`rms_norm`].
    pub fn rms_norm_input_grad(
        x: &[f32],
        gain: &[f32],
        offset: f32,
        stats: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        accumulate: bool,
    ) {
        let columns = gain.len();
        check(columns, x.len(), stats.len());
        assert!(dy.len() == x.len() && dx.len() == x.len(), "RMS norm keeps the shape");
        let rows = x.chunks_exact(columns).zip(dy.chunks_exact(columns));
        for (((x, dy), dx), &inverse) in rows.zip(dx.chunks_exact_mut(columns)).zip(stats) {
            // With n = x inverse and h = (offset + gain) dy: dx = inverse (h - n mean(h n)).
            let hn_sum = sum_triples(x, dy, gain, |x, dy, gain| x * dy * (offset + gain));
            let hn_mean = hn_sum * inverse / columns as f32;
            for ((dx, &x), (&dy, &gain)) in dx.iter_mut().zip(x).zip(dy.iter().zip(gain)) {
                let term = inverse * (dy * (offset + gain) - x * inverse * hn_mean);
                *dx = if accumulate { *dx + term } else { term };
            }
        }
    }

    /// Weight gradient of [`rms_norm`]: of the gain.
    pub fn rms_norm_weight_grad(
        x: &[f32],
        stats: &[f32],
        dy: &[f32],
        dgain: &mut [f32],
        accumulate: bool,
    ) {
        check(dgain.len(), x.len(), stats.len());
        let of_row = |row: usize| stats[row];
        column_sums(x, dy, dgain, accumulate, of_row, |inverse, x, dy| x * inverse * dy);
    }
}
