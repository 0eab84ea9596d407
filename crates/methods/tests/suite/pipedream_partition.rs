//! PipeDream's partition against all partitions there are, and on a profile that its authors published.

use std::ops::Range;

use proptest::prelude::*;
use shardloom_methods::partition::{
    LayerProfile, Level, Partition, ReplicatedStage, StageTime, pipedream,
};

/// Stages in order, with the components of each.
type Stages = Vec<(Range<usize>, usize)>;

/// The problem, and its formulas as the sources have them.
struct Problem {
    layers: Vec<LayerProfile>,
    levels: Vec<Level>,
    time: StageTime,
}

impl Problem {
    fn sum(&self, layers: &Range<usize>, part: fn(&LayerProfile) -> f64) -> f64 {
        self.layers[layers.clone()].iter().map(part).sum()
    }

    /// All ways to run `layers` on `components` components.
    fn all(&self, layers: Range<usize>, components: usize) -> Vec<Stages> {
        let mut all = vec![vec![(layers.clone(), components)]];
        for cut in layers.start + 1..layers.end {
            for first in 1..components {
                for mut rest in self.all(cut..layers.end, components - first) {
                    rest.insert(0, (layers.start..cut, first));
                    all.push(rest);
                }
            }
        }
        all
    }

    /// What one component below `level` takes for `layers`.
    fn inner_seconds(&self, level: usize, layers: &Range<usize>) -> f64 {
        match level {
            0 => self.sum(layers, LayerProfile::seconds),
            _ => self.least_seconds(level - 1, layers.clone()),
        }
    }

    fn least_seconds(&self, level: usize, layers: Range<usize>) -> f64 {
        let all = self.all(layers, self.levels[level].components);
        all.iter().map(|stages| self.seconds(level, stages)).fold(f64::INFINITY, f64::min)
    }

    fn seconds(&self, level: usize, stages: &Stages) -> f64 {
        let Level { components, bytes_per_second: rate } = self.levels[level];
        let mut slowest = 0.0f64;
        let mut used = 0;
        for (index, (layers, replicas)) in stages.iter().enumerate() {
            used += replicas;
            let computing = self.inner_seconds(level, layers);
            let weights = self.sum(layers, |layer| layer.gradient_bytes);
            let m = *replicas as f64;
            let stage = match self.time {
                StageTime::Published => f64::max(computing, 2.0 * (m - 1.0) * weights / rate) / m,
                StageTime::Released { memory_bytes, .. } => {
                    let stashed = ((components - used) as f64 / m).ceil();
                    let held = self.sum(layers, |layer| layer.kept_bytes + layer.parameter_bytes);
                    match memory_bytes {
                        Some(limit) if stashed * held > limit => f64::INFINITY,
                        _ => (computing + 4.0 * (m - 1.0) * weights / (rate * m)) / m,
                    }
                }
            };
            slowest = slowest.max(stage);
            if index > 0 {
                let input = self.layers[layers.start - 1].output_bytes;
                let output = match layers.end == self.layers.len() {
                    true => 0.0,
                    false => self.layers[layers.end - 1].output_bytes,
                };
                slowest = slowest.max(match self.time {
                    StageTime::Published => 2.0 * input / rate,
                    StageTime::Released { compression: Some(factor), .. } => {
                        2.0 * f64::max(input, output) / (rate * m * factor)
                    }
                    StageTime::Released { compression: None, .. } => 0.0,
                });
            }
        }
        slowest
    }

    /// What `found` takes, from nothing but the workers of its stages: stages on the same components of
    /// the innermost level are one stage of the level above it.
    fn seconds_of_found(&self, found: &[ReplicatedStage]) -> f64 {
        let size = self.levels[0].components;
        if self.levels.len() == 1 {
            let stage = |stage: &ReplicatedStage| (stage.layers.clone(), stage.replicas());
            return self.seconds(0, &found.iter().map(stage).collect());
        }
        let components = |stage: &ReplicatedStage| {
            let mut all: Vec<usize> = stage.workers.iter().map(|worker| worker / size).collect();
            all.dedup();
            all
        };
        let mut outer: Stages = vec![];
        let mut slowest_inner = vec![];
        for together in found.chunk_by(|a, b| components(a) == components(b)) {
            let replicas = components(&together[0]).len();
            let inside: Stages =
                together.iter().map(|it| (it.layers.clone(), it.replicas() / replicas)).collect();
            let layers = together[0].layers.start..together[together.len() - 1].layers.end;
            slowest_inner.push((self.seconds(0, &inside), self.inner_seconds(1, &layers)));
            outer.push((layers, replicas));
        }
        // The stages within components are as good as the best that the outer level counts with.
        for (seconds, least) in slowest_inner {
            assert!((seconds - least).abs() <= 1e-9 * least, "{seconds} within, not {least}");
        }
        self.seconds(1, &outer)
    }
}

