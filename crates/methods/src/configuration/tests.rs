//! The configurations that there are to choose from, against all that the table above names.

use std::collections::BTreeSet;

use shardloom_cluster::{Cluster, NodeGroup, Profile};
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};

use super::*;

/// Eight blocks, four heads and 24 positions.
const GPT: &str = "gpt:layers=6,hidden=64,heads=4,seq=24,vocab=64";

/// The same with so many positions that searches split them, too.
const LONG: &str = "gpt:layers=6,hidden=64,heads=4,seq=24576,vocab=64";

fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

fn graph() -> Graph {
    model(GPT)
}

fn h100(nodes: u32, devices_per_node: u32) -> Cluster {
    let profile = Profile::preset("h100-80g").expect("a preset");
    Cluster::new(vec![NodeGroup { profile, nodes, devices_per_node }]).expect("a cluster")
}

/// Stages, replicas, width of tensor parallelism and whether it splits the sequence, micro-batches and samples of one,
/// stages on a device, stage of ZeRO.
type Words = (usize, u32, u32, bool, usize, usize, usize, u8);

fn words(it: &Configuration) -> Words {
    let (dp, tp) = (it.mesh.dp(), it.mesh.tp());
    (it.pp, dp, tp, it.sequence_parallel, it.microbatches, it.samples, it.chunks, it.zero)
}

/// The widths and depths that such a pipeline may have on nodes of so many devices.
fn widths_and_depths(pipelines: &Pipelines, devices: u32, per_node: u32) -> Vec<(u32, u32)> {
    let mut found = vec![];
    for tp in 1..=per_node {
        // Heads are split.
        if 4 % tp > 0 || (tp > 1 && !pipelines.tensor) {
            continue;
        }
        for pp in 2..=8 {
            let divides = (devices / tp).is_multiple_of(pp);
            let depth_may_be = !pipelines.even || pp % 2 == 0;
            if divides && depth_may_be && pp * tp <= devices {
                found.push((tp, pp));
            }
        }
    }
    found
}

/// The numbers of micro-batches of `share` samples that are tried: of those that the schedule takes the least from one,
/// two, four and eight times the depth on, or the largest where all are fewer.
fn microbatches(counts: Counts, share: usize, depth: usize) -> BTreeSet<usize> {
    if counts.single {
        return BTreeSet::from([1]);
    }
    let taken = |it: usize| {
        share.is_multiple_of(it) && it >= counts.at_least && it.is_multiple_of(counts.multiple_of)
    };
    let possible: BTreeSet<usize> = (1..=share).filter(|&it| taken(it)).collect();
    let from = |least: usize| possible.range(least..).next().copied();
    let tried: BTreeSet<usize> =
        [1, 2, 4, 8].into_iter().filter_map(|it| from(it * depth)).collect();
    if tried.is_empty() { possible.last().copied().into_iter().collect() } else { tried }
}

