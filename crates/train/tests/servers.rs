//! Training with parameter servers: what no staleness is equal to, the bound, repeated answers, bytes, memory,
//! checkpoints.

mod support;

use std::collections::BTreeMap;

use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Plan, Servers, Sync, Uniform};
use shardloom_program::{ClassId, Rank};
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{RunClock, Trainer};
use support::{Samples, graph, mesh, serial, settings, trainer_with, trainer_with_clock};

const STEPS: u32 = 6;

fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32,tied=true")
}

fn unclipped(optimizer: Optimizer) -> Uniform {
    Uniform { clip_norm: None, optimizer, microbatches: 4, ..serial() }
}

/// So many workers and servers, on a step of four micro-batches.
fn served(graph: &Graph, workers: u32, servers: Servers, optimizer: Optimizer) -> Plan {
    let sync = Sync { servers: Some(servers), bucket_bytes: 4000, ..Sync::default() };
    let plain = unclipped(optimizer);
    let (mesh, microbatches) = (mesh(workers, 1, 1), plain.microbatches / workers as usize);
    let uniform = Uniform { sync, mesh, microbatches, ..plain };
    uniform.plan(graph, "model", "a100-40g:8")
}

fn started(graph: &Graph, plan: &Plan, clock: RunClock) -> Trainer {
    trainer_with_clock(graph, plan, Samples::patterned(64, 8, 32), 0.05, clock)
}

fn cluster() -> Cluster {
    Cluster::parse("a100-40g:8").expect("a preset")
}

fn clocks() -> [RunClock; 2] {
    [RunClock::Wall, RunClock::Virtual(cluster())]
}

fn train(trainer: &mut Trainer, steps: u32) -> Vec<f64> {
    let steps = trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    steps.into_iter().map(|step| step.loss).collect()
}

fn weights(trainer: &mut Trainer) -> Vec<f32> {
    trainer.weights().expect("weights").into_values().flatten().collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance * expected.abs().max(1.0), "{found} for {expected}");
    }
}

#[test]
fn without_staleness_plain_gradient_descent_is_that_of_the_serial_run() {
    let graph = gpt();
    let sgd = Optimizer::sgd(0.0);
    let mut alone = started(&graph, &unclipped(sgd).plan(&graph, "m", "c"), RunClock::Wall);
    let expected = (train(&mut alone, STEPS), weights(&mut alone));
    for (workers, count) in [(2, 1), (4, 1), (2, 3)] {
        for clock in clocks() {
            let plan = served(&graph, workers, Servers { count, staleness: 0 }, sgd);
            let mut trainer = started(&graph, &plan, clock);
            let losses = train(&mut trainer, STEPS);
            for (loss, expected) in losses.iter().zip(&expected.0) {
                assert!((loss - expected).abs() < 1e-5 * expected, "{loss} for {expected}");
            }
            assert_close(&weights(&mut trainer), &expected.1, 1e-5);
        }
    }
}

