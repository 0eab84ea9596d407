//! Training with servers that sum gradients: what it is equal to, bytes, memory, checkpoints.

use crate::support::two_nodes::{
    CLUSTER, assert_close, assert_runs_as_predicted, clocks, gpt, started, train, weights,
};
use crate::support::{mesh, serial};
use shardloom_checkpoint::{Meta, Store};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{
    Communication, Mesh, Number, Optimizer, ParameterGroup, Plan, Precision, Ranges, Recompute,
    SendOrder, Share, Summation, Sync, Uniform,
};
use shardloom_program::ClassId;
use shardloom_train::RunClock;

const STEPS: u32 = 6;

fn summed(servers: u32, ranges: Ranges, share: Share) -> Sync {
    let summation = Some(Summation { ranges, share, ..Summation::of(servers) });
    Sync { summation, bucket_bytes: 4000, ..Sync::default() }
}

fn all(servers: u32) -> Sync {
    summed(servers, Ranges::Hashed, Share::default())
}

fn direct() -> Sync {
    Sync { algorithm: Algorithm::Direct, bucket_bytes: 4000, ..Sync::default() }
}

/// So many workers, each with as many micro-batches.
fn uniform(sync: Sync, workers: u32, microbatches: usize, optimizer: Optimizer) -> Uniform {
    let global_batch = if workers == 3 { 12 } else { 16 };
    let mesh = mesh(workers, 1, 1);
    Uniform { sync, mesh, global_batch, microbatches, optimizer, clip_norm: None, ..serial() }
}

fn plan(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", CLUSTER)
}

fn trained(graph: &Graph, uniform: &Uniform, clock: RunClock) -> Vec<f32> {
    let mut trainer = started(graph, &plan(graph, uniform), clock);
    train(&mut trainer, 20);
    weights(&mut trainer)
}

/// The same, sent in the order of the next use.
fn by_next_use(sync: Sync) -> Sync {
    let order = SendOrder::NextUse;
    Sync { summation: sync.summation.map(|it| Summation { order, ..it }), ..sync }
}

/// The same with servers on the workers' devices for the rest.
fn colocated(sync: Sync) -> Sync {
    Sync { summation: sync.summation.map(|it| Summation { colocated: true, ..it }), ..sync }
}

fn ways(servers: u32) -> [Sync; 7] {
    let equal = summed(servers, Ranges::Equal, Share::Part(0.3));
    [
        all(servers),
        summed(servers, Ranges::Equal, Share::default()),
        equal,
        by_next_use(all(servers)),
        by_next_use(equal),
        by_next_use(colocated(equal)),
        colocated(all(0)),
    ]
}

#[test]
fn gradient_descent_is_that_of_one_process_on_the_whole_batch() {
    let graph = gpt();
    for momentum in [0.0, 0.9] {
        let sgd = Optimizer::sgd(momentum);
        for workers in [1, 2, 3, 4, 8] {
            // One process has as many micro-batches as there are workers.
            let alone = uniform(Sync::default(), workers, workers as usize, sgd);
            let alone = Uniform { mesh: Mesh::SINGLE, ..alone };
            let expected = trained(&graph, &alone, RunClock::Wall);
            for servers in [1, 2, 3] {
                for sync in ways(servers) {
                    let of = uniform(sync, workers, 1, sgd);
                    assert_close(&trained(&graph, &of, RunClock::Wall), &expected, 1e-5);
                }
            }
        }
    }
}

/// Weight for weight, wherever pieces are summed: by a server or by a worker, it is in the order of ranks. So it
/// is with clipping, gradient accumulation and either clock.
#[test]
fn training_is_bit_for_bit_that_of_replicas_with_a_direct_all_reduce() {
    let graph = gpt();
    for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
        for (workers, microbatches, clip_norm) in [
            (1, 1, None),
            (2, 1, None),
            (3, 1, Some(0.5)),
            (4, 1, None),
            (8, 1, None),
            (2, 4, Some(0.5)),
            (4, 2, None),
        ] {
            let replicas = uniform(direct(), workers, microbatches, optimizer);
            let replicas = Uniform { clip_norm, ..replicas };
            let expected = trained(&graph, &replicas, RunClock::Wall);
            for servers in [1, 2, 3] {
                for (sync, clock) in ways(servers).into_iter().zip(clocks().into_iter().cycle()) {
                    let found = trained(&graph, &Uniform { sync, ..replicas.clone() }, clock);
                    let what = format!("{workers} workers, {servers} servers, {sync:?}");
                    // Norms are added up in another order.
                    match clip_norm {
                        None => assert!(found == expected, "{what}"),
                        Some(_) => assert_close(&found, &expected, 1e-6),
                    }
                }
            }
        }
    }
}

