//! Training where each group of parameters says who sums its gradients: what it is equal to, bytes, memory,
//! timelines and checkpoints.

use crate::support::two_nodes::{
    CLUSTER, assert_runs_as_predicted, cluster, gpt, started, train, weights,
};
use crate::support::{mesh, serial};
use shardloom_checkpoint::{Meta, Store};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{
    Optimizer, ParameterGroup, Plan, Ranges, SendOrder, Share, Summation, Sync, Uniform,
};
use shardloom_train::RunClock;

const STEPS: u32 = 6;

fn group(names: &str, servers: &[u32]) -> ParameterGroup {
    ParameterGroup { servers: Some(servers.to_vec()), ..ParameterGroup::named(names) }
}

fn by_workers(names: &str, algorithm: Algorithm) -> ParameterGroup {
    ParameterGroup { algorithm: Some(algorithm), ..group(names, &[]) }
}

fn plan(
    graph: &Graph,
    (workers, servers): (u32, u32),
    share: Share,
    groups: Vec<ParameterGroup>,
) -> Plan {
    let summation = Summation { ranges: Ranges::Hashed, share, ..Summation::of(servers) };
    let summation = (servers > 0).then_some(summation);
    let algorithm = Algorithm::Direct;
    let uniform = Uniform {
        sync: Sync { summation, algorithm, bucket_bytes: 4000, ..Sync::default() },
        mesh: mesh(workers, 1, 1),
        global_batch: 16,
        microbatches: 2,
        clip_norm: Some(0.5),
        // An update that forgets how large a gradient is would tell rounding apart.
        optimizer: Optimizer::sgd(0.9),
        ..serial()
    };
    let mut plan = uniform.plan(graph, "model", CLUSTER);
    plan.parameters = groups;
    plan
}

/// Plans of so many workers that differ in who sums what.
fn plans(graph: &Graph, workers: u32, algorithm: Algorithm) -> Vec<Plan> {
    let of = |servers, groups| plan(graph, (workers, servers), Share::Part(1.0), groups);
    let cut = vec![
        group("*ffn*weight", &[1, 0, 1]),
        by_workers("*norm*", algorithm),
        group("*attention*", &[1]),
    ];
    let fused = ParameterGroup { bucket_bytes: Some(1 << 20), ..by_workers("*bias", algorithm) };
    let balanced = plan(graph, (workers, 2), Share::Balanced, cut.clone());
    let most_by_workers = vec![group("*bias", &[0]), by_workers("*", algorithm)];
    vec![of(2, cut), of(1, vec![fused, group("*", &[0])]), of(1, most_by_workers), balanced]
}

fn trained(graph: &Graph, plan: &Plan, clock: RunClock) -> Vec<f32> {
    let mut trainer = started(graph, plan, clock);
    train(&mut trainer, 2 * STEPS);
    weights(&mut trainer)
}

/// Servers sum in the order of workers, and so does a direct all-reduce.
#[test]
fn whoever_sums_what_training_is_bit_for_bit_data_parallelism() {
    let graph = gpt();
    for workers in [1, 2, 4] {
        let alone = plan(&graph, (workers, 0), Share::Part(1.0), vec![]);
        let expected = trained(&graph, &alone, RunClock::Wall);
        let not_clipped = Plan { clip_norm: None, ..alone };
        let expected_of_these = trained(&graph, &not_clipped, RunClock::Wall);
        for plan in plans(&graph, workers, Algorithm::Direct) {
            let by_next_use = |it| Summation { order: SendOrder::NextUse, ..it };
            let summation = plan.sync.summation.map(by_next_use);
            let sync = Sync { summation, ..plan.sync };
            let by_next_use = Plan { clip_norm: None, sync, ..plan.clone() };
            for (plan, expected) in [(&plan, &expected), (&by_next_use, &expected_of_these)] {
                for clock in [RunClock::Wall, RunClock::Virtual(cluster())] {
                    let found = trained(&graph, plan, clock);
                    assert!(found == *expected, "{}", plan.to_toml());
                }
            }
        }
    }
}

