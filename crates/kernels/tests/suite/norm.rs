use shardloom_kernels::layer_norm::*;
use shardloom_kernels::rms_norm::*;

use crate::oracle::{assert_close, check_destination, numbers, numeric_grad, widen};

const EPSILON: f32 = 1e-5;
const SIZES: [(usize, usize); 5] = [(1, 3), (3, 1), (9, 17), (17, 8), (20, 33)];

fn layer_norm_exact(x: &[f64], gain: &[f64], bias: &[f64]) -> Vec<f64> {
    let n = gain.len() as f64;
    x.chunks(gain.len())
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let inverse = 1.0 / (variance + f64::from(EPSILON)).sqrt();
            row.iter()
                .zip(gain.iter().zip(bias))
                .map(move |(x, (g, b))| (x - mean) * inverse * g + b)
        })
        .collect()
}

fn rms_norm_exact(x: &[f64], gain: &[f64], offset: f64) -> Vec<f64> {
    x.chunks(gain.len())
        .flat_map(|row| {
            let square = row.iter().map(|x| x * x).sum::<f64>() / gain.len() as f64;
            let inverse = 1.0 / (square + f64::from(EPSILON)).sqrt();
            row.iter().zip(gain).map(move |(x, g)| x * inverse * (offset + g))
        })
        .collect()
}

#[test]
fn layer_norm_and_its_gradients_match() {
    for (rows, columns) in SIZES {
        let x: Vec<f32> = numbers(1, rows * columns).iter().map(|x| 2.0 * x + 0.5).collect();
        let (gain, bias, dy) = (numbers(2, columns), numbers(3, columns), numbers(4, x.len()));
        let (x64, gain64, bias64) = (widen(&x), widen(&gain), widen(&bias));
        let (mut y, mut stats) = (vec![f32::NAN; x.len()], vec![f32::NAN; 2 * rows]);
        layer_norm(&x, &gain, &bias, EPSILON, &mut y, &mut stats);
        assert_close(&y, &layer_norm_exact(&x64, &gain64, &bias64), 2e-6);

        // One column has zero variance: differences divide by epsilon there and mean nothing.
        let want_gain = numeric_grad(|gain| layer_norm_exact(&x64, gain, &bias64), &gain, &dy);
        let want_bias = numeric_grad(|bias| layer_norm_exact(&x64, &gain64, bias), &bias, &dy);
        let want_x = numeric_grad(|x| layer_norm_exact(x, &gain64, &bias64), &x, &dy);
        let tolerance = if columns == 1 { 1e-3 } else { 1e-5 };
        check_destination(&want_x, tolerance, |dx, accumulate| {
            layer_norm_input_grad(&x, &gain, &stats, &dy, dx, accumulate);
        });
        check_destination(&want_gain, 1e-5, |dgain, accumulate| {
            let other = &mut numbers(1, columns);
            layer_norm_weight_grad(&x, &stats, &dy, dgain, other, [accumulate, !accumulate]);
        });
        check_destination(&want_bias, 1e-5, |dbias, accumulate| {
            let other = &mut numbers(1, columns);
            layer_norm_weight_grad(&x, &stats, &dy, other, dbias, [!accumulate, accumulate]);
        });
    }
}

#[test]
fn layer_norm_of_values_far_from_zero_keeps_its_accuracy() {
    let x: Vec<f32> = numbers(1, 301).iter().map(|x| x + 1000.0).collect();
    let (gain, bias) = (vec![1.0; 301], vec![0.0; 301]);
    let (mut y, mut stats) = (vec![0.0; 301], [0.0; 2]);
    layer_norm(&x, &gain, &bias, EPSILON, &mut y, &mut stats);
    assert_close(&y, &layer_norm_exact(&widen(&x), &widen(&gain), &widen(&bias)), 3e-4);
}

#[test]
fn rms_norm_and_its_gradients_match_with_gains_that_are_stored_less_one_and_others() {
    for ((rows, columns), offset) in SIZES.into_iter().flat_map(|size| [(size, 0.0), (size, 1.0)]) {
        let x: Vec<f32> = numbers(1, rows * columns).iter().map(|x| 2.0 * x + 0.5).collect();
        let (gain, dy) = (numbers(2, columns), numbers(4, x.len()));
        let (x64, gain64) = (widen(&x), widen(&gain));
        let exact = |x: &[f64], gain: &[f64]| rms_norm_exact(x, gain, f64::from(offset));
        let (mut y, mut stats) = (vec![f32::NAN; x.len()], vec![f32::NAN; rows]);
        rms_norm(&x, &gain, offset, EPSILON, &mut y, &mut stats);
        assert_close(&y, &exact(&x64, &gain64), 2e-6);

        let want_x = numeric_grad(|x| exact(x, &gain64), &x, &dy);
        let want_gain = numeric_grad(|gain| exact(&x64, gain), &gain, &dy);
        check_destination(&want_x, 1e-5, |dx, accumulate| {
            rms_norm_input_grad(&x, &gain, offset, &stats, &dy, dx, accumulate);
        });
        check_destination(&want_gain, 1e-5, |dgain, accumulate| {
            rms_norm_weight_grad(&x, &stats, &dy, dgain, accumulate);
        });
    }
}
