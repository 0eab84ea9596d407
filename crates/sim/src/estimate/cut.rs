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
/// much sums of devices, and then of stages, differ. Of thousands of stages it is the best of those that the most
/// moves that are judged come to.
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

/// How many moves of a block are judged for a cut: all there are of some hundreds of stages, and some thousandths of a second's
/// work.
const MOST_MOVES: usize = 1 << 19;

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
        let sums = self.devices.iter().map(|stages| self.device(cut, stages));
        let stages = (0..cut.len() - 1).map(|stage| self.stage(cut, stage));
        let largest = sums.clone().max().unwrap_or(0);
        (largest, sums.map(square).sum(), stages.map(square).sum())
    }

    /// Moves blocks from stage to stage as long as that makes the cut better, and no more than [`MOST_MOVES`] are judged.
    fn improved(&self, mut cut: Vec<usize>) -> Vec<usize> {
        let (holder, mut moves_left) = (self.holder(), MOST_MOVES);
        while let Some((from, to)) = self.better(&cut, &holder, &mut moves_left) {
            move_block(&mut cut, from, to);
        }
        cut
    }

    /// Which device holds each stage. Where several do, all hold the same stages, in pipelines that run the other way.
    fn holder(&self) -> Vec<Vec<usize>> {
        let mut holder: Vec<Vec<usize>> = vec![];
        for (device, stages) in self.devices.iter().enumerate() {
            for &stage in stages {
                if holder.len() <= stage {
                    holder.resize(stage + 1, vec![]);
                }
                holder[stage].push(device);
            }
        }
        holder
    }

    /// The best move of one block, by where it comes from and goes to, of the fullest device that has one for the
    /// better. None of one for whose moves `moves_left` is too little.
    fn better(
        &self,
        cut: &[usize],
        holder: &[Vec<usize>],
        moves_left: &mut usize,
    ) -> Option<(usize, usize)> {
        let moves = Moves::of(self, cut, holder);
        let mut giving: Vec<&Vec<usize>> = self.devices.iter().collect();
        giving.sort_by_key(|stages| Reverse(self.device(cut, stages)));
        giving.into_iter().find_map(|stages| {
            *moves_left = moves_left.checked_sub(stages.len() * (cut.len() - 1))?;
            let best = stages.iter().enumerate().filter_map(|(order, &from)| {
                let (cost, to) = moves.best_from(from)?;
                Some((cost, order, from, to))
            });
            best.min().map(|(.., from, to)| (from, to))
        })
    }
}

/// What cuts cost in which one block has moved from one stage to another. From one such cut to the next, whose block
/// goes a stage further, only two stages change, so that each is judged without going through all stages.
struct Moves<'a> {
    dealing: &'a Dealing,
    cut: &'a [usize],
    holder: &'a [Vec<usize>],
    cost: Cost,
    sums: Vec<u64>,
    stages: Vec<u64>,
}

impl<'a> Moves<'a> {
    fn of(dealing: &'a Dealing, cut: &'a [usize], holder: &'a [Vec<usize>]) -> Moves<'a> {
        let sums = dealing.devices.iter().map(|stages| dealing.device(cut, stages)).collect();
        let stages = (0..cut.len() - 1).map(|stage| dealing.stage(cut, stage)).collect();
        Moves { dealing, cut, holder, cost: dealing.cost(cut), sums, stages }
    }

    /// The best of all moves out of `from` that are for the better, and where its block goes: to the first of several
    /// as good.
    fn best_from(&self, from: usize) -> Option<(Cost, usize)> {
        if self.cut[from + 1] - self.cut[from] < 2 {
            return None;
        }
        let last = self.cut.len() - 2;
        let up = self.best_of(from, (from + 1..=last).map(|to| (to - 1, to, self.cut[to] - 1)));
        let down = self.best_of(from, (0..from).rev().map(|to| (to + 1, to, self.cut[to + 1])));
        up.into_iter().chain(down).min()
    }

    /// The best of moves of which each goes a stage further than the one before: from which stage a block goes last, to
    /// which, and the block.
    fn best_of(
        &self,
        from: usize,
        steps: impl Iterator<Item = (usize, usize, usize)>,
    ) -> Option<(Cost, usize)> {
        let (limit, squares, squares_of_stages) = self.cost;
        let mut state = State {
            sums: self.sums.clone(),
            at_limit: self.sums.iter().filter(|&&sum| sum == limit).count(),
            over_limit: 0,
            limit,
            squares,
            squares_of_stages,
        };
        let mut giver_has = self.stages[from];
        let mut best: Option<(Cost, usize)> = None;
        for (giver, taker, block) in steps {
            let weight = self.dealing.before[block + 1] - self.dealing.before[block];
            // What the giver has by now: what it had, and the block that came with the step before.
            let (gives, takes) = (giver_has, self.stages[taker]);
            state.change_stage(gives, gives - weight);
            state.change_stage(takes, takes + weight);
            for &device in &self.holder[giver] {
                let sum = state.sums[device];
                state.change_device(device, sum - weight);
            }
            for &device in &self.holder[taker] {
                let sum = state.sums[device];
                state.change_device(device, sum + weight);
            }
            giver_has = takes + weight;
            let Some(cost) = state.cost_within_limit().filter(|cost| *cost < self.cost) else {
                continue;
            };
            if best.is_none_or(|known| (cost, taker) < known) {
                best = Some((cost, taker));
            }
        }
        best
    }
}

/// Sums of devices and what a cut with them costs.
struct State {
    sums: Vec<u64>,
    /// How many devices have just the sum `limit`, and more.
    at_limit: usize,
    over_limit: usize,
    limit: u64,
    squares: u128,
    squares_of_stages: u128,
}

impl State {
    fn change_device(&mut self, device: usize, sum: u64) {
        let before = std::mem::replace(&mut self.sums[device], sum);
        self.at_limit += usize::from(sum == self.limit);
        self.at_limit -= usize::from(before == self.limit);
        self.over_limit += usize::from(sum > self.limit);
        self.over_limit -= usize::from(before > self.limit);
        self.squares += square(sum);
        self.squares -= square(before);
    }

