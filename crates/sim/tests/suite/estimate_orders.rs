//! Estimates of every schedule that is searched, beside simulations.

use crate::estimated::{MIXED, mean_error, model, rank_correlation, sample, times};
use crate::scenario::{cores, gpt, h100};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Number, Precision, Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};

/// Schedules with stages on a mesh, for pipelines.
const ORDERS: [(ScheduleKind, u32); 16] = [
    (ScheduleKind::Afab, 1),
    (ScheduleKind::OneForwardOneBackward, 1),
    (ScheduleKind::Interleaved, 2),
    (ScheduleKind::Interleaved, 3),
    (ScheduleKind::ZeroBubbleH1, 1),
    (ScheduleKind::ZeroBubbleH2, 1),
    (ScheduleKind::ZeroBubbleOneP, 1),
    (ScheduleKind::ZeroBubbleTwoP, 1),
    (ScheduleKind::ZeroBubbleV, 2),
    (ScheduleKind::VHalf, 2),
    (ScheduleKind::VMin, 2),
    (ScheduleKind::Hanayo, 2),
    (ScheduleKind::Hanayo, 4),
    (ScheduleKind::DualPipeV, 2),
    (ScheduleKind::DualPipe, 2),
    (ScheduleKind::Chimera, 2),
];

/// All pipelines on `devices` devices that the schedules exist for, with micro-batches of up to 4 samples.
fn candidates(devices: u32, global_batch: u32) -> Vec<Candidate> {
    let mut all = vec![];
    for (pp, tp) in [(2, 1), (2, 2), (4, 1), (4, 2), (8, 1)] {
        let dp = devices / pp / tp;
        for (microbatch, zero) in
            [1, 2, 4].iter().flat_map(|&it| (0..4).map(move |zero| (it, zero)))
        {
            for (recompute, (schedule, chunks)) in Recompute::BY_BLOCK
                .iter()
                .flat_map(|&recompute| ORDERS.map(|order| (recompute, order)))
            {
                for cut in [Cut::Even, Cut::Balanced] {
                    all.push(Candidate {
                        pp,
                        dp,
                        cp: 1,
                        tp,
                        sequence_parallel: tp > 1,
                        zero: if dp > 1 { zero } else { 0 },
                        sharing: dp,
                        microbatch,
                        microbatches: global_batch / dp / microbatch,
                        recompute,
                        schedule,
                        chunks,
                        cut,
                    });
                }
            }
        }
    }
    all
}

/// Those of `candidates` that there is an estimate of.
fn possible(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    candidates: Vec<Candidate>,
) -> Vec<Candidate> {
    let mut estimator = Estimator::new(graph, cluster, settings.clone()).expect("an estimator");
    let exists = |it: &Candidate| estimator.estimate(it).expect("costs").is_some();
    candidates.into_iter().filter(exists).collect()
}

/// Pearson's correlation.
fn correlation(times: &[(f64, f64)]) -> f64 {
    let count = times.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| times.iter().map(of).sum::<f64>() / count;
    let (first, second) = (mean(|it| it.0), mean(|it| it.1));
    let products = |of: fn(f64, f64) -> f64| {
        times.iter().map(|it| of(it.0 - first, it.1 - second)).sum::<f64>()
    };
    products(|a, b| a * b) / (products(|a, _| a * a) * products(|_, b| b * b)).sqrt()
}

fn check(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    candidates: Vec<Candidate>,
    error: f64,
) {
    let candidates = possible(graph, cluster, settings, candidates);
    let times = times(graph, cluster, settings, &candidates);
    let kinds = ORDERS.iter().filter(|(kind, _)| candidates.iter().any(|it| it.schedule == *kind));
    assert!(kinds.count() == ORDERS.len() && candidates.len() > 60, "{} plans", candidates.len());
    let (rank, linear) = (rank_correlation(&times), correlation(&times));
    let found = mean_error(&times);
    println!("rank {rank}, linear {linear}, mean error {found} of {}", times.len());
    assert!(rank >= 0.98 && linear >= 0.98, "rank {rank}, linear {linear}");
    assert!(found <= error, "mean error {found}");
}

#[test]
fn estimates_rank_plans_of_all_schedules() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200");
    check(&graph, &h100(16), &MIXED, sample(candidates(16, 64), 20), 0.03);
}

#[test]
fn estimates_rank_plans_of_all_schedules_over_slow_shared_links() {
    let graph = model(
        "llama:layers=30,hidden=512,heads=8,kv_heads=4,seq=512,vocab=4096,ffn=1408,tied=true",
    );
    let cluster = Cluster::parse("v100-16g:4x4").expect("a preset");
    let precision = Precision { compute: Number::Fp16, ..Precision::MIXED };
    let settings = Settings { precision, ..MIXED };
    check(&graph, &cluster, &settings, sample(candidates(16, 32), 20), 0.05);
}

