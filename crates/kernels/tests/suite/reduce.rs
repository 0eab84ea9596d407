use proptest::prelude::*;
use shardloom_kernels::reduce::*;

use crate::oracle::numbers;

#[test]
fn sums_maxima_and_norms_match_element_by_element() {
    for len in [0, 1, 3, 17, 33, 1000] {
        let (a, b) = (numbers(1, len), numbers(2, len));
        let mut sum = a.clone();
        sum_into(&mut sum, &b);
        assert!((0..len).all(|i| sum[i] == a[i] + b[i]));
        let mut largest = a.clone();
        max_into(&mut largest, &b);
        assert!((0..len).all(|i| largest[i] == a[i].max(b[i])));
        let want: f64 = a.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((squared_norm(&a) - want).abs() <= 1e-12 * want);
    }
}

proptest! {
    #[test]
    fn one_non_finite_element_is_found_wherever_it_is(
        len in 1..3000usize,
        at in 0..3000usize,
        kind in 0..3usize,
    ) {
        let mut x = numbers(1, len);
        prop_assert!(!any_non_finite(&x));
        x[at % len] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][kind];
        prop_assert!(any_non_finite(&x));
    }
}
