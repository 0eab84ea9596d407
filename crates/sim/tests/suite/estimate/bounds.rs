//! Bounds that a search prunes by: nothing estimated or simulated is below them.

use shardloom_graph::ModelSpec;
use shardloom_plan::Precision;
use shardloom_sim::estimate::{Candidate, Estimator, Settings};

use super::candidates::{candidates, candidates_in_all_orders, pipeline, possible, sample};
use super::simulated::{MIXED, times};
use crate::scenario::{cores, gpt, h100};

#[test]
fn bounds_are_never_above_estimates() {
    let graph = gpt(6, false);
    let cluster = h100(16);
    let mut estimator = Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
    for candidate in candidates(16, 64) {
        let estimate = estimator.estimate(&candidate).expect("costs").expect("a layout");
        let bytes = estimator.least_bytes(&candidate).expect("costs").expect("a layout");
        let seconds = estimator.least_seconds(&candidate).expect("costs").expect("a layout");
        let slack = 1.0 + 1e-9;
        assert!(bytes <= estimate.peak_bytes * slack, "{bytes} {estimate:?} {candidate:?}");
        assert!(seconds <= estimate.step_seconds * slack, "{seconds} {estimate:?} {candidate:?}");
    }
}

/// Bounds of time prune only what would not be chosen, as far as what stages cost is estimated right.
#[test]
fn no_simulated_step_is_shorter_than_its_bound() {
    let graph = gpt(30, true);
    for cluster in [h100(8), cores(8)] {
        let settings = Settings { precision: Precision::FP32, norm: true, ..MIXED };
        let all = candidates_in_all_orders(8, 32).into_iter().filter(|it| it.zero < 2).collect();
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
fn no_estimate_in_any_order_is_below_its_bounds() {
    let graph = gpt(30, true);
    for cluster in [h100(8), cores(8)] {
        for norm in [false, true] {
            let settings = Settings { precision: Precision::FP32, norm, ..MIXED };
            let mut estimator =
                Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
            for candidate in sample(candidates_in_all_orders(8, 32), 12) {
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

/// What stages cost is remembered for candidates that have such stages too: all 8 or 16 devices, all widths, ways to
/// shard, orders and cuts of blocks that are alike, of two kinds by turns, and with parameters in common.
#[test]
fn candidates_that_were_looked_at_before_change_no_estimate() {
    let by_turns = "llama:layers=12,hidden=64,heads=4,ffn=128,seq=32,vocab=64,windows=1x8-0";
    let by_turns = ModelSpec::parse(by_turns).and_then(|spec| spec.graph()).expect("a model");
    let cluster = h100(16);
    for graph in [gpt(30, false), gpt(12, true), by_turns] {
        let new = || Estimator::new(&graph, &cluster, MIXED).expect("an estimator");
        let mut seasoned = new();
        let few = candidates(16, 64).into_iter().chain(candidates(8, 64)).collect();
        let mut all = sample(few, 60);
        all.extend(sample(candidates_in_all_orders(8, 32), 40));
        all.extend(sample(candidates_in_all_orders(16, 32), 40));
        let shared = all.iter().filter(|it| it.zero > 0 && it.dp > 2);
        let shared: Vec<Candidate> = shared.map(|&it| Candidate { sharing: 2, ..it }).collect();
        all.extend(shared);
        for candidate in &all {
            seasoned.estimate(candidate).expect("costs");
        }
        for candidate in &all {
            let mut alone = new();
            let of_both = [&mut seasoned, &mut alone].map(|it| {
                let estimate = it.estimate(candidate).expect("costs");
                (estimate, it.bound(candidate).expect("costs"))
            });
            assert_eq!(of_both[0], of_both[1], "{candidate:?}");
        }
        assert!(all.len() > 100, "{}", all.len());
    }
}

/// Where steps wait for each other a pipeline fills and drains in each, and its bound knows.
#[test]
fn the_first_bound_of_a_pipeline_counts_that_it_fills() {
    let graph = gpt(30, false);
    let cluster = h100(8);
    let least = |norm: bool, microbatches: u32| {
        let settings = Settings { norm, ..MIXED };
        let mut estimator = Estimator::new(&graph, &cluster, settings).expect("an estimator");
        let candidate = pipeline(8, 1, microbatches);
        estimator.least_seconds(&candidate).expect("costs").expect("a layout")
    };
    // 1 / (1 - (1 - 1/m)^p) times the total, over m / p times it.
    for (microbatches, expected) in [(1, 8.0), (8, 1.0 / (1.0 - 0.875_f64.powi(8)))] {
        let filled = least(true, microbatches) / least(false, microbatches);
        assert!((filled / expected - 1.0).abs() < 1e-9, "{filled} for {expected}");
    }
}