fn expected(
    pipelines: &Pipelines,
    (nodes, per_node): (u32, u32),
    batch: usize,
    scatters: bool,
) -> Vec<Words> {
    let devices = nodes * per_node;
    let mut all = vec![];
    for (tp, pp) in widths_and_depths(pipelines, devices, per_node) {
        let room = devices / (tp * pp);
        let dp = (1..=room)
            .filter(|&it| batch.is_multiple_of(it as usize))
            .max()
            .expect("one divides all");
        let (depth, share) = (pp as usize, batch / dp as usize);
        for microbatches in microbatches((pipelines.counts)(depth), share, depth) {
            for &chunks in pipelines.chunks {
                let both = pipelines.schedule == ScheduleKind::DualPipe;
                let stages = if both { depth } else { depth * chunks };
                if stages > 8 {
                    continue;
                }
                let sequence = tp > 1 && 24 % tp == 0;
                let zero = if dp > 1 && scatters { pipelines.zero } else { 0 };
                let samples = share / microbatches;
                all.push((depth, dp, tp, sequence, microbatches, samples, chunks, zero));
            }
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn every_configuration_that_the_table_names_is_there_once_and_no_other() {
    let graphs = [GPT, LONG].map(model);
    let plain = || Pipelines::of(ScheduleKind::Afab);
    let kinds = [
        plain(),
        Pipelines { zero: 1, tensor: true, ..plain() },
        Pipelines { even: true, counts: |_| Counts::SINGLE, ..plain() },
        Pipelines {
            chunks: &[2, 4],
            tensor: true,
            zero: 1,
            counts: |depth| Counts { at_least: depth, multiple_of: depth, single: false },
            ..Pipelines::of(ScheduleKind::Interleaved)
        },
        Pipelines {
            chunks: &[2],
            tensor: true,
            even: true,
            counts: |depth| Counts { at_least: 2 * depth, multiple_of: 2, single: false },
            ..Pipelines::of(ScheduleKind::DualPipe)
        },
    ];
    let (mut seen, mut with_replicas) = (0, 0);
    for (kind, pipelines) in kinds.iter().enumerate() {
        for machines in [(1, 1), (1, 2), (1, 4), (2, 4), (3, 2), (1, 6), (2, 3)] {
            let cluster = h100(machines.0, machines.1);
            // Few samples for many devices as well as many for few.
            for batch in [1, 2, 3, 12, 30, 64] {
                for algorithm in [Algorithm::Ring, Algorithm::BinaryTree] {
                    let request = Request { algorithm, ..Request::new(GPT, "cluster", batch) };
                    let scatters = algorithm == Algorithm::Ring;
                    let expected = expected(pipelines, machines, batch, scatters);
                    for graph in &graphs {
                        let task = Task::new("a method", graph, &cluster, &request);
                        let shapes = pipelines.shapes(&task).expect("shapes");
                        let found = pipelines.configurations(&task, &shapes);
                        let mut found: Vec<Words> = found.iter().map(words).collect();
                        found.sort_unstable();
                        let at = format!("{kind}, {machines:?}, {batch} samples, {algorithm}");
                        assert_eq!(found, expected, "{at}");
                        seen += found.len();
                        with_replicas += found.iter().filter(|it| it.1 > 1).count();
                    }
                }
            }
        }
    }
    assert!(seen > 1000 && with_replicas > 300, "{seen}, {with_replicas} with replicas");
}

/// Whatever else a method says goes into each of its configurations.
#[test]
fn configurations_have_what_their_method_says_of_all() {
    let (graph, cluster, request) = (graph(), h100(1, 4), Request::new(GPT, "cluster", 16));
    let task = Task::new("a method", &graph, &cluster, &request);
    for bits in 0..8 {
        let [recompute_last, timed, post_validation] = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
        let pipelines = Pipelines {
            recompute: &[Recompute::Stage],
            cut: Cut::LeastVariance,
            weights: Weights::Stash,
            recompute_last,
            timed,
            post_validation,
            ..Pipelines::of(ScheduleKind::PipeDream)
        };
        let shapes = pipelines.shapes(&task).expect("shapes");
        let found = pipelines.configurations(&task, &shapes);
        assert!(found.len() > 4);
        for it in found {
            assert_eq!((it.schedule, it.weights), (ScheduleKind::PipeDream, Weights::Stash));
            assert_eq!((it.cut, &it.recompute[..]), (Cut::LeastVariance, &[Recompute::Stage][..]));
            let flags = (it.recompute_last, it.timed, it.post_validation);
            assert_eq!(flags, (recompute_last, timed, post_validation));
        }
    }
}

/// More than are simulated: what fits as 1F1B comes first, fastest first, and then what comes closest.
#[test]
fn many_configurations_are_tried_in_the_order_of_their_estimates() {
    let (graph, cluster) = (graph(), h100(2, 4));
    let pipelines = Pipelines {
        tensor: true,
        chunks: &[1, 2],
        recompute: &[Recompute::None, Recompute::Full],
        ..Pipelines::of(ScheduleKind::Interleaved)
    };
    let roomy = Request::new(GPT, "cluster", 64);
    let mut estimator = Estimator::new(&graph, &cluster, roomy.settings()).expect("one");
    let device = estimator.memory_bytes() as f64;
    let task = Task::new("a method", &graph, &cluster, &roomy);
    let all = pipelines.configurations(&task, &pipelines.shapes(&task).expect("shapes"));
    let peak = |it: &Configuration| estimator.estimate(&it.candidate(Recompute::None));
    let peaks = all.iter().map(peak).filter_map(|it| it.expect("an estimate"));
    let mut peaks: Vec<f64> = peaks.map(|it| it.peak_bytes).collect();
    peaks.sort_by(f64::total_cmp);
    let (mut mixed, mut again) = (0, 0);
    // Room for none, some and all of them.
    for bytes in [peaks[0] / 2.0, peaks[peaks.len() / 4], peaks[peaks.len() / 2], device] {
        let memory_share = bytes / device;
        let request = Request { memory_share, ..Request::new(GPT, "cluster", 64) };
        let task = Task::new("a method", &graph, &cluster, &request);
        let shapes = pipelines.shapes(&task).expect("shapes");
        let all = pipelines.configurations(&task, &shapes);
        assert!(task.is_too_much(&all));
        let ranked = ranked(&task, all.clone()).expect("estimates");
        let mut estimator = Estimator::new(&graph, &cluster, request.settings()).expect("one");
        // Seconds with the least recomputation that fits, or bytes with the most that there is.
        let mut keys = vec![];
        for it in &ranked {
            let estimates: Vec<(f64, f64)> = it
                .recompute
                .iter()
                .filter_map(|&recompute| {
                    let found = estimator.estimate(&it.candidate(recompute)).expect("one");
                    found.map(|found| (found.peak_bytes, found.step_seconds))
                })
                .collect();
            let first = estimates.iter().position(|it| it.0 <= memory_share * device);
            again += usize::from(first == Some(1));
            let last = estimates.last().expect("an estimate").0;
            keys.push(first.map_or((1, last), |at| (0, estimates[at].1)));
        }
        assert!(keys.is_sorted_by(|one, other| one <= other), "{bytes} bytes: {keys:?}");
        mixed += usize::from(keys[0].0 != keys[keys.len() - 1].0);
        // All that can be are there still.
        let sorted = |list: &[Configuration]| {
            let mut all: Vec<Words> = list.iter().map(words).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(&ranked), sorted(&all));
    }
    assert!(mixed > 0 && again > 0, "{mixed} with both, {again} that recompute");
}
