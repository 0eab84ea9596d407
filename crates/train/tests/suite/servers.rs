//! Training with parameter servers: what no staleness is equal to, the bound, repeated answers, bytes, memory,
//! checkpoints.

use crate::support::two_nodes::{
    CLUSTER, assert_close, assert_runs_as_predicted, clocks, cluster, gpt, started, train, weights,
};
use crate::support::{graph, mesh, serial};
use shardloom_checkpoint::{Meta, Store};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Optimizer, Plan, Push, Servers, Staleness, Sync, Uniform};
use shardloom_program::ClassId;
use shardloom_train::RunClock;

const STEPS: u32 = 6;

fn unclipped(optimizer: Optimizer) -> Uniform {
    Uniform { clip_norm: None, optimizer, microbatches: 4, ..serial() }
}

/// So many workers and servers, on a step of four micro-batches.
fn served(graph: &Graph, workers: u32, servers: Servers, optimizer: Optimizer) -> Plan {
    let sync = Sync { servers: Some(servers), bucket_bytes: 4000, ..Sync::default() };
    let plain = unclipped(optimizer);
    let (mesh, microbatches) = (mesh(workers, 1, 1), plain.microbatches / workers as usize);
    let uniform = Uniform { sync, mesh, microbatches, ..plain };
    uniform.plan(graph, "model", CLUSTER)
}

/// So many workers, or replicas, on a micro-batch each.
fn trained(
    graph: &Graph,
    (sync, mesh): (Sync, Mesh),
    (workers, optimizer): (u32, Optimizer),
    clock: RunClock,
) -> (Vec<f64>, Vec<f32>) {
    let samples = if workers == 3 { 12 } else { 16 };
    let microbatches = if mesh == Mesh::SINGLE { workers as usize } else { 1 };
    let batch = Uniform { global_batch: samples, microbatches, ..unclipped(optimizer) };
    let plan = Uniform { sync, mesh, ..batch }.plan(graph, "model", CLUSTER);
    let mut trainer = started(graph, &plan, clock);
    (train(&mut trainer, 20), weights(&mut trainer))
}

fn synchronous(count: u32) -> Sync {
    let servers = Some(Servers::of(count, Staleness::SYNCHRONOUS));
    Sync { servers, bucket_bytes: 4000, ..Sync::default() }
}

/// Twenty steps with servers, and on one rank with the same micro-batches.
fn assert_as_one_process(graph: &Graph, optimizer: Optimizer) {
    for workers in [1, 2, 3, 4, 8] {
        let of = (workers, optimizer);
        let alone = (Sync::default(), Mesh::SINGLE);
        let expected = trained(graph, alone, of, RunClock::Wall);
        for (count, clock) in [1, 3].into_iter().flat_map(|count| clocks().map(|it| (count, it))) {
            let found = trained(graph, (synchronous(count), mesh(workers, 1, 1)), of, clock);
            for (loss, expected) in found.0.iter().zip(&expected.0) {
                assert!((loss - expected).abs() < 1e-5 * expected, "{loss} for {expected}");
            }
            assert_close(&found.1, &expected.1, 1e-5);
        }
    }
}

#[test]
fn without_staleness_gradient_descent_is_that_of_one_process() {
    for momentum in [0.0, 0.9] {
        assert_as_one_process(&gpt(), Optimizer::sgd(momentum));
    }
}

/// Without the biases of keys, whose gradients are zero but for rounding, which AdamW makes steps as large as
/// others of.
#[test]
fn without_staleness_adamw_is_that_of_one_process() {
    let llama = graph("llama:layers=2,hidden=16,heads=2,ffn=32,seq=8,vocab=32");
    assert_as_one_process(&llama, Optimizer::default());
}

#[test]
fn without_staleness_adamw_is_data_parallelism_that_adds_in_the_order_of_ranks() {
    let graph = gpt();
    for workers in [2, 3, 4, 8] {
        let of = (workers, Optimizer::default());
        let direct = Sync { algorithm: Algorithm::Direct, ..Sync::default() };
        let replicas = (direct, mesh(workers, 1, 1));
        let expected = trained(&graph, replicas, of, RunClock::Wall);
        let found = trained(&graph, (synchronous(2), replicas.1), of, RunClock::Wall);
        assert_eq!(found.1, expected.1);
    }
}

#[test]
fn one_worker_and_its_servers_train_as_one_rank_bit_for_bit() {
    let graph = gpt();
    // Of the last two a parameter is never cut between servers, since they look at all of it.
    let optimizers = [
        Optimizer::default(),
        Optimizer::sgd(0.9),
        Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 },
        Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.1,
        },
    ];
    for optimizer in optimizers {
        let mut alone =
            started(&graph, &unclipped(optimizer).plan(&graph, "m", "c"), RunClock::Wall);
        let expected = (train(&mut alone, STEPS), weights(&mut alone));
        for clock in clocks() {
            let plan = served(&graph, 1, Servers::of(2, Staleness::Within(1)), optimizer);
            let mut trainer = started(&graph, &plan, clock);
            assert_eq!((train(&mut trainer, STEPS), weights(&mut trainer)), expected);
        }
    }
}

