//! Values bounded smoothly: y = cap tanh(x / cap), as Gemma 2 bounds logits (Gemma Team 2024, arXiv
//! 2408.00118, section 2).

use crate::elementary::tanh;
use crate::simd::simd;

simd! {
    /// y = cap tanh(x / cap).
    pub fn soft_cap(x: &[f32], cap: f32, y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "soft_cap keeps the shape");
        let inverse = 1.0 / cap;
        for (y, &x) in y.iter_mut().zip(x) {
            *y = cap * tanh(inverse * x);
        }
    }

    /// Input gradient of [`soft_cap`], from what it gave: its slope is 1 - (y / cap)^2.
    pub fn soft_cap_input_grad(y: &[f32], dy: &[f32], cap: f32, dx: &mut [f32], accumulate: bool) {
        assert!(y.len() == dx.len() && dy.len() == dx.len(), "soft_cap keeps the shape");
        let inverse = 1.0 / cap;
        for (dx, (&y, &dy)) in dx.iter_mut().zip(y.iter().zip(dy)) {
            let t = inverse * y;
            let term = dy * (1.0 - t) * (1.0 + t);
            *dx = if accumulate { *dx + term } else { term };
        }
    }
}
