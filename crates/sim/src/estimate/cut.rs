//! Where stages begin.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use shardloom_plan::even_cuts;

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
    let mut best = even_cuts(blocks, stages);
    loop {
        let largest = best.windows(2).map(|run| sum(run[0], run[1])).fold(0.0, f64::max);
        match greedy(before, stages, largest) {
            Some(cut) => best = cut,
            None => return best,
        }
    }
}

/// Cuts blocks for pipelines, which are cut alike and have a stage or more each, such that devices have
/// equal work: the first block of each stage, then the number of blocks. `before` is as for
/// [`balanced_cut`]; `places` says for each pipeline on which devices, by a number, each stage lives
/// ([`Uniform::places`](shardloom_plan::Uniform::places)).
///
/// With a stage for each device that is [`balanced_cut`]. Where devices hold several, one pipeline's or
/// several's, their sum is what they work on. The cut is then the better of two that no block taken from
/// one stage and given to another makes better: by the largest sum of a device, and if that stays by how
/// much sums of devices, and then of stages, differ.
pub fn balanced_stages(before: &[f64], places: &[Vec<usize>]) -> Vec<usize> {
    let stages = places[0].len();
    let mut held: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for pipeline in places {
        for (stage, &device) in pipeline.iter().enumerate() {
            held.entry(device).or_default().push(stage);
        }
    }
    let balanced = balanced_cut(before, stages);
    let devices: Vec<Vec<usize>> = held.into_values().collect();
    if devices.iter().all(|stages| stages.len() == 1) {
        return balanced;
    }
    let dealing = Dealing::new(before, devices);
    let even = even_cuts(before.len() - 1, stages);
    let [even, balanced] = [even, balanced].map(|cut| dealing.improved(cut));
    std::cmp::min_by_key(even, balanced, |cut| dealing.cost(cut))
}

/// Blocks to be dealt to devices.
struct Dealing {
    /// The sum of all blocks before each one, and of all, in parts of all: whole numbers, so that equal
    /// sums are equal.
    before: Vec<u64>,
    /// The stages of each device.
    devices: Vec<Vec<usize>>,
}

/// What a cut is judged by: the largest sum of a device, and the squares of the sums of devices and of
/// stages.
type Cost = (u64, u128, u128);

impl Dealing {
    fn new(before: &[f64], devices: Vec<Vec<usize>>) -> Dealing {
        const PARTS: f64 = (1u64 << 40) as f64;
        let all = before[before.len() - 1];
        let weights = before.windows(2).map(|it| ((it[1] - it[0]) / all * PARTS).round() as u64);
        let mut sums = vec![0];
        weights.for_each(|weight| sums.push(sums[sums.len() - 1] + weight));
        Dealing { before: sums, devices }
    }

    fn stage(&self, cut: &[usize], stage: usize) -> u64 {
        self.before[cut[stage + 1]] - self.before[cut[stage]]
    }

    fn device(&self, cut: &[usize], stages: &[usize]) -> u64 {
        stages.iter().map(|&stage| self.stage(cut, stage)).sum()
    }

    fn cost(&self, cut: &[usize]) -> Cost {
        let square = |sum: u64| u128::from(sum) * u128::from(sum);
        let sums = self.devices.iter().map(|stages| self.device(cut, stages));
        let stages = (0..cut.len() - 1).map(|stage| self.stage(cut, stage));
        let largest = sums.clone().max().unwrap_or(0);
        (largest, sums.map(square).sum(), stages.map(square).sum())
    }

    /// Moves blocks from stage to stage as long as that makes the cut better.
    fn improved(&self, mut cut: Vec<usize>) -> Vec<usize> {
        while let Some(better) = self.better(&cut) {
            cut = better;
        }
        cut
    }

    /// The best cut with one block of the fullest device moved that has one whose move is for the better.
    fn better(&self, cut: &[usize]) -> Option<Vec<usize>> {
        let cost = self.cost(cut);
        let mut giving: Vec<&Vec<usize>> = self.devices.iter().collect();
        giving.sort_by_key(|stages| Reverse(self.device(cut, stages)));
        giving.into_iter().find_map(|stages| {
            let moves = stages
                .iter()
                .flat_map(|&from| (0..cut.len() - 1).filter_map(move |to| moved(cut, from, to)));
            let better = moves.map(|cut| (self.cost(&cut), cut)).filter(|(new, _)| *new < cost);
            better.min_by_key(|(new, _)| *new).map(|(_, cut)| cut)
        })
    }
}

