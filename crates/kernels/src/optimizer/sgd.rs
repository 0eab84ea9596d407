//! Stochastic gradient descent with momentum (Sutskever et al., "On the importance of
//! initialization and momentum in deep learning", ICML 2013), in PyTorch's form.

use super::{Piece, Step};
use crate::simd::simd;

/// Hyper-parameters of stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Share of the velocity kept; 0 keeps no velocity and no state.
    pub momentum: f32,
    /// Whether to step along the velocity one update ahead (Nesterov).
    pub nesterov: bool,
    /// Multiple of the weights added to the gradient.
    pub weight_decay: f32,
}

impl Sgd {
    pub(super) fn state_lens(&self, piece: &Piece) -> Vec<usize> {
        if self.momentum == 0.0 { vec![] } else { vec![piece.elements()] }
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
    fn descend(sgd: &Sgd, step: Step, weights: &mut [f32], gradient: &[f32]) {
        for (w, &g) in weights.iter_mut().zip(gradient) {
            let g = sgd.weight_decay.mul_add(*w, step.gradient_scale * g);
            *w -= step.learning_rate * g;
        }
    }

    /// v = momentum v + g; the step goes along v, or along g + momentum v (Nesterov).
    fn descend_with_velocity(
        sgd: &Sgd,
        step: Step,
        weights: &mut [f32],
        gradient: &[f32],
        velocity: &mut [f32],
    ) {
        let Sgd { momentum, nesterov, weight_decay } = *sgd;
        for ((w, &g), v) in weights.iter_mut().zip(gradient).zip(velocity) {
            let g = weight_decay.mul_add(*w, step.gradient_scale * g);
            *v = momentum.mul_add(*v, g);
            let direction = if nesterov { momentum.mul_add(*v, g) } else { *v };
            *w -= step.learning_rate * direction;
        }
    }
}