/// How many steps of some worker weights lack that a worker gets for a step, counted from answers: a server
/// updates with a client's gradients and sends it the weights in turn.
fn staleness(answers: &[u32], workers: usize, steps: i64) -> i64 {
    let (mut applied, mut sent) = (vec![0; workers], vec![0; workers]);
    let mut most = 0;
    for &client in answers {
        let client = client as usize;
        if applied[client] == sent[client] {
            applied[client] += 1;
            continue;
        }
        sent[client] += 1;
        let lacks = sent[client] - applied.iter().min().expect("workers");
        assert!(sent[client] < steps || lacks == 0, "a row ends with all: {answers:?}");
        most = most.max(lacks);
    }
    assert!(applied.iter().chain(&sent).all(|&count| count == steps), "{answers:?}");
    most
}

#[test]
fn weights_never_lack_more_steps_than_the_bound_allows() {
    let graph = gpt();
    for bound in [0, 1, 2] {
        for clock in clocks() {
            let servers = Servers::of(2, Staleness::Within(bound));
            let plan = served(&graph, 4, servers, Optimizer::default());
            let mut trainer = started(&graph, &plan, clock);
            train(&mut trainer, STEPS);
            for answers in &trainer.answers()[4..] {
                let found = staleness(answers, 4, i64::from(STEPS));
                assert!(found <= i64::from(bound), "{found} of {bound}");
            }
            assert!(trainer.answers()[..4].iter().all(Vec::is_empty));
        }
    }
}

/// The order in which a server updates first with all workers' gradients of a step, the given one first.
fn in_turn(workers: u32, steps: u32, first: u32) -> Vec<u32> {
    let round = || (0..workers).map(|it| (it + first) % workers);
    (0..steps).flat_map(|_| round().chain(round())).collect()
}

#[test]
fn a_run_with_given_answers_is_bitwise_the_one_that_wrote_them() {
    let graph = gpt();
    let plan = served(&graph, 4, Servers::of(1, Staleness::Within(2)), Optimizer::default());
    let mut wrote = started(&graph, &plan, RunClock::Wall);
    let losses = train(&mut wrote, STEPS);
    let answers = wrote.answers().to_vec();
    let expected = weights(&mut wrote);
    for _ in 0..2 {
        let mut repeats = started(&graph, &plan, RunClock::Wall);
        repeats.repeat_answers(answers.clone()).expect("threads");
        assert_eq!(train(&mut repeats, STEPS), losses);
        assert_eq!(weights(&mut repeats), expected);
        assert_eq!(repeats.answers(), answers);
    }
    // The order makes a difference, so that the log is needed.
    let ordered = [0, 1].map(|first| {
        let mut trainer = started(&graph, &plan, RunClock::Wall);
        let mut answers = vec![vec![]; 4];
        answers.push(in_turn(4, STEPS, first));
        trainer.repeat_answers(answers).expect("threads");
        train(&mut trainer, STEPS);
        weights(&mut trainer)
    });
    assert_ne!(ordered[0], ordered[1]);
}

#[test]
fn answers_that_break_the_bound_are_refused() {
    let graph = gpt();
    let plan = served(&graph, 2, Servers::of(1, Staleness::Within(0)), Optimizer::default());
    // The first worker's gradients, and then its weights before the other has come; and the second's first, which
    // are added after the first's.
    for log in [vec![0, 0, 1, 1], vec![1, 0, 0, 1]] {
        let mut trainer = started(&graph, &plan, RunClock::Wall);
        trainer.repeat_answers(vec![vec![], vec![], log]).expect("threads");
        let error = trainer.train_steps(1).expect_err("the bound forbids it").to_string();
        assert!(error.contains("answers"), "{error}");
    }
    // Of every rank, and of no other.
    for ranks in [0, 2, 4] {
        let mut trainer = started(&graph, &plan, RunClock::Wall);
        let error = trainer.repeat_answers(vec![vec![]; ranks]).expect_err("there are 3 ranks");
        assert!(error.to_string().contains(&format!("answers of {ranks} ranks")), "{error}");
    }
    let plan = served(&graph, 2, Servers::of(1, Staleness::Within(0)), Optimizer::default());
    let mut virtually = started(&graph, &plan, RunClock::Virtual(cluster()));
    assert!(virtually.repeat_answers(vec![vec![]; 3]).is_err());
}

