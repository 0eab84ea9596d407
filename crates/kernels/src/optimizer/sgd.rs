//! Stochastic gradient descent with momentum (Sutskever et al., "On the importance of
//! initialization and momentum in deep learning", ICML 2013), in PyTorch's form, with the two
//! coefficients of Kosson et al., "Pipelined Backpropagation at Scale" (MLSys 2021, arXiv
//! 2003.11666), of which Nesterov's step and spike compensation are cases.

use smallvec::{SmallVec, smallvec};

use super::{Piece, Step};
use crate::simd::simd;

/// Hyper-parameters of stochastic gradient descent.
///
/// An update with gradient g makes the velocity v = momentum v + g and steps along
/// `velocity_share` v + `gradient_share` g. Shares of 1 and 0 are plain momentum, shares of
/// `momentum` and 1 are Nesterov's step (one update ahead along the velocity).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Share of the velocity kept; 0 keeps no velocity and no state.
    pub momentum: f32,
    /// Multiple of the velocity in the step.
    pub velocity_share: f32,
    /// Multiple of the gradient in the step, besides its part of the velocity.
    pub gradient_share: f32,
    /// Multiple of the weights added to the gradient.
    pub weight_decay: f32,
}

impl Sgd {
    /// Plain momentum.
    pub fn new(momentum: f32, weight_decay: f32) -> Sgd {
        Sgd { momentum, velocity_share: 1.0, gradient_share: 0.0, weight_decay }
    }

    /// The same with spike compensation (Kosson et al.) for gradients that come
    /// `delay` updates late: shares of m^D and (1 - m^D) / (1 - m). A gradient's first step then
    /// makes up at once for those it has missed, so that after any number of updates it has moved
    /// the weights as far as if it had not been late.
    ///
    /// `delay` is at least 0, and 0 changes nothing; it need not be whole.
    pub fn spike_compensated(self, delay: f64) -> Sgd {
        assert!(delay >= 0.0, "a gradient is {delay} updates late");
        let momentum = f64::from(self.momentum);
        let kept = momentum.powf(delay);
        // The sum of the powers of the momentum below the delay.
        let missed = if momentum == 1.0 { delay } else { (1.0 - kept) / (1.0 - momentum) };
        Sgd { velocity_share: kept as f32, gradient_share: missed as f32, ..self }
    }

    pub(super) fn state_lens(&self, piece: &Piece) -> SmallVec<[usize; 2]> {
        match self.momentum == 0.0 {
            true => smallvec![],
            false => smallvec![piece.elements()],
        }
    }

    pub(super) fn apply(
        &self,
        step: Step,
        weights: &mut [f32],
        gradient: &[f32],
        velocity: Option<&mut [f32]>,
    ) {
        match velocity {
            Some(velocity) => descend_with_velocity(self, step, weights, gradient, velocity),
            None => descend(self, step, weights, gradient),
        }
    }
}

simd! {
    /// Without momentum the velocity is the gradient.
    fn descend(sgd: &Sgd, step: Step, weights: &mut [f32], gradient: &[f32]) {
        let rate = step.learning_rate * (sgd.velocity_share + sgd.gradient_share);
        for (w, &g) in weights.iter_mut().zip(gradient) {
            let g = sgd.weight_decay.mul_add(*w, step.gradient_scale * g);
            *w -= rate * g;
        }
    }

    /// v = momentum v + g; the step goes along the two shares of v and g.
    fn descend_with_velocity(
        sgd: &Sgd,
        step: Step,
        weights: &mut [f32],
        gradient: &[f32],
        velocity: &mut [f32],
    ) {
        let Sgd { momentum, velocity_share, gradient_share, weight_decay } = *sgd;
        for ((w, &g), v) in weights.iter_mut().zip(gradient).zip(velocity) {
            let g = weight_decay.mul_add(*w, step.gradient_scale * g);
            *v = momentum.mul_add(*v, g);
            let direction = velocity_share.mul_add(*v, gradient_share * g);
            *w -= step.learning_rate * direction;
        }
    }
}
