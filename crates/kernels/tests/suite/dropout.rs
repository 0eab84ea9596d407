use shardloom_kernels::dropout::*;

use crate::oracle::{assert_close, check_destination, mask, numbers};

const SIZES: [(usize, usize); 4] = [(1, 1), (3, 17), (17, 3), (20, 33)];

#[test]
fn dropout_and_its_gradient_scale_what_is_kept_and_zero_the_rest() {
    for len in [1, 3, 17, 100] {
        let (x, mask) = (numbers(1, len), mask(2, len));
        let want: Vec<f64> =
            x.iter().zip(&mask).map(|(&x, &m)| f64::from(x) * f64::from(m) * 1.25).collect();
        let mut y = vec![f32::NAN; len];
        dropout(&x, &mask, 1.25, &mut y);
        assert_close(&y, &want, 1e-6);
        check_destination(&want, 1e-6, |dx, accumulate| {
            dropout_input_grad(&x, &mask, 1.25, dx, accumulate);
        });
    }
}

#[test]
fn bias_dropout_and_residual_in_one_pass_match_one_after_the_other() {
    for (rows, columns) in SIZES {
        let (x, residual) = (numbers(1, rows * columns), numbers(2, rows * columns));
        let (bias, mask) = (numbers(3, columns), mask(4, rows * columns));
        for dropped in [false, true] {
            let keep = |i: usize| if dropped { f64::from(mask[i]) * 1.25 } else { 1.0 };
            let want: Vec<f64> = (0..x.len())
                .map(|i| {
                    let sum = f64::from(x[i]) + f64::from(bias[i % columns]);
                    f64::from(residual[i]) + keep(i) * sum
                })
                .collect();
            let mut y = vec![f32::NAN; x.len()];
            let mask = dropped.then_some(mask.as_slice());
            bias_dropout_add(&x, &bias, mask, 1.25, &residual, &mut y);
            assert_close(&y, &want, 1e-6);
        }

        let dy = numbers(5, x.len());
        let mut want = vec![0.0; columns];
        for i in 0..dy.len() {
            want[i % columns] += f64::from(dy[i]) * f64::from(mask[i]) * 1.25;
        }
        check_destination(&want, 1e-6, |dbias, accumulate| {
            bias_dropout_add_bias_grad(&dy, &mask, 1.25, dbias, accumulate);
        });
    }
}
