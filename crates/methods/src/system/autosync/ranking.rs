//! Training a model to rank: of two strategies the one with the larger score should take longer (RankNet, Burges et
//! al. 2005, ICML).

/// All pairs that took differently long.
fn unlike(seconds: &[f64]) -> impl Iterator<Item = (usize, usize)> {
    let after = |first: usize| (first + 1..seconds.len()).map(move |second| (first, second));
    let pairs = (0..seconds.len()).flat_map(after);
    pairs.filter(|&(first, second)| seconds[first] != seconds[second])
}

/// The loss of scores whose strategies took so long, in the mean over pairs that took differently long, and its
/// derivatives with respect to the scores. For a pair with a difference of scores s and y = 1 where the first took
/// longer, otherwise -1, it is (1 - y) / 2 s + log(1 + exp(-s)).
pub(super) fn loss(scores: &[f64], seconds: &[f64]) -> (f64, Vec<f64>) {
    let mut gradients = vec![0.0; scores.len()];
    let (mut sum, mut pairs) = (0.0, 0.0);
    for (first, second) in unlike(seconds) {
        let s = scores[first] - scores[second];
        let y = if seconds[first] > seconds[second] { 1.0 } else { -1.0 };
        // log(1 + exp(-s)) without overflow.
        sum += (1.0 - y) / 2.0 * s + (-s).max(0.0) + (-s.abs()).exp().ln_1p();
        let slope = (1.0 - y) / 2.0 - 1.0 / (1.0 + s.exp());
        gradients[first] += slope;
        gradients[second] -= slope;
        pairs += 1.0;
    }
    if pairs > 0.0 {
        sum /= pairs;
        gradients.iter_mut().for_each(|it| *it /= pairs);
    }
    (sum, gradients)
}

/// The share of pairs that took differently long which scores put in the right order; none if there are no such.
pub(super) fn accuracy(scores: &[f64], seconds: &[f64]) -> Option<f64> {
    let (mut right, mut pairs) = (0, 0);
    for (first, second) in unlike(seconds) {
        pairs += 1;
        let longer = seconds[first] > seconds[second];
        let larger = scores[first] > scores[second];
        right += usize::from(scores[first] != scores[second] && longer == larger);
    }
    (pairs > 0).then(|| right as f64 / pairs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_of_the_loss_are_its_differences() {
        let (scores, seconds) = ([0.3, -1.2, 0.9, 40.0], [2.0, 1.0, 1.0, 0.5]);
        let (_, gradients) = loss(&scores, &seconds);
        for (index, gradient) in gradients.iter().enumerate() {
            let at = |step: f64| {
                let mut moved = scores;
                moved[index] += step;
                loss(&moved, &seconds).0
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((difference - gradient).abs() < 1e-6, "{index}: {difference} {gradient}");
        }
    }

    #[test]
    fn accuracy_counts_pairs_in_the_right_order() {
        assert_eq!(accuracy(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), Some(1.0));
        assert_eq!(accuracy(&[3.0, 2.0, 1.0], &[1.0, 2.0, 3.0]), Some(0.0));
        assert_eq!(accuracy(&[1.0, 2.0, 0.0], &[1.0, 2.0, 2.0]), Some(0.5));
        assert_eq!(accuracy(&[0.0, 0.0], &[1.0, 2.0]), Some(0.0));
        assert_eq!(accuracy(&[0.0, 1.0], &[1.0, 1.0]), None);
    }
}
