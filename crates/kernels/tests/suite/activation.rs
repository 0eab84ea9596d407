use shardloom_kernels::activation::*;

use crate::oracle::{assert_close, check_destination, numbers, numeric_grad, widen};

fn gelu_exact(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

fn silu_exact(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn inputs() -> Vec<f32> {
    numbers(1, 1003).into_iter().map(|x| 6.0 * x).collect()
}

fn check(
    exact: impl Fn(f64) -> f64 + Copy,
    forward: impl Fn(&[f32], &mut [f32]),
    input_grad: impl Fn(&[f32], &[f32], &mut [f32], bool),
) {
    for len in [1, 3, 17, 1003] {
        let x = &inputs()[..len];
        let map = |x: &[f64]| x.iter().map(|&x| exact(x)).collect::<Vec<f64>>();
        let mut y = vec![f32::NAN; len];
        forward(x, &mut y);
        assert_close(&y, &map(&widen(x)), 3e-7);

        let dy = numbers(2, len);
        // Element by element, as each output depends on its own input only.
        let want: Vec<f64> =
            (0..len).flat_map(|i| numeric_grad(map, &x[i..=i], &dy[i..=i])).collect();
        check_destination(&want, 1e-6, |dx, accumulate| input_grad(x, &dy, dx, accumulate));
    }
}

#[test]
fn gelu_matches_its_tanh_formula_and_numerical_slope() {
    check(gelu_exact, gelu, gelu_input_grad);
}

#[test]
fn gelu_keeps_relative_accuracy_where_it_is_tiny_and_saturates() {
    let x = [-4.0, -3.0, -1e-3, -1e-20, 0.0, 1e-20, 1e-3, 3.0];
    let mut y = [f32::NAN; 8];
    gelu(&x, &mut y);
    for (&x, &y) in x.iter().zip(&y) {
        let want = gelu_exact(f64::from(x));
        // The formula itself cancels at -4, so its value there is from 1 + tanh u = 2 / (1 +
        // e^-2u).
        let u =
            (2.0 / std::f64::consts::PI).sqrt() * (f64::from(x) + 0.044715 * f64::from(x).powi(3));
        let stable = f64::from(x) / (1.0 + (-2.0 * u).exp());
        assert!((want - stable).abs() <= 1e-9, "the two formulas agree at {x}");
        assert!(
            (f64::from(y) - stable).abs() <= 2e-6 * stable.abs(),
            "gelu({x}) = {y}, not {stable}"
        );
    }
    let mut ends = [f32::NAN; 3];
    gelu(&[-100.0, 100.0, f32::NAN], &mut ends);
    assert_eq!(ends[..2], [0.0, 100.0]);
    assert!(ends[2].is_nan(), "a NaN is not hidden");
}

#[test]
fn relu_and_silu_match_their_formulas_and_numerical_slopes() {
    check(|x| x.max(0.0), relu, relu_input_grad);
    check(silu_exact, silu, silu_input_grad);
}

/// From 89 below zero on, the reciprocal of the logistic function is above the largest number.
#[test]
fn far_below_zero_silu_and_gated_units_have_no_slope() {
    let x = [-79.0, -85.0, -100.0, -120.0, -1e4];
    let mut dx = [f32::NAN; 5];
    silu_input_grad(&x, &[1.0; 5], &mut dx, false);
    assert!(dx.iter().all(|dx| dx.abs() < 1e-30), "{dx:?}");
    // The argument within GELU grows with the cube.
    let units: [(GatedGrad, f32); 2] = [(swiglu_input_grad, 1e-30), (geglu_input_grad, 1e-20)];
    for (input_grad, most) in units {
        let (mut dgate, mut dup) = ([f32::NAN; 5], [f32::NAN; 5]);
        input_grad(&x, &[1.0; 5], &[1.0; 5], &mut dgate, &mut dup, false, false);
        assert!(dgate.iter().chain(&dup).all(|it| it.abs() < most), "{dgate:?} {dup:?}");
    }
}

#[test]
fn relu_lets_a_nan_through_and_has_slope_zero_at_zero() {
    let mut y = [0.0; 2];
    relu(&[f32::NAN, -0.0], &mut y);
    assert!(y[0].is_nan());
    assert_eq!(y[1], 0.0);
    let mut dx = [5.0];
    relu_input_grad(&[0.0], &[1.0], &mut dx, false);
    assert_eq!(dx, [0.0]);
}

/// Both input gradients of a gated unit.
type GatedGrad = fn(&[f32], &[f32], &[f32], &mut [f32], &mut [f32], bool, bool);

fn check_gated(f: fn(f64) -> f64, forward: fn(&[f32], &[f32], &mut [f32]), input_grad: GatedGrad) {
    for len in [1, 3, 17, 40] {
        let (gate, up, dy) = (&inputs()[..len], numbers(5, len), numbers(6, len));
        let exact = |gate: &[f64], up: &[f64]| -> Vec<f64> {
            gate.iter().zip(up).map(|(&g, &u)| f(g) * u).collect()
        };
        let (gate64, up64) = (widen(gate), widen(&up));
        let mut y = vec![f32::NAN; len];
        forward(gate, &up, &mut y);
        assert_close(&y, &exact(&gate64, &up64), 1e-6);

        let want_gate = numeric_grad(|gate| exact(gate, &up64), gate, &dy);
        let want_up = numeric_grad(|up| exact(&gate64, up), &up, &dy);
        check_destination(&want_gate, 1e-6, |dgate, accumulate| {
            let mut dup = numbers(8, len);
            input_grad(gate, &up, &dy, dgate, &mut dup, accumulate, !accumulate);
        });
        check_destination(&want_up, 1e-6, |dup, accumulate| {
            let mut dgate = numbers(8, len);
            input_grad(gate, &up, &dy, &mut dgate, dup, !accumulate, accumulate);
        });
    }
}

#[test]
fn swiglu_and_geglu_and_all_their_gradients_match() {
    check_gated(silu_exact, swiglu, swiglu_input_grad);
    check_gated(gelu_exact, geglu, geglu_input_grad);
}
