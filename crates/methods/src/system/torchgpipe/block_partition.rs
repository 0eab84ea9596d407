//! torchgpipe's balancer: block partition by shifting single layers (Kim et al. 2020, arXiv 2004.09910,
//! section 3.2.1; the algorithm is that of Bárány & Grinberg, "Block partitions of sequences", Israel
//! Journal of Mathematics 206, 2015, arXiv 1308.2452).

use shardloom_plan::even_cuts;

use crate::MethodError;
use crate::partition::check_layers;

/// How costs become numbers from 0 to 1, of which stages may differ by 1 in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Divided by the largest. The theorem then reads: stages differ by no more than one layer, the
    /// dearest, costs.
    Largest,
    /// Less the smallest, divided by the difference of the largest and the smallest, as torchgpipe does.
    /// What is balanced is then the cost beyond that of as many of the cheapest layers.
    Spread,
}

/// One in the fixed-point numbers that costs are turned into: sums of them are exact, and a sequence of
/// exact comparisons is what the algorithm's termination rests on.
const ONE: u64 = 1 << 40;

/// Cuts layers that cost `costs` into `stages` stages of which none is more than one `unit` dearer than
/// another, in O(stages x layers³).
///
/// Starting from equal numbers of layers, the cheapest stage nearest to a dearest one takes a layer from
/// its neighbour on that side, until the dearest stage itself has lost a layer; then again from another
/// dearest one. Of several cheapest stages torchgpipe serves the first, which can leave a stage empty; the
/// paper serves the nearest, and so does this: every stage keeps a layer.
///
/// # Errors
/// If a cost is negative or not finite, or there are fewer layers than stages.
///
/// ```
/// # use shardloom_methods::partition::{Unit, block_partition};
/// // The example of torchgpipe's own tests.
/// let cuts = block_partition(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, Unit::Spread)?;
/// assert_eq!(cuts, [0, 4, 6]);
/// # Ok::<(), shardloom_methods::MethodError>(())
/// ```
pub fn block_partition(
    costs: &[f64],
    stages: usize,
    unit: Unit,
) -> Result<Vec<usize>, MethodError> {
    check_layers(costs, stages)?;
    let before = running_units(costs, unit);
    let mut cuts = even_cuts(costs.len(), stages);
    let sum = |cuts: &[usize], stage: usize| before[cuts[stage + 1]] - before[cuts[stage]];
    loop {
        let mut dearest = 0;
        for stage in 1..stages {
            if sum(&cuts, stage) >= sum(&cuts, dearest) {
                dearest = stage;
            }
        }
        loop {
            let rank = |stage: &usize| (sum(&cuts, *stage), stage.abs_diff(dearest));
            let cheapest = (0..stages).min_by_key(rank).unwrap_or(dearest);
            if sum(&cuts, dearest) <= sum(&cuts, cheapest) + ONE {
                return Ok(cuts);
            }
            let robbed = if dearest < cheapest {
                cuts[cheapest] -= 1;
                cheapest - 1
            } else {
                cuts[cheapest + 1] += 1;
                cheapest + 1
            };
            if robbed == dearest {
                break;
            }
        }
    }
}

