use shardloom_kernels::soft_cap::*;

use crate::oracle::{assert_close, check_destination, numbers, numeric_grad, widen};

#[test]
fn values_are_bounded_and_their_gradient_follows_from_what_they_became() {
    for (len, cap) in [(1, 30.0), (17, 0.5), (100, 2.0)] {
        let x: Vec<f32> = numbers(1, len).iter().map(|x| 4.0 * x).collect();
        let exact = |x: &[f64]| -> Vec<f64> {
            x.iter().map(|x| f64::from(cap) * (x / f64::from(cap)).tanh()).collect()
        };
        let mut y = vec![f32::NAN; len];
        soft_cap(&x, cap, &mut y);
        assert_close(&y, &exact(&widen(&x)), 1e-6);
        assert!(y.iter().all(|y| y.abs() <= cap));

        let dy = numbers(2, len);
        let want = numeric_grad(exact, &x, &dy);
        check_destination(&want, 2e-6, |dx, accumulate| {
            soft_cap_input_grad(&y, &dy, cap, dx, accumulate);
        });
    }
}
