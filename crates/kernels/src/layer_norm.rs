//! Layer normalisation over the last axis (Ba, Kiros, Hinton, arXiv 1607.06450).
//!
//! `x` and `y` are `[rows, columns]`, `gain` and `bias` `[columns]`, and `stats` `[rows, 2]` holds
//! what the gradients need of each row: its mean and the reciprocal of its standard deviation.

use crate::reduce::{column_sums, sum, sum_pairs, sum_triples};
use crate::simd::simd;

fn check(columns: usize, elements: usize, stats: usize) {
    assert!(
        columns > 0 && elements.is_multiple_of(columns) && stats == 2 * (elements / columns),
        "layer norm of {elements} elements in rows of {columns} with {stats} statistics"
    );
}

simd! {
    /// y = gain (x - mean) / sqrt(variance + epsilon) + bias, and the statistics.
    pub fn layer_norm(
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        epsilon: f32,
        y: &mut [f32],
        stats: &mut [f32],
    ) {
        let columns = gain.len();
        check(columns, x.len(), stats.len());
        assert!(bias.len() == columns && y.len() == x.len(), "layer norm keeps the shape");
        let rows = x.chunks_exact(columns).zip(y.chunks_exact_mut(columns));
        for ((x, y), stats) in rows.zip(stats.chunks_exact_mut(2)) {
            let mean = sum(x, |x| x) / columns as f32;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / columns as f32;
            let inverse = 1.0 / (variance + epsilon).sqrt();
            for ((y, &x), (&gain, &bias)) in y.iter_mut().zip(x).zip(gain.iter().zip(bias)) {
                *y = ((x - mean) * inverse).mul_add(gain, bias);
            }
            stats[0] = mean;
            stats[1] = inverse;
        }
    }

    /// Input gradient of [`layer_norm`].
    pub fn layer_norm_input_grad(
        x: &[f32],
        gain: &[f32],
        stats: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        accumulate: bool,
    ) {
        let columns = gain.len();
        check(columns, x.len(), stats.len());
        assert!(dy.len() == x.len() && dx.len() == x.len(), "layer norm keeps the shape");
        let rows = x.chunks_exact(columns).zip(dy.chunks_exact(columns));
        for (((x, dy), dx), stats) in
            rows.zip(dx.chunks_exact_mut(columns)).zip(stats.chunks_exact(2))
        {
            let (mean, inverse) = (stats[0], stats[1]);
            // With n = (x - mean) inverse and h = gain dy:
            // dx = inverse (h - mean(h) - n mean(h n)).
            let h_mean = sum_pairs(dy, gain, |dy, gain| dy * gain) / columns as f32;
            let hn_sum = sum_triples(x, dy, gain, |x, dy, gain| (x - mean) * dy * gain);
            let hn_mean = hn_sum * inverse / columns as f32;
            for ((dx, &x), (&dy, &gain)) in dx.iter_mut().zip(x).zip(dy.iter().zip(gain)) {
                let n = (x - mean) * inverse;
                let term = inverse * (dy * gain - h_mean - n * hn_mean);
                *dx = if accumulate { *dx + term } else { term };
            }
        }
    }

    /// Weight gradients of [`layer_norm`]: of the gain and of the bias, each of which is added to what is
    /// there if so `accumulate` says.
    pub fn layer_norm_weight_grad(
        x: &[f32],
        stats: &[f32],
        dy: &[f32],
        dgain: &mut [f32],
        dbias: &mut [f32],
        accumulate: [bool; 2],
    ) {
        check(dgain.len(), x.len(), stats.len());
        let of_row = |row| (stats[2 * row], stats[2 * row + 1]);
        column_sums(x, dy, dgain, accumulate[0], of_row, |(mean, inverse), x, dy| {
            (x - mean) * inverse * dy
        });
        column_sums(dy, dy, dbias, accumulate[1], |_| (), |(), dy, _| dy);
    }
}
