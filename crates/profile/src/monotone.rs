//! Curves out of noisy measurements.

/// The times nearest to `points` (by squared relative error of equal weights, in order of size) that
/// do not fall with size: larger tensors do not take less time, measurements of them may. Pools
/// adjacent violators (Barlow, Bartholomew, Bremner and Brunk 1972, "Statistical Inference under
/// Order Restrictions", section 1.2), in logarithms.
pub(crate) fn rising(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    // Blocks of adjacent points: the mean logarithm of their times, and how many they are.
    let mut blocks: Vec<(f64, usize)> = vec![];
    for &(_, seconds) in points {
        let mut block = (seconds.ln(), 1);
        while let Some(&(before, count)) = blocks.last()
            && before > block.0
        {
            blocks.pop();
            let together = count + block.1;
            block.0 = (before * count as f64 + block.0 * block.1 as f64) / together as f64;
            block.1 = together;
        }
        blocks.push(block);
    }
    let times = blocks.into_iter().flat_map(|(log, count)| std::iter::repeat_n(log.exp(), count));
    points.iter().zip(times).map(|(&(size, _), seconds)| (size, seconds)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dip_is_pooled_with_what_it_dips_below() {
        let smooth = rising(&[(1.0, 1.0), (2.0, 8.0), (3.0, 2.0), (4.0, 16.0)]);
        let expected = [1.0, 4.0, 4.0, 16.0];
        for ((_, seconds), expected) in smooth.into_iter().zip(expected) {
            assert!((seconds - expected).abs() < 1e-12, "{seconds} is not {expected}");
        }
    }

    #[test]
    fn all_points_of_a_block_weigh_alike() {
        // The geometric mean of three, of which two were pooled before.
        let smooth = rising(&[(1.0, 16.0), (2.0, 4.0), (3.0, 1.0), (4.0, 32.0)]);
        let expected = [4.0, 4.0, 4.0, 32.0];
        for ((_, seconds), expected) in smooth.into_iter().zip(expected) {
            assert!((seconds - expected).abs() < 1e-12, "{seconds} is not {expected}");
        }
    }

    proptest! {
        #[test]
        fn times_never_fall_and_rising_ones_stay(times in proptest::collection::vec(1e-9..1.0, 1..20)) {
            let points: Vec<_> = (1..).map(f64::from).zip(times.clone()).collect();
            let smooth = rising(&points);
            prop_assert_eq!(smooth.len(), points.len());
            prop_assert!(smooth.windows(2).all(|pair| pair[0].1 <= pair[1].1));
            let mut sorted = times;
            sorted.sort_by(f64::total_cmp);
            let points: Vec<_> = (1..).map(f64::from).zip(sorted).collect();
            for ((_, before), (_, after)) in points.iter().zip(rising(&points)) {
                prop_assert!((before - after).abs() <= 1e-12 * before);
            }
        }
    }
}