/// The costs of the first none, one, two and so on layers in fixed-point units.
fn running_units(costs: &[f64], unit: Unit) -> Vec<u64> {
    let largest = costs.iter().copied().fold(0.0, f64::max);
    let smallest = match unit {
        Unit::Largest => 0.0,
        Unit::Spread => costs.iter().copied().fold(f64::INFINITY, f64::min),
    };
    let range = largest - smallest;
    let mut before = vec![0];
    for cost in costs {
        let share = if range > 0.0 { (cost - smallest) / range } else { 0.0 };
        before.push(before[before.len() - 1] + (share * ONE as f64).round() as u64);
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the dearest stage costs beyond the cheapest, each layer costing `cost` of its own.
    fn range(costs: &[f64], cuts: &[usize]) -> f64 {
        let stages = cuts.windows(2).map(|run| costs[run[0]..run[1]].iter().sum::<f64>());
        let (least, most) =
            stages.fold((f64::INFINITY, 0.0), |(low, high), it| (it.min(low), it.max(high)));
        most - least
    }

    #[test]
    fn layers_that_nothing_tells_apart_are_dealt_evenly() {
        for (layers, stages) in [(13, 7), (12, 5), (7, 7), (9, 2)] {
            let cuts = block_partition(&vec![3.0; layers], stages, Unit::Spread).expect("enough");
            let lens: Vec<usize> = cuts.windows(2).map(|run| run[1] - run[0]).collect();
            let even = [layers / stages, layers.div_ceil(stages)];
            assert!(lens.iter().all(|len| even.contains(len)), "{lens:?}");
        }
    }

    /// All costs of up to six layers from a few: equally cheap stages are common.
    #[test]
    fn every_stage_keeps_a_layer() {
        for layers in 1..=6u32 {
            for number in 0..3usize.pow(layers) {
                let cost = |layer: u32| [0.0, 1.0, 5.0][number / 3usize.pow(layer) % 3];
                let costs: Vec<f64> = (0..layers).map(cost).collect();
                for (stages, unit) in (1..=costs.len())
                    .flat_map(|stages| [(stages, Unit::Spread), (stages, Unit::Largest)])
                {
                    let cuts = block_partition(&costs, stages, unit).expect("enough layers");
                    assert_eq!((cuts.len(), cuts[0], cuts[stages]), (stages + 1, 0, costs.len()));
                    assert!(cuts.is_sorted_by(|a, b| a < b), "{costs:?} in {stages}: {cuts:?}");
                }
            }
        }
    }

    /// As torchgpipe's `blockpartition.solve`, which looks for the last of equally dear stages.
    #[test]
    fn of_equally_dear_stages_the_last_gives_a_layer_away_first() {
        let cuts = block_partition(&[4.0, 4.0, 2.0, 1.0, 3.0, 5.0], 3, Unit::Largest);
        assert_eq!(cuts.expect("enough layers"), [0, 2, 5, 6]);
    }

    proptest! {
        #[test]
        fn stages_differ_by_at_most_the_dearest_layer(
            costs in prop::collection::vec(0.0f64..1.0, 1..40),
            stages in 1usize..12,
        ) {
            prop_assume!(stages <= costs.len());
            let cuts = block_partition(&costs, stages, Unit::Largest).expect("enough layers");
            prop_assert_eq!((cuts[0], cuts[stages]), (0, costs.len()));
            prop_assert!(cuts.windows(2).all(|run| run[0] < run[1]), "{:?}", cuts);
            let dearest = costs.iter().copied().fold(0.0, f64::max);
            prop_assert!(range(&costs, &cuts) <= dearest * (1.0 + 1e-9));
        }

        #[test]
        fn stages_differ_by_at_most_torchgpipes_unit(
            costs in prop::collection::vec(0u32..8, 1..16),
            stages in 1usize..6,
        ) {
            prop_assume!(stages <= costs.len());
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let cuts = block_partition(&costs, stages, Unit::Spread).expect("enough layers");
            prop_assert!(cuts.windows(2).all(|run| run[0] < run[1]), "{:?}", cuts);
            let low = costs.iter().copied().fold(f64::INFINITY, f64::min);
            let high = costs.iter().copied().fold(0.0, f64::max);
            let beyond: Vec<f64> = costs.iter().map(|cost| cost - low).collect();
            prop_assert!(range(&beyond, &cuts) <= (high - low) * (1.0 + 1e-9));
        }
    }

    #[test]
    fn no_stage_is_empty_where_torchgpipe_leaves_one_so() {
        // torchgpipe cuts these at 1, 5, 5: of the cheapest stages it serves the first.
        let costs = [4.0, 0.0, 0.0, 0.0, 7.0, 0.0, 3.0];
        let cuts = block_partition(&costs, 4, Unit::Spread).expect("enough layers");
        assert!(cuts.windows(2).all(|run| run[0] < run[1]), "{cuts:?}");
    }

    #[test]
    fn torchgpipes_own_examples_come_out_the_same() {
        let cuts = |costs: &[f64], stages| {
            block_partition(costs, stages, Unit::Spread).expect("enough layers")
        };
        assert_eq!(cuts(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [0, 4, 6]);
        assert_eq!(cuts(&[0.0, 0.0], 2), [0, 1, 2]);
        assert!(block_partition(&[42.0], 0, Unit::Spread).is_err());
        assert!(block_partition(&[42.0], 2, Unit::Spread).is_err());
    }
}
