//! Sums of tensors, with and without broadcasting, and scaling.

use crate::reduce::column_sums;
use crate::simd::simd;

simd! {
    /// y = a + b, all of one length.
    pub fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
        assert!(a.len() == y.len() && b.len() == y.len(), "add of three slices of one length");
        for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
            *y = a + b;
        }
    }

    /// `y[i, j]` = `a[i, j]` + `b[j]`: `b` repeats over the leading axes of `a`.
    pub fn add_broadcast(a: &[f32], b: &[f32], y: &mut [f32]) {
        assert_eq!(a.len(), y.len(), "add_broadcast keeps the shape of its first operand");
        if b.is_empty() {
            return;
        }
        assert_eq!(a.len() % b.len(), 0, "{} elements are not repeats of {}", a.len(), b.len());
        for (y, a) in y.chunks_exact_mut(b.len()).zip(a.chunks_exact(b.len())) {
            for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
                *y = a + b;
            }
        }
    }

    /// Gradient of the operand that [`add_broadcast`] repeated: `db[j]` = sum over i of `dy[i, j]`.
    pub fn broadcast_grad(dy: &[f32], db: &mut [f32], accumulate: bool) {
        column_sums(dy, dy, db, accumulate, |_| (), |(), dy, _| dy);
    }

    /// y = factor x.
    pub fn scale(x: &[f32], factor: f32, y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "scale keeps the shape");
        for (y, &x) in y.iter_mut().zip(x) {
            *y = factor * x;
        }
    }

    /// Input gradient of [`scale`].
    pub fn scale_input_grad(dy: &[f32], factor: f32, dx: &mut [f32], accumulate: bool) {
        assert_eq!(dx.len(), dy.len(), "scale keeps the shape");
        for (dx, &dy) in dx.iter_mut().zip(dy) {
            let term = factor * dy;
            *dx = if accumulate { *dx + term } else { term };
        }
    }

    /// x = factor x.
    pub fn scale_in_place(x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }
}