    fn change_stage(&mut self, before: u64, sum: u64) {
        self.squares_of_stages += square(sum);
        self.squares_of_stages -= square(before);
    }

    /// What it costs, if no device has more than `limit`.
    fn cost_within_limit(&self) -> Option<Cost> {
        let largest = match (self.over_limit, self.at_limit) {
            (0, 0) => self.sums.iter().copied().max().unwrap_or(0),
            (0, _) => self.limit,
            _ => return None,
        };
        Some((largest, self.squares, self.squares_of_stages))
    }
}

fn square(sum: u64) -> u128 {
    u128::from(sum) * u128::from(sum)
}

/// Takes a block out of stage `from` and gives stage `to` one; the stages between move along.
fn move_block(cut: &mut [usize], from: usize, to: usize) {
    match from < to {
        true => cut[from + 1..=to].iter_mut().for_each(|first| *first -= 1),
        false => cut[to + 1..=from].iter_mut().for_each(|first| *first += 1),
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
            let schedule = match chunks {
                1 => ScheduleKind::OneForwardOneBackward,
                _ => ScheduleKind::Interleaved,
            };
            let places = places(schedule, 4, chunks);
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
    /// The best move by what every cut with a block moved costs, of the fullest device that has one for the better.
    fn better_by_trying_all(dealing: &Dealing, cut: &[usize]) -> Option<(usize, usize)> {
        let stages = cut.len() - 1;
        let mut giving: Vec<&Vec<usize>> = dealing.devices.iter().collect();
        giving.sort_by_key(|stages| Reverse(dealing.device(cut, stages)));
        giving.into_iter().find_map(|from| {
            let moves = from.iter().flat_map(|&from| (0..stages).map(move |to| (from, to)));
            let moves = moves.filter(|&(from, to)| from != to && cut[from + 1] - cut[from] > 1);
            let costs = moves.map(|(from, to)| {
                let mut moved = cut.to_vec();
                move_block(&mut moved, from, to);
                (dealing.cost(&moved), (from, to))
            });
            let better = costs.filter(|(cost, _)| *cost < dealing.cost(cut));
            better.min_by_key(|(cost, _)| *cost).map(|(_, way)| way)
        })
    }

    proptest! {
        #[test]
        fn a_move_is_the_best_of_all(
            weights in prop::collection::vec(1u32..4, 24..48),
            kind in 0usize..4,
            ends in prop::collection::btree_set(1usize..24, 7),
        ) {
            let places = match kind {
                0 => places(ScheduleKind::Interleaved, 4, 2),
                1 => places(ScheduleKind::ZeroBubbleV, 4, 2),
                2 => places(ScheduleKind::Chimera, 8, 2),
                // Two pipelines that share devices in turn.
                _ => vec![vec![0, 2, 3, 4, 4, 5, 6, 7], vec![1, 2, 3, 4, 4, 5, 6, 7]],
            };
            let mut held: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (stage, &device) in places.iter().flat_map(|it| it.iter().enumerate()) {
                held.entry(device).or_default().push(stage);
            }
            let before = sums(&weights);
            let dealing = Dealing::new(&before, held.into_values().collect());
            let mut cut: Vec<usize> = [0].into_iter().chain(ends).chain([weights.len()]).collect();
            let holder = dealing.holder();
            loop {
                let better = dealing.better(&cut, &holder, &mut usize::MAX.clone());
                prop_assert_eq!(better, better_by_trying_all(&dealing, &cut));
                let Some((from, to)) = better else { break };
                move_block(&mut cut, from, to);
            }
        }
    }
}