#[test]
fn one_worker_and_its_servers_train_as_one_rank_bit_for_bit() {
    let graph = gpt();
    for optimizer in [Optimizer::default(), Optimizer::sgd(0.9)] {
        let mut alone =
            started(&graph, &unclipped(optimizer).plan(&graph, "m", "c"), RunClock::Wall);
        let expected = (train(&mut alone, STEPS), weights(&mut alone));
        for clock in clocks() {
            let plan = served(&graph, 1, Servers { count: 2, staleness: 1 }, optimizer);
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
            let servers = Servers { count: 2, staleness: bound };
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
    let plan = served(&graph, 4, Servers { count: 1, staleness: 2 }, Optimizer::default());
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
    let plan = served(&graph, 2, Servers { count: 1, staleness: 0 }, Optimizer::default());
    let mut trainer = started(&graph, &plan, RunClock::Wall);
    // The first worker's gradients, and then its weights before the other has come.
    let answers = vec![vec![], vec![], vec![0, 0, 1, 1]];
    trainer.repeat_answers(answers).expect("threads");
    let error = trainer.train_steps(1).expect_err("the bound forbids it").to_string();
    assert!(error.contains("answers"), "{error}");
    // Of every rank, and of no other.
    for ranks in [0, 2, 4] {
        let mut trainer = started(&graph, &plan, RunClock::Wall);
        let error = trainer.repeat_answers(vec![vec![]; ranks]).expect_err("there are 3 ranks");
        assert!(error.to_string().contains(&format!("answers of {ranks} ranks")), "{error}");
    }
    let plan = served(&graph, 2, Servers { count: 1, staleness: 0 }, Optimizer::default());
    let mut virtually = started(&graph, &plan, RunClock::Virtual(cluster()));
    assert!(virtually.repeat_answers(vec![vec![]; 3]).is_err());
}

#[test]
fn executed_and_simulated_timelines_are_equal_and_bytes_and_memory_as_predicted() {
    let graph = gpt();
    let plan = served(&graph, 4, Servers { count: 2, staleness: 1 }, Optimizer::default());
    let cluster = cluster();
    let mut trainer = started(&graph, &plan, RunClock::Virtual(cluster.clone()));
    let (_, executed) = trainer.train_steps_recorded(STEPS).expect("steps");
    let mut recorded = Recorded::new(trainer.recording().expect("the virtual clock records"));
    let options = Options { steps: STEPS, folded: false };
    let simulated = run(trainer.program(), &cluster, options, &mut recorded).expect("it runs");
    assert_eq!(simulated.timeline, executed);
    let mut threads = started(&graph, &plan, RunClock::Wall);
    train(&mut threads, STEPS);
    for trainer in [&trainer, &threads] {
        let program = trainer.program();
        for rank in 0..program.ranks() {
            let (class, position) = program.locate(Rank(rank as u32));
            let sent = u64::from(STEPS) * program.sent_bytes(class, position);
            assert_eq!(trainer.sent_bytes_per_rank()[rank], sent, "rank {rank}");
            let peak = program.class(class).memory_use(program, position).peak_bytes;
            assert_eq!(trainer.peak_bytes_per_rank()[rank], peak, "rank {rank}");
        }
        assert_eq!(trainer.system_allocations(), 0);
    }
    // A worker sends and gets every parameter once a step, four bytes each.
    let whole: usize = graph
        .parameters()
        .map(|(_, value)| shardloom_graph::Extents::global(&graph, 1).elements(&value.axes))
        .sum();
    assert_eq!(trainer.program().sent_bytes(ClassId(0), 0), 4 * whole as u64);
}

#[test]
fn a_resumed_run_with_the_same_answers_is_bitwise_the_uninterrupted_one() {
    let graph = gpt();
    let plan = served(&graph, 2, Servers { count: 2, staleness: 1 }, Optimizer::default());
    let mut whole = started(&graph, &plan, RunClock::Wall);
    train(&mut whole, 3);
    let folder = tempfile::tempdir().expect("a folder");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    let losses = train(&mut whole, 3);
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    let checkpoint = latest.expect("the checkpoint").0;
    let mut resumed = started(&graph, &plan, RunClock::Wall);
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
    let plan = served(&graph, 2, Servers { count: 1, staleness: 0 }, sgd);
    let mut trainer = started(&graph, &plan, RunClock::Wall);
    train(&mut trainer, 2);
    trainer.replan(&alone, 1).expect("replanned");
    train(&mut trainer, 1);
    trainer.replan(&plan, plan.device_count()).expect("replanned");
    train(&mut trainer, 1);
    assert_close(&weights(&mut trainer), &weights(&mut whole), 1e-5);
}

/// The order in which each worker gets as far ahead of the last as the bound allows.
fn as_stale_as_allowed(workers: usize, bound: i64, steps: i64) -> Vec<u32> {
    let (mut applied, mut sent) = (vec![0; workers], vec![0; workers]);
    let mut answers = vec![];
    loop {
        let last = *applied.iter().min().expect("workers");
        let may = |client: &usize| {
            let (applied, sent) = (applied[*client], sent[*client]);
            let bound = if applied == steps { 0 } else { bound };
            sent < steps && (applied == sent || applied - last <= bound)
        };
        let Some(client) = (0..workers).find(may) else { break answers };
        let count = if applied[client] == sent[client] { &mut applied } else { &mut sent };
        count[client] += 1;
        answers.push(client as u32);
    }
}

/// Weights by name.
type Weights = BTreeMap<String, Vec<f32>>;

/// A plain loop over answers: what each step's loss comes to, and the weights in the end. Gradients are those
/// of a run of its own for each worker, at a rate of its own, which is given weights before each micro-batch
/// and asked for them afterwards.
fn plain_loop(
    graph: &Graph,
    answers: &[u32],
    workers: usize,
    rates: &LearningRate,
) -> (Vec<f64>, Weights) {
    const OWN_RATE: f32 = 0.05;
    let alone = Uniform { global_batch: 2, microbatches: 1, ..unclipped(Optimizer::sgd(0.0)) };
    let alone = alone.plan(graph, "m", "c");
    let mut runs: Vec<Trainer> =
        (0..workers).map(|_| started(graph, &alone, RunClock::Wall)).collect();
    let mut held = runs[0].weights().expect("weights");
    let mut sent: Vec<Option<Weights>> = vec![Some(held.clone()); workers];
    let mut steps = vec![0; workers];
    let mut losses = vec![];
    for &client in answers {
        let (client, run) = (client as usize, &mut runs[client as usize]);
        let Some(given) = sent[client].take() else {
            sent[client] = Some(held.clone());
            continue;
        };
        let step: usize = steps[client];
        // The micro-batches before its own are other workers'.
        let passed = step * workers + client - run.next_step() as usize;
        if passed > 0 {
            train(run, passed as u32);
        }
        run.set_weights(given.clone()).expect("weights");
        let loss = train(run, 1)[0];
        let updated = run.weights().expect("weights");
        for (name, held) in &mut held {
            for ((held, given), updated) in held.iter_mut().zip(&given[name]).zip(&updated[name]) {
                let gradient = (given - updated) / OWN_RATE;
                *held -= rates.at(step as u64) as f32 * gradient / workers as f32;
            }
        }
        losses.resize(losses.len().max(step + 1), 0.0);
        losses[step] += loss / workers as f64;
        steps[client] += 1;
    }
    (losses, held)
}

#[test]
fn with_given_answers_training_is_the_plain_loop_over_them() {
    let (graph, sgd) = (gpt(), Optimizer::sgd(0.0));
    let steps = u64::from(STEPS);
    let curve = Curve::Cosine { peak: 0.1, warmup_steps: 2, total_steps: steps, floor: 0.01 };
    let rates = LearningRate::new(curve).expect("a positive rate");
    let mut found = vec![];
    for bound in [0, 1, 3] {
        let answers = as_stale_as_allowed(4, bound, i64::from(STEPS));
        assert_eq!(staleness(&answers, 4, i64::from(STEPS)), bound);
        let servers = Servers { count: 1, staleness: bound as u32 };
        let plan = served(&graph, 4, servers, sgd);
        let samples = Samples::patterned(64, 8, 32);
        let mut trainer = trainer_with(&graph, &plan, samples, settings(curve));
        let by_rank = vec![vec![], vec![], vec![], vec![], answers.clone()];
        trainer.repeat_answers(by_rank).expect("threads");
        let losses = train(&mut trainer, STEPS);
        let expected = plain_loop(&graph, &answers, 4, &rates);
        for (loss, expected) in losses.iter().zip(&expected.0) {
            assert!((loss - expected).abs() < 1e-5 * expected, "{loss} for {expected}");
        }
        let expected: Vec<f32> = expected.1.into_values().flatten().collect();
        assert_close(&weights(&mut trainer), &expected, 1e-5);
        found.push(losses);
    }
    assert!(found[0] != found[1] && found[1] != found[2], "staleness shows");
}

#[test]
fn evaluation_is_with_the_weights_that_all_gradients_have_changed() {
    let graph = gpt();
    let plan = served(&graph, 4, Servers { count: 1, staleness: 2 }, Optimizer::sgd(0.0));
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
