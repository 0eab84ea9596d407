//! Figures of how far predictions are from measurements.

use std::collections::BTreeMap;

use serde::Serialize;

/// A time or a size, predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// What was predicted.
    pub predicted: f64,
    /// What was measured; above 0.
    pub measured: f64,
}

impl Pair {
    /// Predicted over measured, less 1: above 0 where too much was predicted.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// Relative errors of some pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// How many pairs.
    pub rows: usize,
    /// Mean of the errors' absolute values.
    pub mean_absolute: f64,
    /// Mean of the errors: above 0 where too much is predicted.
    pub bias: f64,
    /// Median of the errors' absolute values; of an even number the mean of the middle two.
    pub median_absolute: f64,
    /// Spearman's rank correlation of predicted and measured, with mean ranks for equal numbers; none where
    /// all of one are equal.
    pub rank_correlation: Option<f64>,
}

impl Errors {
    /// The figures of these pairs; none without pairs.
    pub fn of(pairs: &[Pair]) -> Option<Errors> {
        let mut sizes: Vec<f64> = pairs.iter().map(|pair| pair.error().abs()).collect();
        sizes.sort_by(f64::total_cmp);
        Some(Errors {
            rows: pairs.len(),
            mean_absolute: mean(sizes.iter().copied())?,
            bias: mean(pairs.iter().map(Pair::error))?,
            median_absolute: quantile(&sizes, 0.5)?,
            rank_correlation: rank_correlation(pairs),
        })
    }
}

/// What it costs to take the plan predicted fastest instead of the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Regret {
    /// Groups of at least two plans.
    pub groups: usize,
    /// Mean over groups of: measured time of the plan predicted fastest, over the least measured, less 1.
    pub mean: f64,
    /// The most of a group.
    pub max: f64,
}