#[test]
fn executed_and_simulated_timelines_are_equal_and_bytes_and_memory_as_predicted() {
    let graph = gpt();
    let plan = served(&graph, 4, Servers::of(2, Staleness::Within(1)), Optimizer::default());
    assert_runs_as_predicted(&graph, &plan, STEPS);
    // A worker sends and gets every parameter once a step, four bytes each.
    let whole: usize = graph
        .parameters()
        .map(|(_, value)| shardloom_graph::Extents::global(&graph, 1).elements(&value.axes))
        .sum();
    let trainer = started(&graph, &plan, RunClock::Wall);
    assert_eq!(trainer.program().sent_bytes(ClassId(0), 0), 4 * whole as u64);
}

#[test]
fn twice_the_parameters_go_between_each_worker_and_the_servers_in_a_step() {
    let graph = gpt();
    let whole = 4 * graph.parameter_count();
    for staleness in [Staleness::Within(0), Staleness::Within(2), Staleness::Unbounded] {
        for (workers, count) in [(1, 1), (2, 1), (4, 1), (4, 3)] {
            for clock in clocks() {
                let servers = Servers::of(count, staleness);
                let plan = served(&graph, workers, servers, Optimizer::sgd(0.0));
                let mut trainer = started(&graph, &plan, clock);
                train(&mut trainer, STEPS);
                let sent = trainer.sent_bytes_per_rank();
                let (of_workers, of_servers) = sent.split_at(workers as usize);
                let steps = u64::from(STEPS);
                assert!(of_workers.iter().all(|&bytes| bytes == steps * whole), "{sent:?}");
                let pulled: u64 = of_servers.iter().sum();
                assert_eq!(pulled, steps * u64::from(workers) * whole);
                let total: u64 = sent.iter().sum();
                assert_eq!(total, steps * 2 * u64::from(workers) * whole);
                for (server, &bytes) in of_servers.iter().enumerate() {
                    let class = trainer.program().class(ClassId(workers + server as u32));
                    let held: usize = class.buckets.iter().map(|bucket| bucket.elements).sum();
                    assert_eq!(bytes, steps * u64::from(workers) * 4 * held as u64);
                }
            }
        }
    }
}

#[test]
fn a_resumed_run_with_the_same_answers_is_bitwise_the_uninterrupted_one() {
    for (push, staleness) in
        [(Push::Gradients, 1), (Push::Deltas, 0), (Push::Deltas, 1), (Push::Deltas, 2)]
    {
        for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
            let servers = Servers { push, ..Servers::of(2, Staleness::Within(staleness)) };
            assert_resumes(&gpt(), servers, optimizer);
        }
    }
}

fn assert_resumes(graph: &Graph, servers: Servers, optimizer: Optimizer) {
    let plan = served(graph, 2, servers, optimizer);
    let mut whole = started(graph, &plan, RunClock::Wall);
    train(&mut whole, 3);
    let folder = tempfile::tempdir().expect("a folder");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    let losses = train(&mut whole, 3);
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    let checkpoint = latest.expect("the checkpoint").0;
    let mut resumed = started(graph, &plan, RunClock::Wall);
    resumed.resume(checkpoint).expect("resumed");
    resumed.repeat_answers(whole.answers().to_vec()).expect("threads");
    assert_eq!(train(&mut resumed, 3), losses);
    assert_eq!(weights(&mut resumed), weights(&mut whole));
}

#[test]
fn what_servers_have_saved_goes_on_under_another_plan_and_back() {
    let graph = gpt();
    let sgd = Optimizer::sgd(0.0);
    let alone = unclipped(sgd).plan(&graph, "m", "c");
    let mut whole = started(&graph, &alone, RunClock::Wall);
    train(&mut whole, 4);
    let plan = served(&graph, 2, Servers::of(1, Staleness::Within(0)), sgd);
    let mut trainer = started(&graph, &plan, RunClock::Wall);
    train(&mut trainer, 2);
    trainer.replan(&alone, 1).expect("replanned");
    train(&mut trainer, 1);
    trainer.replan(&plan, plan.device_count()).expect("replanned");
    train(&mut trainer, 1);
    assert_close(&weights(&mut trainer), &weights(&mut whole), 1e-5);
}

#[test]
fn evaluation_is_with_the_weights_that_all_gradients_have_changed() {
    let graph = gpt();
    let plan = served(&graph, 4, Servers::of(1, Staleness::Within(2)), Optimizer::sgd(0.0));
    let mut trainer = started(&graph, &plan, RunClock::Wall);
    train(&mut trainer, 3);
    let found = trainer.validate(8).expect("it runs").expect("samples");
    let weights = trainer.weights().expect("weights");
    let alone = unclipped(Optimizer::sgd(0.0)).plan(&graph, "m", "c");
    let mut serial = started(&graph, &alone, RunClock::Wall);
    serial.set_weights(weights).expect("weights");
    let expected = serial.validate(8).expect("it runs").expect("samples");
    assert!((found - expected).abs() < 1e-6 * expected, "{found} for {expected}");
}