#[test]
fn optimizers_that_look_at_whole_parameters_train_as_with_replicas() {
    let graph = gpt();
    for optimizer in [
        Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 },
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.1,
        },
    ] {
        let replicas = uniform(direct(), 2, 1, optimizer);
        let expected = trained(&graph, &replicas, RunClock::Wall);
        // Servers cut parameters, which workers update whole.
        for sync in ways(2) {
            let found = trained(&graph, &Uniform { sync, ..replicas.clone() }, RunClock::Wall);
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn gradients_in_half_precision_are_summed_by_servers_as_they_are_sent() {
    let graph = gpt();
    let precision = Precision {
        compute: Number::Bf16,
        gradients: Number::Bf16,
        master: true,
        ..Precision::FP32
    };
    let replicas = Uniform { precision, ..uniform(direct(), 4, 1, Optimizer::default()) };
    let expected = trained(&graph, &replicas, RunClock::Wall);
    for sync in ways(2) {
        let found = trained(&graph, &Uniform { sync, ..replicas.clone() }, RunClock::Wall);
        assert_eq!(found, expected);
    }
}

/// Workers of which each does otherwise what a plan may say for a stage or a pipeline, with groups of parameters
/// and a thread for collectives: all that each sends is of the same elements, in the same order.
#[test]
fn workers_with_unequal_shares_and_recomputation_of_their_own_train_as_without_servers() {
    let graph = gpt();
    let changed = |sync| {
        let mut plan = plan(&graph, &uniform(sync, 2, 4, Optimizer::default()));
        plan.pipeline[0].microbatches = Some(6);
        plan.pipeline[1].microbatches = Some(2);
        plan.pipeline[0].stage[0].recompute = Some(Recompute::Full);
        plan.clip_norm = Some(0.5);
        plan.communication = Communication::Thread;
        let few = ParameterGroup { bucket_bytes: Some(500), ..ParameterGroup::named("*bias") };
        plan.parameters = vec![few];
        plan
    };
    // One process, of which no micro-batch is another's.
    let alone = uniform(Sync::default(), 1, 8, Optimizer::default());
    let alone = plan(&graph, &Uniform { clip_norm: Some(0.5), ..alone });
    let mut alone = started(&graph, &alone, RunClock::Wall);
    let losses = train(&mut alone, STEPS);
    let mut known: Option<Vec<f32>> = None;
    for sync in [ways(1), ways(2)].concat() {
        for clock in clocks() {
            let plan = changed(sync);
            let mut trainer = started(&graph, &plan, clock);
            assert_eq!(shardloom_program::verify::verify(trainer.program()), Ok(()));
            for (loss, expected) in train(&mut trainer, STEPS).iter().zip(&losses) {
                assert!((loss - expected).abs() < 1e-4 * expected, "{loss} for {expected}");
            }
            let found = weights(&mut trainer);
            assert!(*known.get_or_insert_with(|| found.clone()) == found, "{sync:?}");
        }
    }
}

#[test]
fn executed_and_simulated_timelines_are_equal_and_bytes_and_memory_as_predicted() {
    let graph = gpt();
    for sync in [all(2), summed(2, Ranges::Equal, Share::Balanced)] {
        let plan = plan(&graph, &uniform(sync, 4, 2, Optimizer::default()));
        assert_runs_as_predicted(&graph, &plan, STEPS);
    }
}

#[test]
fn a_worker_sends_the_gradients_once_and_servers_what_they_sum_to_every_worker() {
    let graph = gpt();
    let whole = 4 * graph.parameter_count();
    for (workers, servers) in [(1, 1), (2, 1), (4, 2), (4, 3)] {
        for clock in clocks() {
            for sync in [all(servers), summed(servers, Ranges::Equal, Share::default())] {
                let plan = plan(&graph, &uniform(sync, workers, 2, Optimizer::default()));
                let mut trainer = started(&graph, &plan, clock.clone());
                train(&mut trainer, STEPS);
                let sent = trainer.sent_bytes_per_rank();
                let (of_workers, of_servers) = sent.split_at(workers as usize);
                let steps = u64::from(STEPS);
                assert!(of_workers.iter().all(|&bytes| bytes == steps * whole), "{sent:?}");
                let sums: u64 = of_servers.iter().sum();
                assert_eq!(sums, steps * u64::from(workers) * whole);
                let buckets = trainer.program().class(ClassId(0)).buckets.len() as u64;
                for &bytes in of_servers.iter().filter(|_| sync.summation != all(1).summation) {
                    // What comes is as much: 2 n M / S together, but for an element of every bucket.
                    let equal = steps * u64::from(workers) * whole / u64::from(servers);
                    let rounding = steps * u64::from(workers) * 4 * buckets;
                    let is_equal = sync.summation.is_some_and(|it| it.ranges == Ranges::Equal);
                    assert!(!is_equal || bytes.abs_diff(equal) <= rounding, "{sent:?}");
                }
            }
        }
    }
}

#[test]
fn a_resumed_run_with_another_number_of_servers_or_none_is_bitwise_the_uninterrupted_one() {
    let graph = gpt();
    let of = |sync| uniform(sync, 2, 2, Optimizer::default());
    let mut whole = started(&graph, &plan(&graph, &of(all(2))), RunClock::Wall);
    train(&mut whole, 3);
    let folder = tempfile::tempdir().expect("a folder");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    let losses = train(&mut whole, 3);
    let expected = weights(&mut whole);
    let others = [all(2), all(1), all(3), summed(3, Ranges::Equal, Share::Part(0.5)), direct()];
    for sync in others {
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let checkpoint = latest.expect("the checkpoint").0;
        let mut resumed = started(&graph, &plan(&graph, &of(sync)), RunClock::Wall);
        resumed.resume(checkpoint).expect("resumed");
        let found = train(&mut resumed, 3);
        if sync.summation.is_some() {
            assert_eq!(found, losses);
        }
        assert_eq!(weights(&mut resumed), expected, "{sync:?}");
    }
}
