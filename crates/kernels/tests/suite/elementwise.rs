use shardloom_kernels::elementwise::*;

use crate::oracle::{assert_close, check_destination, numbers};

#[test]
fn sums_and_scalings_match_element_by_element() {
    for len in [1, 3, 17, 100] {
        let (a, b) = (numbers(1, len), numbers(2, len));
        let mut y = vec![f32::NAN; len];
        add(&a, &b, &mut y);
        assert!((0..len).all(|i| y[i] == a[i] + b[i]));
        scale(&a, 0.3, &mut y);
        assert!((0..len).all(|i| y[i] == 0.3 * a[i]));
        scale_in_place(&mut y, 2.0);
        assert!((0..len).all(|i| y[i] == 0.3 * a[i] * 2.0));
        let want: Vec<f64> = a.iter().map(|&dy| f64::from(0.3_f32) * f64::from(dy)).collect();
        check_destination(&want, 1e-7, |dx, accumulate| scale_input_grad(&a, 0.3, dx, accumulate));
    }
}

#[test]
fn a_broadcast_operand_repeats_and_its_gradient_is_the_sum_of_the_repeats() {
    for (outer, inner) in [(1, 1), (3, 17), (17, 3), (20, 33)] {
        let (a, b) = (numbers(1, outer * inner), numbers(2, inner));
        let mut y = vec![f32::NAN; a.len()];
        add_broadcast(&a, &b, &mut y);
        let want: Vec<f64> =
            (0..a.len()).map(|i| f64::from(a[i]) + f64::from(b[i % inner])).collect();
        assert_close(&y, &want, 1e-7);

        let mut sums = vec![0.0; inner];
        for i in 0..a.len() {
            sums[i % inner] += f64::from(a[i]);
        }
        check_destination(&sums, 1e-6, |db, accumulate| broadcast_grad(&a, db, accumulate));
    }
}
