//! Element-wise activations: GELU, ReLU, SiLU, and the gated SwiGLU and GeGLU.
//!
//! Each input gradient takes the forward *input* and recomputes what it needs. With `accumulate`
//! it adds onto its destination, otherwise it overwrites.

use crate::elementary::{sigmoid, sigmoid_both};
use crate::simd::simd;

/// 2 sqrt(2 / pi).
const GELU_INNER: f32 = 1.595_769;
/// The cubic coefficient of the approximation.
const GELU_CUBIC: f32 = 0.044_715;

/// The argument of the logistic function in GELU: 1 + tanh(u) = 2 sigmoid(2 u), which does not
/// cancel for negative u.
#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    GELU_INNER * (GELU_CUBIC * x * x).mul_add(x, x)
}

/// The logistic function in GELU, and the slope of GELU.
#[inline(always)]
fn gelu_both(x: f32) -> (f32, f32) {
    let (s, complement) = sigmoid_both(gelu_argument(x));
    let argument_slope = GELU_INNER * (3.0 * GELU_CUBIC * x).mul_add(x, 1.0);
    (s, (x * argument_slope * complement).mul_add(s, s))
}

/// The logistic function in SiLU, and the slope of SiLU.
#[inline(always)]
fn silu_both(x: f32) -> (f32, f32) {
    let (s, complement) = sigmoid_both(x);
    (s, (x * complement).mul_add(s, s))
}

#[inline(always)]
fn map(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32) {
    assert_eq!(x.len(), y.len(), "an activation keeps the shape");
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

#[inline(always)]
fn map_grad(x: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool, slope: impl Fn(f32) -> f32) {
    assert!(x.len() == dx.len() && dy.len() == dx.len(), "an activation keeps the shape");
    if accumulate {
        for (dx, (&x, &dy)) in dx.iter_mut().zip(x.iter().zip(dy)) {
            *dx += dy * slope(x);
        }
    } else {
        for (dx, (&x, &dy)) in dx.iter_mut().zip(x.iter().zip(dy)) {
            *dx = dy * slope(x);
        }
    }
}

/// Both input gradients of f(gate) up, where f(x) is x s, of which `activated` gives s and the slope of f.
#[inline(always)]
fn gated_grad(
    [gate, up, dy]: [&[f32]; 3],
    [dgate, dup]: [&mut [f32]; 2],
    [accumulate_gate, accumulate_up]: [bool; 2],
    activated: impl Fn(f32) -> (f32, f32),
) {
    let len = dy.len();
    assert!(
        [gate.len(), up.len(), dgate.len(), dup.len()] == [len; 4],
        "a gated unit keeps the shape"
    );
    for (((&gate, &up), &dy), (dgate, dup)) in
        gate.iter().zip(up).zip(dy).zip(dgate.iter_mut().zip(dup))
    {
        let (s, slope) = activated(gate);
        let (gate_term, up_term) = (dy * up * slope, dy * gate * s);
        *dgate = if accumulate_gate { *dgate + gate_term } else { gate_term };
        *dup = if accumulate_up { *dup + up_term } else { up_term };
    }
}

simd! {
    /// y = GELU(x) in the tanh approximation of Hendrycks and Gimpel (arXiv 1606.08415, section 2).
    pub fn gelu(x: &[f32], y: &mut [f32]) {
        map(x, y, |x| x * sigmoid(gelu_argument(x)));
    }

    /// Input gradient of [`gelu`].
    pub fn gelu_input_grad(x: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        map_grad(x, dy, dx, accumulate, |x| gelu_both(x).1);
    }

    /// y = max(x, 0).
    pub fn relu(x: &[f32], y: &mut [f32]) {
        // Not `f32::max`: a NaN must not turn into 0.
        map(x, y, |x| if x < 0.0 { 0.0 } else { x });
    }

    /// Input gradient of [`relu`]; 0 where x is 0.
    pub fn relu_input_grad(x: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        map_grad(x, dy, dx, accumulate, |x| if x > 0.0 { 1.0 } else { 0.0 });
    }

    /// y = x sigmoid(x).
    pub fn silu(x: &[f32], y: &mut [f32]) {
        map(x, y, |x| x * sigmoid(x));
    }

    /// Input gradient of [`silu`].
    pub fn silu_input_grad(x: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        map_grad(x, dy, dx, accumulate, |x| silu_both(x).1);
    }

    /// y = silu(gate) up (Shazeer, arXiv 2002.05202, equation 6, without the matrices).
    pub fn swiglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
        assert!(gate.len() == y.len() && up.len() == y.len(), "SwiGLU keeps the shape");
        for (y, (&gate, &up)) in y.iter_mut().zip(gate.iter().zip(up)) {
            *y = gate * sigmoid(gate) * up;
        }
    }

    /// Input gradients of [`swiglu`], for the gate and for the other factor.
    pub fn swiglu_input_grad(
        gate: &[f32],
        up: &[f32],
        dy: &[f32],
        dgate: &mut [f32],
        dup: &mut [f32],
        accumulate_gate: bool,
        accumulate_up: bool,
    ) {
        gated_grad([gate, up, dy], [dgate, dup], [accumulate_gate, accumulate_up], silu_both);
    }

    /// y = GELU(gate) up (Shazeer, arXiv 2002.05202, equation 6, without the matrices), with [`gelu`].
    pub fn geglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
        assert!(gate.len() == y.len() && up.len() == y.len(), "GeGLU keeps the shape");
        for (y, (&gate, &up)) in y.iter_mut().zip(gate.iter().zip(up)) {
            *y = gate * sigmoid(gelu_argument(gate)) * up;
        }
    }

    /// Input gradients of [`geglu`], for the gate and for the other factor.
    pub fn geglu_input_grad(
        gate: &[f32],
        up: &[f32],
        dy: &[f32],
        dgate: &mut [f32],
        dup: &mut [f32],
        accumulate_gate: bool,
        accumulate_up: bool,
    ) {
        gated_grad([gate, up, dy], [dgate, dup], [accumulate_gate, accumulate_up], gelu_both);
    }
}