/// `cut` with one block fewer in stage `from` and one more in `to`; the stages between move along. None if
/// `from` has no block to give.
fn moved(cut: &[usize], from: usize, to: usize) -> Option<Vec<usize>> {
    if from == to || cut[from + 1] - cut[from] < 2 {
        return None;
    }
    let mut moved = cut.to_vec();
    match from < to {
        true => moved[from + 1..=to].iter_mut().for_each(|first| *first -= 1),
        false => moved[to + 1..=from].iter_mut().for_each(|first| *first += 1),
    }
    Some(moved)
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
    use shardloom_plan::ScheduleKind;

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
            let before = sums(&weights);
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let cut = balanced_cut(&before, stages);
            prop_assert_eq!((cut[0], cut[stages]), (0, weights.len()));
            prop_assert!(cut.windows(2).all(|run| run[0] < run[1]));
            let largest = cut.windows(2).map(|run| before[run[1]] - before[run[0]]);
            prop_assert_eq!(largest.fold(0.0, f64::max), exhaustive(&weights, stages));
        }
    }

    fn sums(weights: &[u32]) -> Vec<f64> {
        let mut before = vec![0.0];
        weights.iter().for_each(|&it| before.push(before[before.len() - 1] + f64::from(it)));
        before
    }

    fn places(schedule: ScheduleKind, devices: usize, chunks: usize) -> Vec<Vec<usize>> {
        let arrangement = schedule.arrangement().expect("a schedule with an arrangement");
        arrangement.places(devices, chunks).expect("it exists")
    }

    /// The sums of devices.
    fn of_devices(before: &[f64], places: &[Vec<usize>], cut: &[usize]) -> Vec<f64> {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for (&device, run) in places.iter().flat_map(|it| it.iter().zip(cut.windows(2))) {
            *sums.entry(device).or_default() += before[run[1]] - before[run[0]];
        }
        sums.into_values().collect()
    }

    /// Blocks alike, a light embedding and a heavy head. The largest stage cannot be less than four, with
    /// which a cut from the end leaves the first devices next to nothing.
    #[test]
    fn devices_with_several_stages_get_equal_work() {
        let mut weights = vec![100; 50];
        (weights[0], weights[49]) = (1, 260);
        let before = sums(&weights);
        let average = before[50] / 8.0;
        for (schedule, chunks, pipelines_alike) in [
            (ScheduleKind::Interleaved, 2, 1.0),
            (ScheduleKind::Interleaved, 3, 1.0),
            (ScheduleKind::ZeroBubbleV, 2, 1.0),
            (ScheduleKind::Hanayo, 4, 1.0),
            (ScheduleKind::Chimera, 2, 2.0),
        ] {
            let places = places(schedule, 8, chunks);
            let cut = balanced_stages(&before, &places);
            let sums = of_devices(&before, &places, &cut);
            let largest = sums.iter().copied().fold(0.0, f64::max) / pipelines_alike;
            // Less than a block above the average.
            assert!(largest < average + 100.0, "{schedule:?} {chunks}: {cut:?} gives {sums:?}");
        }
    }

    proptest! {
        #[test]
        fn stages_in_balance_are_no_worse_than_an_even_cut_or_one_with_the_least_largest_stage(
            weights in prop::collection::vec(1u32..9, 16..64),
            chunks in 1usize..4,
        ) {
            let before = sums(&weights);
            let places = places(ScheduleKind::Interleaved, 4, chunks);
            let stages = 4 * chunks;
            let cut = balanced_stages(&before, &places);
            prop_assert_eq!((cut.len(), cut[0], cut[stages]), (stages + 1, 0, weights.len()));
            prop_assert!(cut.windows(2).all(|run| run[0] < run[1]));
            let largest = |cut: &[usize]| {
                of_devices(&before, &places, cut).into_iter().fold(0.0, f64::max)
            };
            prop_assert!(largest(&cut) <= largest(&even_cuts(weights.len(), stages)));
            prop_assert!(largest(&cut) <= largest(&balanced_cut(&before, stages)));
        }
    }
}
