//! LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
//! arXiv 1904.00962, algorithm 2), with the identity as the scaling of the weight norm.

use super::Step;
use crate::reduce::squared_norm;
use crate::simd::simd;

/// The squared norms of the weights and of the update.
pub(super) const STATISTICS: usize = 2;

/// Hyper-parameters of LAMB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lamb {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Multiple of the weights added to the update before its norm is taken.
    pub weight_decay: f32,
}

impl Lamb {
    /// Advances the moments.
    pub(super) fn statistics(
        &self,
        step: Step,
        weights: &[f32],
        gradient: &[f32],
        m: &mut [f32],
        v: &mut [f32],
        out: &mut [f32],
    ) {
        out[0] = squared_norm(weights) as f32;
        out[1] = self.advance(step, weights, gradient, m, v) as f32;
    }

    /// Advances the moments of some elements and gives the squared norm of their update: of several times
    /// [`NORM_BLOCK`] elements the same as of all at once, if added up.
    pub(super) fn advance(
        &self,
        step: Step,
        weights: &[f32],
        gradient: &[f32],
        m: &mut [f32],
        v: &mut [f32],
    ) -> f64 {
        advance(self, step, weights, gradient, m, v)
    }

    pub(super) fn apply(
        &self,
        step: Step,
        weights: &mut [f32],
        m: &[f32],
        v: &[f32],
        sums: &[f32],
    ) {
        let (weight_norm, update_norm) = (sums[0].sqrt(), sums[1].sqrt());
        let trust =
            if weight_norm == 0.0 || update_norm == 0.0 { 1.0 } else { weight_norm / update_norm };
        descend(self, step, trust * step.learning_rate, weights, m, v);
    }
}

/// The factors on the moments that undo their start at zero.
struct Correction {
    m: f32,
    root_v: f32,
}

impl Correction {
    fn new(lamb: &Lamb, step: Step) -> Correction {
        Correction {
            m: 1.0 / step.filled(lamb.beta1),
            root_v: 1.0 / step.filled(lamb.beta2).sqrt(),
        }
    }
}

#[inline(always)]
fn direction(lamb: &Lamb, correction: &Correction, w: f32, m: f32, v: f32) -> f32 {
    let root = v.sqrt().mul_add(correction.root_v, lamb.epsilon);
    lamb.weight_decay.mul_add(w, correction.m * m / root)
}

/// Elements whose squares are added in single precision before they join a double.
pub(super) const NORM_BLOCK: usize = 512;

simd! {
    /// Advances the moments and returns the squared norm of the update.
    fn advance(
        lamb: &Lamb,
        step: Step,
        weights: &[f32],
        gradient: &[f32],
        m: &mut [f32],
        v: &mut [f32],
    ) -> f64 {
        let correction = Correction::new(lamb, step);
        let mut norm = 0.0;
        let mut block = [0.0_f32; NORM_BLOCK];
        for (((weights, gradient), m), v) in weights
            .chunks(NORM_BLOCK)
            .zip(gradient.chunks(NORM_BLOCK))
            .zip(m.chunks_mut(NORM_BLOCK))
            .zip(v.chunks_mut(NORM_BLOCK))
        {
            let updates = &mut block[..weights.len()];
            for (((&w, &g), (m, v)), update) in
                weights.iter().zip(gradient).zip(m.iter_mut().zip(v)).zip(updates.iter_mut())
            {
                let g = step.gradient_scale * g;
                *m = lamb.beta1.mul_add(*m, (1.0 - lamb.beta1) * g);
                *v = lamb.beta2.mul_add(*v, (1.0 - lamb.beta2) * g * g);
                *update = direction(lamb, &correction, w, *m, *v);
            }
            norm += f64::from(crate::reduce::sum(updates, |u| u * u));
        }
        norm
    }

    fn descend(lamb: &Lamb, step: Step, rate: f32, weights: &mut [f32], m: &[f32], v: &[f32]) {
        let correction = Correction::new(lamb, step);
        for (w, (&m, &v)) in weights.iter_mut().zip(m.iter().zip(v)) {
            *w -= rate * direction(lamb, &correction, *w, m, v);
        }
    }
}
