//! Estimates beside simulations of the same candidates.

use std::collections::BTreeMap;

use shardloom_cluster::Cluster;
use shardloom_cluster::PlanDefaults;
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Optimizer, ParameterGroup, PassTimes, Plan, Precision, Sync, Uniform};
use shardloom_program::{Program, lower};
use shardloom_sim::estimate::{Candidate, Estimator, Settings};
use shardloom_sim::{Options, simulate};

pub(crate) const MIXED: Settings = Settings {
    precision: Precision::MIXED,
    optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
    norm: true,
    algorithm: Algorithm::Ring,
    bucket_bytes: 25_000_000,
    plan_defaults: PlanDefaults::NONE,
    frozen: vec![],
    own_cuts: BTreeMap::new(),
};

/// Parameters of some blocks, and of none of the head.
pub(crate) fn frozen(blocks: &[&str]) -> Settings {
    let names = |names: &&str| ParameterGroup { frozen: true, ..ParameterGroup::named(names) };
    Settings { frozen: blocks.iter().map(names).collect(), ..MIXED }
}

fn plan(
    graph: &Graph,
    settings: &Settings,
    candidate: &Candidate,
    cuts: &[usize],
    times: PassTimes,
) -> Plan {
    let Candidate { zero, tp, .. } = *candidate;
    let usual = Sync::usual(settings.plan_defaults, zero, tp, settings.bucket_bytes);
    let uniform = Uniform {
        pp: candidate.pp as usize,
        mesh: candidate.mesh(),
        sequence_parallel: candidate.sequence_parallel,
        global_batch: candidate.global_batch() as usize,
        microbatches: candidate.microbatches as usize,
        schedule: candidate.schedule,
        recompute: candidate.recompute,
        sync: Sync { algorithm: settings.algorithm, ..usual },
        precision: settings.precision,
        optimizer: settings.optimizer,
        clip_norm: settings.norm.then_some(1.0),
    };
    let places = uniform.places(candidate.chunks as usize).expect("places for stages");
    let pipelines = uniform.pipelines(&places, cuts);
    let mut plan = uniform.plan_of(graph, "model", "cluster", pipelines);
    plan.layout = candidate.layout(graph);
    plan.parameters = settings.frozen.clone();
    plan.keeps_gathered = settings.plan_defaults.keeps_gathered;
    plan.pass_times = times;
    plan
}

pub(crate) fn program(
    graph: &Graph,
    estimator: &mut Estimator<'_>,
    settings: &Settings,
    candidate: &Candidate,
) -> Program {
    let cuts = estimator.cuts(candidate).expect("costs").expect("a possible layout");
    let times = estimator.pass_times(candidate).expect("costs").expect("a possible layout");
    let plan = plan(graph, settings, candidate, &cuts, times);
    lower(graph, &plan, candidate.devices() as usize).expect("the plan can be lowered")
}

/// Estimated and simulated seconds of each candidate.
pub(crate) fn times(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    candidates: &[Candidate],
) -> Vec<(f64, f64)> {
    let mut estimator = Estimator::new(graph, cluster, settings.clone()).expect("an estimator");
    let time = |candidate: &Candidate| {
        let estimate = estimator.estimate(candidate).expect("costs").expect("a possible layout");
        let program = program(graph, &mut estimator, settings, candidate);
        let found = simulate(graph, cluster, &program, Options::default()).expect("it simulates");
        (estimate.step_seconds, found.step_time().seconds())
    };
    candidates.iter().map(time).collect()
}

/// Spearman's rank correlation.
pub(crate) fn rank_correlation(times: &[(f64, f64)]) -> f64 {
    let ranks = |of: fn(&(f64, f64)) -> f64| {
        let mut order: Vec<usize> = (0..times.len()).collect();
        order.sort_by(|&a, &b| of(&times[a]).total_cmp(&of(&times[b])));
        let mut ranks = vec![0.0; times.len()];
        order.iter().zip(0u32..).for_each(|(&index, rank)| ranks[index] = f64::from(rank));
        ranks
    };
    let (first, second) = (ranks(|it| it.0), ranks(|it| it.1));
    let squares: f64 = first.iter().zip(&second).map(|(a, b)| (a - b).powi(2)).sum();
    let count = times.len() as f64;
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}

pub(crate) fn mean_error(times: &[(f64, f64)]) -> f64 {
    let errors = times.iter().map(|(estimated, simulated)| (estimated / simulated - 1.0).abs());
    errors.sum::<f64>() / times.len() as f64
}

/// Holds the estimates to this rank correlation with the simulations, and to this mean error.
pub(crate) fn assert_ranked(times: &[(f64, f64)], least: f64, most: f64, what: &str) {
    let (correlation, error) = (rank_correlation(times), mean_error(times));
    assert!(correlation >= least, "{what}: rank correlation {correlation}");
    assert!(error <= most, "{what}: mean error {error}");
}

pub(crate) fn assert_as_simulated(times: &[(f64, f64)], tolerance: f64) {
    for (estimated, simulated) in times {
        let ratio = estimated / simulated;
        assert!((ratio - 1.0).abs() <= tolerance, "{ratio}: {times:?}");
    }
}

pub(crate) fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}