impl Regret {
    /// Of pairs that are in groups; none where no group has two.
    pub fn of<K: Ord>(pairs: impl IntoIterator<Item = (K, Pair)>) -> Option<Regret> {
        let mut groups: BTreeMap<K, Vec<Pair>> = BTreeMap::new();
        for (key, pair) in pairs {
            groups.entry(key).or_default().push(pair);
        }
        let of_group = |group: &Vec<Pair>| {
            // Of equal predictions the first counts.
            let chosen = group.iter().min_by(|a, b| a.predicted.total_cmp(&b.predicted))?;
            let least = group.iter().map(|pair| pair.measured).min_by(f64::total_cmp)?;
            (group.len() > 1).then_some(chosen.measured / least - 1.0)
        };
        let regrets: Vec<f64> = groups.values().filter_map(of_group).collect();
        Some(Regret {
            groups: regrets.len(),
            mean: mean(regrets.iter().copied())?,
            max: regrets.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// What a share of the numbers is below, linear between neighbours: 0 is the least, 1 the most, 0.5 the median.
/// The numbers are in order; none of no numbers.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let (low, high) = (sorted.get(below)?, sorted.get(above)?);
    Some(low + (high - low) * place.fract())
}

fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = numbers.len();
    (count > 0).then(|| numbers.sum::<f64>() / count as f64)
}

fn rank_correlation(pairs: &[Pair]) -> Option<f64> {
    let predicted = ranks(pairs.iter().map(|pair| pair.predicted).collect());
    let measured = ranks(pairs.iter().map(|pair| pair.measured).collect());
    let middle = (pairs.len() as f64 + 1.0) / 2.0;
    let sum = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    let spread = sum(&predicted, &predicted) * sum(&measured, &measured);
    (spread > 0.0).then(|| sum(&predicted, &measured) / spread.sqrt())
}

/// The ranks from 1 of these numbers; equal ones have the mean of theirs.
fn ranks(numbers: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
    let mut ranks = vec![0.0; numbers.len()];
    let mut first = 0;
    for run in order.chunk_by(|a, b| numbers[*a] == numbers[*b]) {
        let last = first + run.len();
        for index in run {
            ranks[*index] = (first + 1 + last) as f64 / 2.0;
        }
        first = last;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(numbers: &[(f64, f64)]) -> Vec<Pair> {
        numbers.iter().map(|&(predicted, measured)| Pair { predicted, measured }).collect()
    }

    fn close(found: f64, right: f64) -> bool {
        (found - right).abs() < 1e-12
    }

    #[test]
    fn errors_are_those_computed_by_hand() {
        // Errors: +50%, -50%, 0, +10%.
        let found = Errors::of(&pairs(&[(3.0, 2.0), (2.0, 4.0), (5.0, 5.0), (11.0, 10.0)]));
        let found = found.expect("there are pairs");
        assert_eq!(found.rows, 4);
        assert!(close(found.mean_absolute, 1.1 / 4.0), "{found:?}");
        assert!(close(found.bias, 0.1 / 4.0), "{found:?}");
        assert!(close(found.median_absolute, (0.1 + 0.5) / 2.0), "{found:?}");
        // Predicted ranks 2 1 3 4, measured 1 2 3 4: 1 - 6 x 2 / (4 x 15).
        assert!(close(found.rank_correlation.expect("they differ"), 0.8), "{found:?}");
        assert_eq!(Errors::of(&[]), None);
    }

    #[test]
    fn quantiles_are_those_computed_by_hand() {
        // Places 0.4, 2 and 3.6 of 0 to 4.
        let five = [1.0, 2.0, 4.0, 7.0, 12.0];
        assert!(close(quantile(&five, 0.1).expect("numbers"), 1.4));
        assert!(close(quantile(&five, 0.5).expect("numbers"), 4.0));
        assert!(close(quantile(&five, 0.9).expect("numbers"), 10.0));
        assert_eq!([0.0, 1.0].map(|share| quantile(&five, share)), [Some(1.0), Some(12.0)]);
        assert_eq!([0.1, 0.9].map(|share| quantile(&[3.0], share)), [Some(3.0); 2]);
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn as_many_numbers_are_outside_quantiles_as_their_shares_say() {
        // Squares, so that no two neighbours are equally far apart.
        for count in [11, 31, 101, 1001] {
            let numbers: Vec<f64> = (0..count).map(|it| f64::from(it * it)).collect();
            let [low, high] = [0.1, 0.9].map(|share| quantile(&numbers, share).expect("numbers"));
            let below = numbers.iter().filter(|it| **it < low - 1e-6).count();
            let above = numbers.iter().filter(|it| **it > high + 1e-6).count();
            assert_eq!([below, above], [count as usize / 10; 2], "of {count}");
        }
    }

    #[test]
    fn equal_numbers_share_their_ranks() {
        assert_eq!(ranks(vec![5.0, 1.0, 5.0, 7.0, 5.0]), [3.0, 1.0, 3.0, 5.0, 3.0]);
        assert_eq!(rank_correlation(&pairs(&[(1.0, 2.0), (1.0, 3.0)])), None);
        // Ranks 1.5 1.5 3 and 1 2 3: 1.5 over the root of 1.5 x 2.
        let found = rank_correlation(&pairs(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0)]));
        assert!(close(found.expect("they differ"), 0.75f64.sqrt()), "{found:?}");
    }

    #[test]
    fn regret_is_of_the_plan_predicted_fastest() {
        // Of the first group the plan predicted fastest takes 12 where 10 would do, of the second the
        // fastest is chosen, the third has one plan only.
        let first = pairs(&[(5.0, 12.0), (6.0, 10.0), (7.0, 30.0)]);
        let second = pairs(&[(3.0, 2.0), (4.0, 3.0)]);
        let third = pairs(&[(3.0, 2.0)]);
        let all = [("a", first), ("b", second), ("c", third)];
        let flat =
            all.into_iter().flat_map(|(key, pairs)| pairs.into_iter().map(move |it| (key, it)));
        let found = Regret::of(flat).expect("there are groups");
        assert_eq!(found.groups, 2);
        assert!(close(found.mean, 0.1) && close(found.max, 0.2), "{found:?}");
        assert_eq!(Regret::of([("a", Pair { predicted: 1.0, measured: 1.0 })]), None);
    }

    #[test]
    fn of_plans_predicted_to_take_equally_long_the_first_is_chosen() {
        let regret = |numbers: &[(f64, f64)]| {
            let found = Regret::of(pairs(numbers).into_iter().map(|pair| ((), pair)));
            found.expect("a group").max
        };
        assert!(close(regret(&[(5.0, 12.0), (5.0, 10.0)]), 0.2));
        assert!(close(regret(&[(5.0, 10.0), (5.0, 12.0)]), 0.0));
    }
}