#[test]
fn estimates_rank_plans_of_all_schedules_where_lanes_do_not_overlap() {
    let graph = gpt(30, false);
    let settings = Settings { precision: Precision::FP32, bucket_bytes: 100_000, ..MIXED };
    check(&graph, &cores(8), &settings, sample(candidates(8, 32), 20), 0.05);
}

/// Bounds of time prune only what would not be chosen, as far as what stages cost is estimated right.
#[test]
fn no_simulated_step_is_shorter_than_its_bound() {
    let graph = gpt(30, true);
    for cluster in [h100(8), cores(8)] {
        let settings = Settings { precision: Precision::FP32, norm: true, ..MIXED };
        let all = candidates(8, 32).into_iter().filter(|it| it.zero < 2).collect();
        let candidates = sample(all, 20);
        let candidates = possible(&graph, &cluster, &settings, candidates);
        let times = times(&graph, &cluster, &settings, &candidates);
        let mut estimator =
            Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
        for (candidate, (_, simulated)) in candidates.iter().zip(times) {
            let bound = estimator.bound(candidate).expect("costs").expect("a layout").step_seconds;
            assert!(bound <= simulated * (1.0 + 1e-6), "{bound} {simulated} {candidate:?}");
        }
    }
}

/// Bounds prune only what the estimate would not choose. These steps are short enough to be run whole.
#[test]
fn no_estimate_is_below_its_bounds() {
    let graph = gpt(30, true);
    for cluster in [h100(8), cores(8)] {
        for norm in [false, true] {
            let settings = Settings { precision: Precision::FP32, norm, ..MIXED };
            let mut estimator =
                Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
            for candidate in sample(candidates(8, 32), 12) {
                let Some(estimate) = estimator.estimate(&candidate).expect("costs") else {
                    continue;
                };
                let bound = estimator.bound(&candidate).expect("costs").expect("a layout");
                let seconds = estimator.least_seconds(&candidate).expect("costs");
                let bytes = estimator.least_bytes(&candidate).expect("costs");
                let exceeds = |bound: f64, found: f64| bound > found * (1.0 + 1e-9);
                assert!(!exceeds(bound.step_seconds, estimate.step_seconds), "{candidate:?}");
                assert!(!exceeds(bound.peak_bytes, estimate.peak_bytes), "{candidate:?}");
                assert!(
                    !exceeds(seconds.expect("a layout"), estimate.step_seconds),
                    "{candidate:?}"
                );
                assert!(!exceeds(bytes.expect("a layout"), estimate.peak_bytes), "{candidate:?}");
            }
        }
    }
}

/// Steps of many micro-batches are not run to their end.
#[test]
fn rounds_that_repeat_add_as_much_each() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200");
    let plans = ORDERS.map(|(schedule, chunks)| Candidate {
        pp: 4,
        dp: 1,
        cp: 1,
        tp: 1,
        sequence_parallel: false,
        zero: 0,
        sharing: 1,
        microbatch: 1,
        microbatches: 192,
        recompute: Recompute::None,
        schedule,
        chunks,
        cut: Cut::Balanced,
    });
    let times = times(&graph, &h100(4), &MIXED, &plans);
    for (plan, (estimated, simulated)) in plans.iter().zip(times) {
        let ratio = estimated / simulated;
        assert!((0.95..=1.05).contains(&ratio), "{:?}: {ratio}", plan.schedule);
    }
}

/// What a device holds in a schedule's order.
#[test]
fn memory_of_all_schedules_is_estimated_as_their_programs_hold_it() {
    let graph = model("gpt:layers=30,hidden=1024,heads=16,seq=1024,vocab=51200,tied=true");
    let cluster = h100(8);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    let (mut near, mut count) = (0, 0);
    for candidate in possible(&graph, &cluster, &MIXED, sample(candidates(8, 32), 12)) {
        let estimated = estimator.mesh_peak_bytes(&candidate).expect("costs").expect("a layout");
        let program = crate::estimated::program(&graph, &mut estimator, &MIXED, &candidate);
        for (class, estimated) in program.classes.iter().zip(&estimated) {
            let ratio = estimated / class.memory_use(&program, 0).peak_bytes as f64;
            assert!((0.9..=1.1).contains(&ratio), "{}: {ratio} of {candidate:?}", class.place());
            count += 1;
            near += usize::from((0.99..=1.01).contains(&ratio));
        }
    }
    assert!(10 * near >= 9 * count, "{near} of {count} within a hundredth");
}
