//! Stochastic gradient descent on gradients that come late.

use std::f64::consts::PI;

use shardloom_kernels::optimizer::*;

/// Updates of one weight.
struct Descent {
    sgd: Sgd,
    learning_rate: f32,
    weight: f32,
    velocity: Vec<f32>,
    updates: u64,
}

impl Descent {
    fn new(sgd: Sgd, learning_rate: f64, weight: f32) -> Descent {
        let velocity = Optimizer::Sgd(sgd).state_lens(&Piece::whole(1, 1));
        let velocity = velocity.iter().map(|_| 0.0).collect();
        Descent { sgd, learning_rate: learning_rate as f32, weight, velocity, updates: 0 }
    }

    fn update(&mut self, gradient: f32) -> f32 {
        self.updates += 1;
        let step =
            Step { number: self.updates, learning_rate: self.learning_rate, gradient_scale: 1.0 };
        let mut weights = [self.weight];
        let mut state: Vec<&mut [f32]> = self.velocity.chunks_mut(1).collect();
        let piece = Piece::whole(1, 1);
        Optimizer::Sgd(self.sgd).apply(step, &piece, &mut weights, &[gradient], &mut state, &[]);
        [self.weight] = weights;
        self.weight
    }
}

/// Whether descent on a parabola of this curvature goes to its minimum, if gradients come `delay`
/// updates late: w <- w - rate * curvature * (w as it was `delay` updates ago).
fn converges(sgd: Sgd, rate_by_curvature: f64, delay: usize) -> bool {
    let curvature = 4.0;
    let mut descent = Descent::new(sgd, rate_by_curvature / f64::from(curvature), 1.0);
    let mut weights = vec![1.0];
    loop {
        let late = weights[weights.len().saturating_sub(delay + 1)];
        weights.push(descent.update(curvature * late));
        // Over more updates than an oscillation has.
        let recent = &weights[weights.len().saturating_sub(5 * delay + 5)..];
        let size = recent.iter().fold(0.0, |size: f32, w| size.max(w.abs()));
        if !(1e-3..=1e3).contains(&size) {
            return size < 1.0;
        }
    }
}

/// The threshold of Yang et al., "PipeMare" (MLSys 2021, arXiv 1910.05124).
#[test]
fn descent_with_late_gradients_is_stable_below_pipemares_threshold_only() {
    let threshold = |delay: usize| 2.0 * (PI / (4.0 * delay as f64 + 2.0)).sin();
    for (delay, published) in [(1, 1.0), (2, 0.618), (5, 0.2846), (10, 0.1495)] {
        let threshold = threshold(delay);
        assert!((threshold - published).abs() < 5e-5, "{threshold} for a delay of {delay}");
    }
    for delay in 1..=30 {
        let threshold = threshold(delay);
        let plain = Sgd::new(0.0, 0.0);
        assert!(converges(plain, 0.99 * threshold, delay), "a delay of {delay} below {threshold}");
        assert!(!converges(plain, 1.01 * threshold, delay), "a delay of {delay} above {threshold}");
    }
}

/// Where the weight is after each of 40 updates, if one gradient of 1 comes at update `arrival`.
fn response(sgd: Sgd, arrival: usize) -> Vec<f32> {
    let mut descent = Descent::new(sgd, 0.1, 0.0);
    (0..40).map(|update| descent.update(if update == arrival { 1.0 } else { 0.0 })).collect()
}

fn assert_equal_displacements(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (update, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() < 1e-5, "{what}, {update} later: {got} instead of {want}");
    }
}

/// Kosson et al., "Pipelined Backpropagation at Scale" (MLSys 2021, arXiv 2003.11666).
#[test]
fn a_late_gradient_has_moved_the_weights_as_if_it_were_in_time_from_its_arrival_on() {
    for momentum in [0.0, 0.5, 0.9, 1.0] {
        let plain = Sgd::new(momentum, 0.0);
        let in_time = response(plain, 0);
        for delay in [0, 1, 2, 5, 12] {
            let what = format!("momentum {momentum}, delay {delay}");
            let late = response(plain.spike_compensated(delay as f64), delay);
            assert_eq!(&late[..delay], &vec![0.0; delay], "{what}, before it came");
            assert_equal_displacements(&late[delay..], &in_time[delay..], &what);
            let uncompensated = response(plain, delay);
            let behind = (uncompensated[delay] - in_time[delay]).abs();
            assert_eq!(behind > 1e-3, delay > 0 && momentum > 0.0, "{what}: {behind} behind");
        }
    }
}

#[test]
fn compensation_for_twice_the_delay_runs_ahead_by_the_delay() {
    let plain = Sgd::new(0.9, 0.0);
    let in_time = response(plain, 0);
    for delay in [1, 2, 5, 12] {
        let late = response(plain.spike_compensated(2.0 * delay as f64), delay);
        let end = late.len() - delay;
        let what = format!("twice the delay {delay}");
        assert_equal_displacements(&late[delay..end], &in_time[2 * delay..], &what);
    }
}

#[test]
fn compensation_for_no_delay_changes_nothing() {
    for momentum in [0.0, 0.9, 1.0] {
        let plain = Sgd::new(momentum, 0.1);
        assert_eq!(plain.spike_compensated(0.0), plain);
    }
}