/// For each variable a server list or the workers, drawn.
fn drawn(graph: &Graph, seed: u64) -> Vec<ParameterGroup> {
    let mut state = seed;
    let mut below = |count: u64| {
        // Knuth's linear congruential generator (MMIX).
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % count
    };
    let mut groups = vec![];
    let mut others = vec![];
    for (index, (_, value)) in graph.parameters().enumerate() {
        match below(2) {
            0 if index > 0 => others.push(value.name.as_str()),
            _ => {
                let more = (0..below(4)).map(|_| below(2) as u32);
                // Both have something to do.
                let first: &[u32] = if index == 0 { &[0, 1] } else { &[0] };
                let servers: Vec<u32> = first.iter().copied().chain(more).collect();
                groups.push(group(&value.name, &servers));
            }
        }
    }
    let algorithm = Some(Algorithm::Direct);
    groups.push(ParameterGroup {
        servers: Some(vec![]),
        algorithm,
        bucket_bytes: Some(20_000),
        ..ParameterGroup::of_all(&others)
    });
    groups
}

#[test]
fn a_step_with_drawn_synchronisers_leads_to_the_weights_of_one_device_on_the_whole_batch() {
    let graph = gpt();
    let after = |plan: &Plan| {
        let mut trainer = started(&graph, plan, RunClock::Wall);
        train(&mut trainer, 1);
        weights(&mut trainer)
    };
    for workers in [2, 4] {
        let mut alone = plan(&graph, (1, 0), Share::Part(1.0), vec![]);
        alone.microbatches = 2 * workers as usize;
        let (alone, replicas) =
            (after(&alone), after(&plan(&graph, (workers, 0), Share::Part(1.0), vec![])));
        for seed in 0..6 {
            let groups = drawn(&graph, seed);
            let found = after(&plan(&graph, (workers, 2), Share::Part(1.0), groups));
            assert!(found == replicas, "seed {seed}, {workers} workers");
            for (found, expected) in found.iter().zip(&alone) {
                let apart = (found - expected).abs();
                assert!(apart <= 1e-4 * expected.abs().max(1.0), "{found} for {expected}");
            }
        }
    }
}

#[test]
fn with_any_algorithm_of_the_workers_it_is_that_but_for_rounding() {
    let graph = gpt();
    let alone = plan(&graph, (4, 0), Share::Part(1.0), vec![]);
    let expected = trained(&graph, &alone, RunClock::Wall);
    let algorithms = [
        Algorithm::Ring,
        Algorithm::DoubleBinaryTree,
        "hierarchical:2".parse().expect("an algorithm"),
    ];
    for algorithm in algorithms {
        for plan in plans(&graph, 4, algorithm) {
            let found = trained(&graph, &plan, RunClock::Wall);
            for (found, expected) in found.iter().zip(&expected) {
                let apart = (found - expected).abs();
                assert!(apart <= 1e-4 * expected.abs().max(1.0), "{found} for {expected}");
            }
        }
    }
}

#[test]
fn executed_and_simulated_timelines_are_equal_and_bytes_and_memory_as_predicted() {
    let graph = gpt();
    for plan in plans(&graph, 4, Algorithm::Ring) {
        assert_runs_as_predicted(&graph, &plan, STEPS);
    }
}

#[test]
fn a_run_resumed_with_other_servers_for_other_groups_is_bitwise_the_uninterrupted_one() {
    let graph = gpt();
    let plans = plans(&graph, 2, Algorithm::Direct);
    let mut whole = started(&graph, &plans[0], RunClock::Wall);
    train(&mut whole, 3);
    let folder = tempfile::tempdir().expect("a folder");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    let losses = train(&mut whole, 3);
    let expected = weights(&mut whole);
    for plan in &plans {
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let checkpoint = latest.expect("the checkpoint").0;
        let mut resumed = started(&graph, plan, RunClock::Wall);
        resumed.resume(checkpoint).expect("resumed");
        assert_eq!(train(&mut resumed, 3), losses);
        assert_eq!(weights(&mut resumed), expected);
    }
}
