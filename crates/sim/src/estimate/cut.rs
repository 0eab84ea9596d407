//! Where stages begin.

/// The first block of each of `stages` stages over `blocks` blocks, dealt as
/// [`Uniform`](shardloom_plan::Uniform) does: lengths differ by at most one, longer stages in the middle.
pub(super) fn even(blocks: usize, stages: usize, stage: usize) -> usize {
    let (least, longer) = (blocks / stages, blocks % stages);
    let first_longer = (stages - longer).div_ceil(2);
    stage * least + stage.saturating_sub(first_longer).min(longer)
}

/// Cuts blocks into `stages` runs such that the largest sum is the least possible; the first block of
/// each run, then the number of blocks. `before` has the sum of all blocks before each one, and of all;
/// there are at least as many blocks as stages, and at least one stage. An even cut is kept where none
/// is better.
///
/// ```
/// // Blocks of 1, 1, 1 and 3.
/// let before = [0.0, 1.0, 2.0, 3.0, 6.0];
/// assert_eq!(shardloom_sim::estimate::balanced_cut(&before, 2), [0, 3, 4]);
/// ```
///
/// From a bound that can be kept, the bound is lowered below the largest sum until no cut keeps it: a
/// greedy cut from the end keeps every bound that can be kept, so the last cut is the best.
pub fn balanced_cut(before: &[f64], stages: usize) -> Vec<usize> {
    let blocks = before.len() - 1;
    let sum = |first: usize, end: usize| before[end] - before[first];
    let mut best: Vec<usize> = (0..=stages).map(|stage| even(blocks, stages, stage)).collect();
    loop {
        let largest = best.windows(2).map(|run| sum(run[0], run[1])).fold(0.0, f64::max);
        match greedy(before, stages, largest) {
            Some(cut) => best = cut,
            None => return best,
        }
    }
}

/// Runs from the end, each as long as its sum stays below `bound` and every stage before keeps a block.
fn greedy(before: &[f64], stages: usize, bound: f64) -> Option<Vec<usize>> {
    let mut end = before.len() - 1;
    let mut cut = vec![0; stages + 1];
    cut[stages] = end;
    for stage in (0..stages).rev() {
        let fits = before[..end].partition_point(|&sum| before[end] - sum >= bound);
        let first = fits.max(stage);
        if first >= end {
            return None;
        }
        cut[stage] = first;
        end = first;
    }
    (end == 0).then_some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};

    /// The largest sum of the best cut, by trying all.
    fn exhaustive(weights: &[f64], stages: usize) -> f64 {
        if stages == 1 {
            return weights.iter().sum();
        }
        (1..=weights.len() + 1 - stages)
            .map(|first| {
                let head: f64 = weights[..first].iter().sum();
                head.max(exhaustive(&weights[first..], stages - 1))
            })
            .fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn a_balanced_cut_is_as_good_as_the_best_of_all(
            weights in prop::collection::vec(0u32..9, 1..10),
            stages in 1usize..6,
        ) {
            prop_assume!(stages <= weights.len());
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let mut before = vec![0.0];
            weights.iter().for_each(|weight| before.push(before[before.len() - 1] + weight));
            let cut = balanced_cut(&before, stages);
            prop_assert_eq!((cut[0], cut[stages]), (0, weights.len()));
            prop_assert!(cut.windows(2).all(|run| run[0] < run[1]));
            let largest = cut.windows(2).map(|run| before[run[1]] - before[run[0]]);
            prop_assert_eq!(largest.fold(0.0, f64::max), exhaustive(&weights, stages));
        }
    }

    #[test]
    fn an_even_cut_is_the_one_that_uniform_plans_have() {
        let spec =
            ModelSpec::parse("gpt:layers=9,hidden=8,heads=2,seq=4,vocab=8").expect("a model");
        let graph = spec.graph().expect("its graph");
        for pp in 1..=graph.blocks().len() {
            let plan = Uniform {
                pp,
                mesh: Mesh::SINGLE,
                sequence_parallel: false,
                global_batch: 1,
                microbatches: 1,
                schedule: ScheduleKind::Afab,
                recompute: Recompute::None,
                sync: Sync::default(),
                precision: Precision::FP32,
                optimizer: Optimizer::default(),
                clip_norm: None,
            };
            let plan = plan.plan(&graph, "m", "c");
            for ((_, stage), planned) in plan.stages() {
                let of = |stage| even(graph.blocks().len(), pp, stage);
                assert_eq!(planned.blocks, (of(stage), of(stage + 1)), "stage {stage} of {pp}");
            }
        }
    }
}
