//! Adam (Kingma and Ba 2015, ICLR) with gradients clipped by their norm and decay added to them.

/// Its state.
#[derive(Clone, Debug)]
pub(crate) struct Adam {
    mean: Vec<f64>,
    square: Vec<f64>,
    steps: i32,
}

const BETAS: (f64, f64) = (0.9, 0.999);
const EPSILON: f64 = 1e-8;

/// As released.
const DECAY: f64 = 3e-4;

/// The norm to which gradients are clipped, as released.
const NORM: f64 = 0.25;

impl Adam {
    /// For so many parameters.
    pub fn new(count: usize) -> Adam {
        Adam { mean: vec![0.0; count], square: vec![0.0; count], steps: 0 }
    }

    /// Moves parameters against their gradients.
    pub fn step(&mut self, parameters: &mut [f64], gradients: &[f64], rate: f64) {
        self.steps += 1;
        let norm = gradients.iter().map(|it| it * it).sum::<f64>().sqrt();
        let clip = if norm > NORM { NORM / norm } else { 1.0 };
        let corrected = |beta: f64| 1.0 - beta.powi(self.steps);
        let (first, second) = (corrected(BETAS.0), corrected(BETAS.1));
        let state = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, gradient), (mean, square)) in
            parameters.iter_mut().zip(gradients).zip(state)
        {
            let gradient = clip * gradient + DECAY * *parameter;
            *mean = BETAS.0 * *mean + (1.0 - BETAS.0) * gradient;
            *square = BETAS.1 * *square + (1.0 - BETAS.1) * gradient * gradient;
            *parameter -= rate * (*mean / first) / ((*square / second).sqrt() + EPSILON);
        }
    }
}