fn layer() -> impl Strategy<Value = LayerProfile> {
    (0u32..9, 0u32..9, 0u32..9, 0u32..9, 0u32..9).prop_map(|numbers| {
        let (forward, backward, output, weights, kept) = numbers;
        LayerProfile {
            forward_seconds: forward.into(),
            backward_seconds: backward.into(),
            output_bytes: output.into(),
            parameter_bytes: weights.into(),
            gradient_bytes: f64::from(weights) * 2.0,
            kept_bytes: kept.into(),
        }
    })
}

fn stage_time() -> impl Strategy<Value = StageTime> {
    let released = |(compression, memory): (Option<u32>, Option<u32>)| StageTime::Released {
        compression: compression.map(f64::from),
        memory_bytes: memory.map(f64::from),
    };
    let numbers = (prop::option::of(1u32..4), prop::option::of(0u32..60));
    prop_oneof![Just(StageTime::Published), numbers.prop_map(released)]
}

fn level(components: Range<usize>) -> impl Strategy<Value = Level> {
    (components, 1u32..12)
        .prop_map(|(components, rate)| Level { components, bytes_per_second: rate.into() })
}

fn check_against_all(problem: &Problem) -> Result<(), TestCaseError> {
    let outermost = problem.levels.len() - 1;
    let least = problem.least_seconds(outermost, 0..problem.layers.len());
    let found = pipedream(&problem.layers, &problem.levels, problem.time).expect("a problem");
    let Partition { stages, bottleneck_seconds } = found;
    prop_assert!((bottleneck_seconds - least).abs() <= 1e-9 * least);
    let again = problem.seconds_of_found(&stages);
    prop_assert!((bottleneck_seconds - again).abs() <= 1e-9 * again, "{:?}", stages);
    let mut workers: Vec<usize> = stages.iter().flat_map(|it| it.workers.clone()).collect();
    workers.sort_unstable();
    let count = problem.levels.iter().map(|level| level.components).product();
    prop_assert_eq!(workers, (0..count).collect::<Vec<usize>>());
    prop_assert_eq!(
        (stages[0].layers.start, problem.layers.len()),
        (0, stages[stages.len() - 1].layers.end)
    );
    prop_assert!(stages.windows(2).all(|pair| pair[0].layers.end == pair[1].layers.start));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_partition_of_a_flat_machine_is_faster(
        layers in prop::collection::vec(layer(), 1..6),
        level in level(1..6),
        time in stage_time(),
    ) {
        check_against_all(&Problem { layers, levels: vec![level], time })?;
    }

    #[test]
    fn no_partition_of_two_levels_is_faster(
        layers in prop::collection::vec(layer(), 1..5),
        inner in level(1..4),
        outer in level(1..4),
        time in stage_time(),
    ) {
        check_against_all(&Problem { layers, levels: vec![inner, outer], time })?;
    }
}

/// A published profile and the names of its layers.
fn vgg16() -> (Vec<String>, Vec<LayerProfile>) {
    let text = include_str!("published/vgg16-profile.csv");
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let row = |line: &str| {
        let mut cells = line.split(',');
        let name = cells.next().expect("a name").to_string();
        let numbers: Vec<f64> = cells.map(|cell| cell.parse().expect("a number")).collect();
        let layer = LayerProfile {
            forward_seconds: numbers[0] / 1e3,
            backward_seconds: numbers[1] / 1e3,
            output_bytes: numbers[2],
            parameter_bytes: numbers[3],
            gradient_bytes: numbers[3],
            kept_bytes: numbers[2],
        };
        (name, layer)
    };
    rows.map(row).unzip()
}

/// The paper's table 1 runs VGG-16 on 16 workers as 15-1, on servers behind 10 Gb/s (cluster A) as on
/// servers behind 25 Gb/s (cluster B). 15 replicas are not so many whole servers, so the machine is flat.
#[test]
fn vgg16_is_the_published_fifteen_and_one() {
    let (names, layers) = vgg16();
    for gigabits in [10.0, 25.0] {
        let level = Level { components: 16, bytes_per_second: gigabits * 1e9 / 8.0 };
        let found = pipedream(&layers, &[level], StageTime::Published).expect("a profile");
        let replicas: Vec<usize> = found.stages.iter().map(ReplicatedStage::replicas).collect();
        assert_eq!(replicas, [15, 1], "{gigabits} Gb/s");
        // The fully connected layers, nine tenths of the weights, are on the one worker.
        let dense = names.iter().position(|name| name == "fc6").expect("a layer");
        assert!(found.stages[0].layers.end <= dense);
        assert_eq!(found.admitted_minibatches(), 2);
    }
}

