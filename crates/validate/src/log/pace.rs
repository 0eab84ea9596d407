//! How long the steps of a log take once they are steady.

use crate::statistics::quantile;

/// How much slower than later steps the first ones are to be warm-up.
const WARM_UP: f64 = 1.1;
/// By how much of the median a step is slower, at least, to be an outlier.
const LEAST_SLOWER: f64 = 0.1;
/// By how many median deviations from the median it is, too.
const DEVIATIONS: f64 = 6.0;

/// Steady steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// How many steps, or runs of steps, there are.
    pub read: usize,
    /// How many of the first are left out.
    pub warm_up: usize,
    /// The median of the others, in seconds.
    pub median: f64,
    /// Their 10th percentile.
    pub low: f64,
    /// Their 90th percentile.
    pub high: f64,
    /// Those that are far slower than the median: their numbers and seconds, the slowest first.
    pub slow: Vec<(u64, f64)>,
}

impl Pace {
    /// Of steps by number and seconds, in order. The first are left out as long as they take over
    /// a tenth longer than the median of the last half, or as many as `warm_up` says; none if nothing is left.
    pub fn of(steps: &[(u64, f64)], warm_up: Option<usize>) -> Option<Pace> {
        let middle = |steps: &[(u64, f64)]| quantile(&sorted(steps.iter().map(|it| it.1)), 0.5);
        let half = steps.len() / 2;
        let later = middle(&steps[half..])?;
        let slow = steps[..half].iter().take_while(|(_, seconds)| *seconds > WARM_UP * later);
        let warm_up = warm_up.unwrap_or_else(|| slow.count());
        let steady = steps.get(warm_up..)?;
        let median = middle(steady)?;
        let seconds = sorted(steady.iter().map(|it| it.1));
        let [low, high] = [quantile(&seconds, 0.1)?, quantile(&seconds, 0.9)?];
        let deviations = sorted(seconds.iter().map(|it| (it - median).abs()));
        let usual = (LEAST_SLOWER * median).max(DEVIATIONS * quantile(&deviations, 0.5)?);
        let mut slow: Vec<(u64, f64)> =
            steady.iter().copied().filter(|(_, seconds)| *seconds > median + usual).collect();
        slow.sort_by(|one, other| other.1.total_cmp(&one.1));
        Some(Pace { read: steps.len(), warm_up, median, low, high, slow })
    }
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seconds: &[f64]) -> Vec<(u64, f64)> {
        (1..).zip(seconds.iter().copied()).collect()
    }

    #[test]
    fn slow_first_steps_are_left_out_and_slow_later_ones_named() {
        let mut seconds = vec![30.0, 2.5, 1.0];
        seconds.extend([0.99, 1.0, 1.01, 1.0, 1.0, 5.0, 1.0, 1.02, 3.0]);
        let found = Pace::of(&steps(&seconds), None).expect("there are steps");
        assert_eq!((found.read, found.warm_up, found.median), (12, 2, 1.0));
        assert_eq!(found.slow, [(9, 5.0), (12, 3.0)]);
    }

    /// The fourth step is 1.2 times as long as those of the last half, and not even 1.1 times as the middle of all.
    #[test]
    fn first_steps_are_slow_beside_the_last_half_and_not_beside_all() {
        let seconds = [5.0, 4.0, 3.0, 1.2, 1.0, 1.0, 1.0, 1.0];
        let found = Pace::of(&steps(&seconds), None).expect("there are steps");
        assert_eq!((found.warm_up, found.median), (4, 1.0));
    }

    #[test]
    fn one_slow_step_among_steady_ones_is_no_warm_up_wherever_it_is() {
        let mut seconds = vec![1.0; 12];
        (seconds[0], seconds[3]) = (2.0, 4.0);
        let found = Pace::of(&steps(&seconds), None).expect("there are steps");
        assert_eq!((found.warm_up, found.slow), (1, vec![(4, 4.0)]));
    }

    #[test]
    fn percentiles_are_those_computed_by_hand() {
        let seconds: Vec<f64> = (0..=10).map(|it| 1.0 + f64::from(it) / 100.0).collect();
        let found = Pace::of(&steps(&seconds), None).expect("there are steps");
        assert_eq!(found.warm_up, 0);
        for (found, right) in [(found.low, 1.01), (found.median, 1.05), (found.high, 1.09)] {
            assert!((found - right).abs() < 1e-12, "{found} and {right}");
        }
        assert_eq!(found.slow, []);
    }

    /// Half of the steps are at least 0.05 from the median, so those over 0.3 above it are outliers.
    #[test]
    fn where_steps_differ_anyway_a_slow_one_has_to_be_far_slower() {
        let mut seconds = vec![0.95, 1.05, 1.0, 0.95, 1.05, 1.0, 0.95, 1.05];
        let slow = |seconds: &[f64]| Pace::of(&steps(seconds), Some(0)).expect("steps").slow;
        seconds.push(1.25);
        assert_eq!(slow(&seconds), []);
        seconds.push(1.5);
        assert_eq!(slow(&seconds), [(10, 1.5)]);
        // A tenth is the least, however alike they are.
        let alike = [1.0, 1.0, 1.0, 1.0, 1.09, 1.11];
        assert_eq!(slow(&alike), [(6, 1.11)]);
    }

    #[test]
    fn warm_up_can_be_given_and_leaves_something() {
        let four = steps(&[1.0, 1.0, 1.0, 4.0]);
        assert_eq!(Pace::of(&four, Some(3)).expect("one is left").median, 4.0);
        assert_eq!(Pace::of(&four, Some(4)), None);
        assert_eq!(Pace::of(&[], None), None);
        assert_eq!(Pace::of(&steps(&[7.0]), None).expect("a step").median, 7.0);
    }

    /// However many steps follow, and only those before the last half.
    #[test]
    fn first_steps_are_warm_up_where_they_take_over_a_tenth_longer() {
        for count in 4..12 {
            let half = count / 2;
            for slow in 1..=half {
                for (seconds, is_warm_up) in
                    [(0.5, false), (1.01, false), (1.09, false), (1.11, true), (40.0, true)]
                {
                    let mut all = vec![1.0; count];
                    all[..slow].fill(seconds);
                    let found = Pace::of(&steps(&all), None).expect("there are steps");
                    let expected = if is_warm_up { slow } else { 0 };
                    assert_eq!(found.warm_up, expected, "{slow} of {count} took {seconds}");
                }
            }
        }
    }
}
