//! GPipe's partition: the least variance of what stages cost (Huang et al. 2019, arXiv 1811.06965,
//! section 2.2).

use crate::MethodError;
use crate::partition::{check_layers, running_sums};

/// Cuts layers that cost `costs`, in any one unit, into `stages` stages such that the variance of the
/// stages' costs is the least there is.
///
/// The paper names the aim and no algorithm. The mean of the stages is fixed, so the least variance is the
/// least sum of squares, which a dynamic program over (stages, layers) finds exactly, in
/// O(stages x layers²). Of several best cuts the one with the earliest last cut is given.
///
/// # Errors
/// If a cost is negative or not finite, or there are fewer layers than stages.
///
/// ```
/// # use shardloom_methods::partition::least_variance;
/// assert_eq!(least_variance(&[1.0, 1.0, 1.0, 3.0], 2)?, [0, 3, 4]);
/// # Ok::<(), shardloom_methods::MethodError>(())
/// ```
pub fn least_variance(costs: &[f64], stages: usize) -> Result<Vec<usize>, MethodError> {
    check_layers(costs, stages)?;
    let layers = costs.len();
    let before = running_sums(costs.iter().copied());
    let square = |first: usize, end: usize| (before[end] - before[first]).powi(2);
    // For each number of stages: the least sum of squares up to each layer, and where the last begins.
    let mut least: Vec<f64> = (0..=layers).map(|end| square(0, end)).collect();
    let mut begins = vec![vec![0; layers + 1]];
    for stage in 1..stages {
        let mut longer = vec![f64::INFINITY; layers + 1];
        let mut begin = vec![0; layers + 1];
        for end in stage + 1..=layers {
            let cut = |first: usize| (least[first] + square(first, end), first);
            // Of equal sums the first.
            let best = (stage..end).map(cut).min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((sum, first)) = best {
                (longer[end], begin[end]) = (sum, first);
            }
        }
        least = longer;
        begins.push(begin);
    }
    let mut cuts = vec![layers];
    let mut end = layers;
    for begin in begins.iter().rev() {
        end = begin[end];
        cuts.push(end);
    }
    cuts.reverse();
    Ok(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The variance times the number of stages, around the mean as the definition has it.
    fn spread(costs: &[f64], cuts: &[usize]) -> f64 {
        let mean = costs.iter().sum::<f64>() / (cuts.len() - 1) as f64;
        let stage = |run: &[usize]| costs[run[0]..run[1]].iter().sum::<f64>();
        cuts.windows(2).map(|run| (stage(run) - mean).powi(2)).sum()
    }

    /// All cuts of `layers` layers into `stages` stages.
    fn all_cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
        if stages == 1 {
            return vec![vec![0, layers]];
        }
        let last = (stages - 1..layers).flat_map(|first| {
            all_cuts(first, stages - 1).into_iter().map(move |cuts| [cuts, vec![layers]].concat())
        });
        last.collect()
    }

    proptest! {
        #[test]
        fn no_cut_has_less_variance(
            costs in prop::collection::vec(0u32..30, 1..9),
            stages in 1usize..6,
        ) {
            prop_assume!(stages <= costs.len());
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let cuts = least_variance(&costs, stages).expect("enough layers");
            prop_assert_eq!((cuts[0], cuts[stages]), (0, costs.len()));
            prop_assert!(cuts.windows(2).all(|run| run[0] < run[1]));
            let all = all_cuts(costs.len(), stages);
            prop_assert!(all.contains(&cuts));
            let least = all.iter().map(|cuts| spread(&costs, cuts)).fold(f64::INFINITY, f64::min);
            prop_assert!(spread(&costs, &cuts) <= least + 1e-9);
        }
    }

    #[test]
    fn equal_layers_are_cut_evenly() {
        assert_eq!(least_variance(&[2.0; 12], 4).expect("a cut"), [0, 3, 6, 9, 12]);
    }

    #[test]
    fn more_stages_than_layers_are_refused_by_name() {
        let refused = least_variance(&[1.0, 1.0], 3).expect_err("three stages of two layers");
        assert_eq!(refused.to_string(), "stages = 3: 1 to 2: each of the stages needs a layer");
        assert!(least_variance(&[1.0], 0).is_err());
        assert!(least_variance(&[f64::NAN], 1).is_err());
    }

    /// Costs are whole numbers, whose squares are exact.
    #[test]
    fn of_equally_good_cuts_the_one_with_the_earliest_last_cut_is_given() {
        let mut ties = 0;
        for number in 0..3_u32.pow(6) {
            let costs: Vec<f64> =
                (0..6).map(|layer| f64::from(number / 3_u32.pow(layer) % 3)).collect();
            for stages in 2..=5 {
                let squares = |cuts: &[usize]| -> f64 {
                    cuts.windows(2)
                        .map(|run| costs[run[0]..run[1]].iter().sum::<f64>().powi(2))
                        .sum()
                };
                let all = all_cuts(costs.len(), stages);
                let least = all.iter().map(|it| squares(it)).fold(f64::INFINITY, f64::min);
                let best = all.iter().filter(|it| squares(it) == least);
                let earliest = best.clone().map(|it| it[stages - 1]).min().expect("a cut");
                ties += usize::from(best.clone().any(|it| it[stages - 1] != earliest));
                let found = least_variance(&costs, stages).expect("enough layers");
                assert_eq!((squares(&found), found[stages - 1]), (least, earliest), "{costs:?}");
            }
        }
        assert!(ties > 100, "{ties}");
    }
}