#[test]
fn a_straight_pipeline_admits_as_many_minibatches_as_it_has_stages() {
    let layer = LayerProfile { backward_seconds: 1.0, gradient_bytes: 1e9, ..Default::default() };
    let level = Level { components: 4, bytes_per_second: 1.0 };
    let found = pipedream(&[layer; 4], &[level], StageTime::Published).expect("a chain");
    assert_eq!((found.cuts(), found.admitted_minibatches()), (vec![0, 1, 2, 3, 4], 4));
}

#[test]
fn without_memory_for_stashes_all_workers_share_one_stage() {
    let layer = LayerProfile { backward_seconds: 1.0, gradient_bytes: 1.0, ..Default::default() };
    let layers = [LayerProfile { kept_bytes: 5.0, ..layer }; 2];
    let level = Level { components: 2, bytes_per_second: 1.0 };
    let cuts = |memory_bytes| {
        let time = StageTime::Released { compression: None, memory_bytes: Some(memory_bytes) };
        pipedream(&layers, &[level], time).expect("a chain").cuts()
    };
    // The first of two stages stashes one minibatch.
    assert_eq!(cuts(5.0), [0, 1, 2]);
    assert_eq!(cuts(4.9), [0, 2]);
}

#[test]
fn impossible_machines_and_empty_chains_are_refused() {
    let layer = LayerProfile { backward_seconds: 1.0, ..Default::default() };
    let level = Level { components: 2, bytes_per_second: 1.0 };
    let refused = |layers: &[LayerProfile], levels: &[Level]| {
        pipedream(layers, levels, StageTime::Published).expect_err("refused").to_string()
    };
    assert_eq!(refused(&[layer], &[]), "levels = []: at least one, of the devices that there are");
    let none = Level { components: 0, ..level };
    assert_eq!(refused(&[layer], &[none]), "components = 0: at least one in each level");
    let dead = Level { bytes_per_second: 0.0, ..level };
    assert!(refused(&[layer], &[dead]).starts_with("bytes_per_second = 0:"));
    assert!(refused(&[], &[level]).starts_with("stages = 1:"));
}

/// A layer of so many seconds, which is passed on at no cost, and with heavy weights is not worth replicas.
fn plain(seconds: f64, heavy: bool) -> LayerProfile {
    let gradient_bytes = if heavy { 1e12 } else { 0.0 };
    LayerProfile { backward_seconds: seconds, gradient_bytes, ..LayerProfile::default() }
}

/// The stages of `layers` on one level, as layers and replicas.
fn stages_of(layers: &[LayerProfile], components: usize) -> Vec<(Range<usize>, usize)> {
    let level = Level { components, bytes_per_second: 1e9 };
    let found = pipedream(layers, &[level], StageTime::Published).expect("a partition");
    found.stages.iter().map(|stage| (stage.layers.clone(), stage.replicas())).collect()
}

#[test]
fn of_equally_fast_partitions_one_stage_goes_before_several() {
    // Two replicas of both layers, or one of each: a second for each minibatch either way.
    let light = [plain(1.0, false), plain(1.0, false)];
    assert_eq!(stages_of(&light, 2), [(0..2, 2)]);
    assert_eq!(stages_of(&[plain(1.0, false); 4], 4), [(0..4, 4)]);
    let heavy = [plain(1.0, true), plain(1.0, true)];
    assert_eq!(stages_of(&heavy, 2), [(0..1, 1), (1..2, 1)]);
    // Two replicas exchange for a second, which is what the slower layer takes alone.
    let exchanging = LayerProfile { gradient_bytes: 1e9, ..plain(1.0, false) };
    assert_eq!(stages_of(&[plain(0.5, false), exchanging], 2), [(0..2, 2)]);
}

#[test]
fn of_equally_fast_cuts_the_earliest_last_one_is_taken() {
    // The layer in the middle takes no time on either side.
    let middle = [plain(2.0, true), plain(0.0, true), plain(2.0, true)];
    assert_eq!(stages_of(&middle, 2), [(0..1, 1), (1..3, 1)]);
    // The last stage is the slowest wherever it begins.
    let last = [plain(1.0, true), plain(0.0, true), plain(2.0, true)];
    assert_eq!(stages_of(&last, 2), [(0..1, 1), (1..3, 1)]);
    let several = [2.0, 0.0, 0.0, 2.0, 0.0, 2.0].map(|seconds| plain(seconds, true));
    assert_eq!(stages_of(&several, 3), [(0..1, 1), (1..4, 1), (4..6, 1)]);
}
