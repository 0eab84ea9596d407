//! Binary cross-entropy of the sigmoid of logits, as a sum over all of them.
//!
//! Of a logit x and a target t, 0 or 1, it is `ln(1 + exp(x)) - t x`, computed as `max(x, 0) - t x + ln(1 +
//! exp(-|x|))`, which overflows for no logit.

use crate::elementary::sigmoid;
use crate::simd::simd;

/// The sum over all logits.
pub fn loss(logits: &[f32], targets: &[u32]) -> f64 {
    assert_eq!(logits.len(), targets.len(), "a target for each logit");
    let each = logits.iter().zip(targets).map(|(&logit, &target)| {
        let (x, t) = (f64::from(logit), f64::from(target));
        // Not `max`: a NaN must not turn into 0.
        let above = if x < 0.0 { 0.0 } else { x };
        above - t * x + (-x.abs()).exp().ln_1p()
    });
    each.sum()
}

simd! {
    /// Gradient of scale times [`loss`]: scale (sigmoid(logit) - target).
    pub fn logits_grad(
        logits: &[f32],
        targets: &[u32],
        scale: f32,
        dlogits: &mut [f32],
        accumulate: bool,
    ) {
        assert!(
            logits.len() == targets.len() && logits.len() == dlogits.len(),
            "{} logits, {} targets and {} gradients",
            logits.len(),
            targets.len(),
            dlogits.len()
        );
        for (d, (&logit, &target)) in dlogits.iter_mut().zip(logits.iter().zip(targets)) {
            let term = scale * (sigmoid(logit) - target as f32);
            *d = if accumulate { *d + term } else { term };
        }
    }
}
