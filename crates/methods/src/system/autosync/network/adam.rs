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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::autosync::random::Random;

    /// Means weighted by powers of the betas, of gradients no longer than a quarter with decay, by definition.
    #[test]
    fn a_step_is_the_weighted_mean_of_gradients_over_the_root_of_that_of_their_squares() {
        let random = &mut Random::new(17);
        let mut parameters = vec![1.0, -0.5, 2.0, 0.0];
        let mut adam = Adam::new(parameters.len());
        // By step and parameter.
        let mut known: Vec<Vec<f64>> = vec![];
        let (mut long, mut short) = (0, 0);
        for step in 0..30 {
            let scale = [0.05, 0.3, 4.0][step % 3];
            let gradients: Vec<f64> = (0..4).map(|_| scale * (random.unit() - 0.5)).collect();
            let norm = gradients.iter().map(|it| it * it).sum::<f64>().sqrt();
            *(if norm > 0.25 { &mut long } else { &mut short }) += 1;
            let shrunk = gradients.iter().map(|it| it * f64::min(1.0, 0.25 / norm));
            let decayed = shrunk.zip(&parameters).map(|(it, own)| it + 3e-4 * own);
            known.push(decayed.collect());
            let rate = 0.01 / (1.0 + step as f64);
            let before = parameters.clone();
            adam.step(&mut parameters, &gradients, rate);
            for (at, (now, before)) in parameters.iter().zip(before).enumerate() {
                // The newest counts one, each before it the power of its age.
                let mean = |beta: f64, of: &dyn Fn(f64) -> f64| {
                    let newest_first = known.iter().rev().enumerate();
                    let weighed = newest_first.map(|(age, it)| (beta.powi(age as i32), of(it[at])));
                    let (sum, all) = weighed.fold((0.0, 0.0), |(sum, all), (weight, value)| {
                        (sum + weight * value, all + weight)
                    });
                    sum / all
                };
                let moved = rate * mean(0.9, &|it| it) / (mean(0.999, &|it| it * it).sqrt() + 1e-8);
                assert!((before - moved - now).abs() < 1e-12, "step {step}: {before} to {now}");
            }
        }
        assert!(long > 5 && short > 5, "{long} are clipped and {short} are not");
    }
}
