//! Dropout from a mask (1 keeps, 0 drops, see [`crate::random::dropout_mask`]), alone and fused
//! with a bias and a residual connection.
//!
//! `keep_scale` is 1 / (1 - p) for drop probability p: what is kept is scaled up, so that nothing
//! changes on average and evaluation needs no scaling.

use crate::reduce::column_sums;
use crate::simd::simd;

simd! {
    /// y = keep_scale mask x.
    pub fn dropout(x: &[f32], mask: &[u8], keep_scale: f32, y: &mut [f32]) {
        assert!(x.len() == y.len() && mask.len() == y.len(), "dropout keeps the shape");
        for (y, (&x, &mask)) in y.iter_mut().zip(x.iter().zip(mask)) {
            *y = f32::from(mask) * keep_scale * x;
        }
    }

    /// Input gradient of [`dropout`], and of `x` in [`bias_dropout_add`]: dx = keep_scale mask dy.
    pub fn dropout_input_grad(
        dy: &[f32],
        mask: &[u8],
        keep_scale: f32,
        dx: &mut [f32],
        accumulate: bool,
    ) {
        assert!(dy.len() == dx.len() && mask.len() == dx.len(), "dropout keeps the shape");
        for (dx, (&dy, &mask)) in dx.iter_mut().zip(dy.iter().zip(mask)) {
            let term = f32::from(mask) * keep_scale * dy;
            *dx = if accumulate { *dx + term } else { term };
        }
    }

    fn bias_dropout_add_masked(
        x: &[f32],
        bias: &[f32],
        mask: &[u8],
        keep_scale: f32,
        residual: &[f32],
        y: &mut [f32],
    ) {
        let n = bias.len();
        for (((y, x), mask), residual) in y
            .chunks_exact_mut(n)
            .zip(x.chunks_exact(n))
            .zip(mask.chunks_exact(n))
            .zip(residual.chunks_exact(n))
        {
            for ((y, (&x, &bias)), (&mask, &residual)) in
                y.iter_mut().zip(x.iter().zip(bias)).zip(mask.iter().zip(residual))
            {
                *y = (f32::from(mask) * keep_scale).mul_add(x + bias, residual);
            }
        }
    }

    fn bias_add(x: &[f32], bias: &[f32], residual: &[f32], y: &mut [f32]) {
        let n = bias.len();
        for ((y, x), residual) in
            y.chunks_exact_mut(n).zip(x.chunks_exact(n)).zip(residual.chunks_exact(n))
        {
            for ((y, (&x, &bias)), &residual) in
                y.iter_mut().zip(x.iter().zip(bias)).zip(residual)
            {
                *y = x + bias + residual;
            }
        }
    }

    /// Bias gradient of [`bias_dropout_add`] under a mask: the column sums of keep_scale mask dy.
    /// Without a mask it is [`crate::matmul::bias_grad`].
    pub fn bias_dropout_add_bias_grad(
        dy: &[f32],
        mask: &[u8],
        keep_scale: f32,
        dbias: &mut [f32],
        accumulate: bool,
    ) {
        column_sums(dy, mask, dbias, accumulate, |_| (), |(), dy, mask| {
            f32::from(mask) * keep_scale * dy
        });
    }
}

/// y = residual + keep_scale mask (x + bias) for `x`, `mask`, `residual`, `y` of shape `[rows, n]`
/// and `bias` of `[n]`; without a mask y = residual + x + bias.
///
/// The gradient of the residual is dy itself; that of `x` is [`dropout_input_grad`].
pub fn bias_dropout_add(
    x: &[f32],
    bias: &[f32],
    mask: Option<&[u8]>,
    keep_scale: f32,
    residual: &[f32],
    y: &mut [f32],
) {
    assert!(
        x.len() == y.len() && residual.len() == y.len(),
        "bias_dropout_add keeps the shape of its input"
    );
    if bias.is_empty() {
        return;
    }
    assert_eq!(y.len() % bias.len(), 0, "{} elements are not rows of {}", y.len(), bias.len());
    match mask {
        Some(mask) => {
            assert_eq!(mask.len(), y.len(), "a mask element for each output element");
            bias_dropout_add_masked(x, bias, mask, keep_scale, residual, y);
        }
        None => bias_add(x, bias, residual, y),
    }
}
