//! Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).

use super::Step;
use crate::simd::simd;

/// Hyper-parameters of AdamW; without weight decay it is Adam (Kingma and Ba, arXiv 1412.6980).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Share of the weights, times the learning rate, taken off at each update.
    pub weight_decay: f32,
}

impl AdamW {
    pub(super) fn apply(
        &self,
        step: Step,
        weights: &mut [f32],
        gradient: &[f32],
        m: &mut [f32],
        v: &mut [f32],
    ) {
        update(self, step, weights, gradient, m, v);
    }
}

simd! {
    fn update(
        adamw: &AdamW,
        step: Step,
        weights: &mut [f32],
        gradient: &[f32],
        m: &mut [f32],
        v: &mut [f32],
    ) {
        let AdamW { beta1, beta2, epsilon, weight_decay } = *adamw;
        let rate = step.learning_rate / step.filled(beta1);
        let v_scale = 1.0 / step.filled(beta2).sqrt();
        let keep = 1.0 - step.learning_rate * weight_decay;
        for ((w, &g), (m, v)) in weights.iter_mut().zip(gradient).zip(m.iter_mut().zip(v)) {
            let g = step.gradient_scale * g;
            *m = beta1.mul_add(*m, (1.0 - beta1) * g);
            *v = beta2.mul_add(*v, (1.0 - beta2) * g * g);
            let root = v.sqrt().mul_add(v_scale, epsilon);
            *w = keep * *w - rate * *m / root;
        }
    }
}
