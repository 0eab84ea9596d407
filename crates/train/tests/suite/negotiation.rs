//! Training with reductions whose order replicas agree on while running: what it is equal to, bytes, memory,
//! checkpoints, answers that are repeated, processes.

use crate::support::processes::led;
use crate::support::two_nodes::{
    CLUSTER, assert_close, clocks, cluster, data, gpt, started, train, weights,
};
use crate::support::{mesh, serial, settings};
use shardloom_checkpoint::{Meta, Store};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{
    Compression, Negotiation, Number, Optimizer, Plan, ScheduleKind, Sync, Uniform,
};
use shardloom_program::{ClassId, Content, Queue, Rank};
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, RunClock, Settings, Trainer};

const STEPS: u32 = 6;

/// Bytes up to which some parameters of the model are reduced as one, and others are not.
const SOME: usize = 3000;

fn negotiated(algorithm: Algorithm, fusion_bytes: usize) -> Sync {
    let negotiation = Some(Negotiation { cycle_seconds: 1e-4, fusion_bytes });
    Sync { negotiation, algorithm, ..Sync::default() }
}

fn fixed(algorithm: Algorithm) -> Sync {
    Sync { algorithm, ..Sync::default() }
}

/// So many replicas, each with as many micro-batches.
fn uniform(sync: Sync, replicas: u32, microbatches: usize, optimizer: Optimizer) -> Uniform {
    let global_batch = if replicas == 3 { 12 } else { 16 };
    let mesh = mesh(replicas, 1, 1);
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

/// The parts of a direct all-reduce are added in the order of ranks, whatever lies beside them.
#[test]
fn training_is_bit_for_bit_data_parallelism_with_a_direct_all_reduce() {
    let graph = gpt();
    for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
        for (replicas, microbatches, clip_norm) in
            [(1, 1, None), (2, 1, None), (3, 2, Some(0.5)), (4, 1, None), (8, 2, None)]
        {
            let common = uniform(fixed(Algorithm::Direct), replicas, microbatches, optimizer);
            let common = Uniform { clip_norm, ..common };
            let expected = trained(&graph, &common, RunClock::Wall);
            for (fusion_bytes, clock) in
                [0, SOME, 1 << 27].into_iter().zip(clocks().into_iter().cycle())
            {
                let sync = negotiated(Algorithm::Direct, fusion_bytes);
                let found = trained(&graph, &Uniform { sync, ..common.clone() }, clock);
                match clip_norm {
                    None => assert!(found == expected, "{replicas} replicas, {fusion_bytes} bytes"),
                    // Norms are added up bucket by bucket.
                    Some(_) => assert_close(&found, &expected, 1e-6),
                }
            }
        }
    }
}

#[test]
fn with_other_algorithms_training_is_data_parallelism_but_for_rounding() {
    let graph = gpt();
    let (outer, inner) = (Algorithm::Ring, "hierarchical:2".parse().expect("a name"));
    for (algorithm, replicas) in
        [(outer, 2), (outer, 3), (outer, 8), (inner, 4), (Algorithm::HalvingDoubling, 4)]
    {
        for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
            let common = uniform(fixed(algorithm), replicas, 1, optimizer);
            let of = |uniform: &Uniform, clock| {
                let mut trainer = started(&graph, &plan(&graph, uniform), clock);
                let losses: Vec<f32> =
                    train(&mut trainer, STEPS).into_iter().map(|loss| loss as f32).collect();
                (losses, weights(&mut trainer))
            };
            let (losses, expected) = of(&common, RunClock::Wall);
            for (fusion_bytes, clock) in [SOME, 1 << 27].into_iter().zip(clocks()) {
                let sync = negotiated(algorithm, fusion_bytes);
                let found = of(&Uniform { sync, ..common.clone() }, clock);
                assert_close(&found.0, &losses, 1e-5);
                // AdamW makes whole updates of gradients that are nothing but rounding, as of biases of keys.
                if optimizer == Optimizer::sgd(0.9) {
                    assert_close(&found.1, &expected, 1e-5);
                }
            }
        }
    }
}

#[test]
fn replicas_may_be_split_and_their_gradients_rounded() {
    let graph = gpt();
    let compression = Compression::Rounded { to: Number::Bf16, feedback: true };
    let direct = fixed(Algorithm::Direct);
    for (pp, mesh, schedule, compression) in [
        (1, mesh(2, 1, 2), ScheduleKind::Afab, Compression::None),
        (1, mesh(2, 2, 1), ScheduleKind::Afab, Compression::None),
        (2, mesh(2, 1, 1), ScheduleKind::OneForwardOneBackward, Compression::None),
        (2, mesh(2, 1, 2), ScheduleKind::ZeroBubbleH1, Compression::None),
        (1, mesh(4, 1, 1), ScheduleKind::Afab, compression),
    ] {
        let common = uniform(Sync { compression, ..direct }, 1, 2, Optimizer::default());
        let common = Uniform { pp, mesh, schedule, ..common };
        let expected = trained(&graph, &common, RunClock::Wall);
        for clock in clocks() {
            let negotiation = negotiated(Algorithm::Direct, SOME).negotiation;
            let sync = Sync { negotiation, ..common.sync };
            let found = trained(&graph, &Uniform { sync, ..common.clone() }, clock);
            assert!(found == expected, "{pp} stages of {mesh}, {compression}");
        }
    }
}

/// The bytes that a rank sends in a step to reduce gradients, and in a cycle to negotiate.
fn bytes(trainer: &Trainer, rank: u32) -> (u64, u64) {
    let program = trainer.program();
    let (id, position) = program.locate(Rank(rank));
    let queues = program.class(id).instructions().map(|(_, _, it)| it.queue);
    let negotiated = queues.filter_map(|queue| match queue {
        Queue::Negotiated(number) => Some(number),
        _ => None,
    });
    let communicator = negotiated.max().expect("requests");
    (program.sent_bytes(id, position), program.told_bytes(id, position, communicator))
}

#[test]
fn replicas_send_their_gradients_by_the_algorithms_formula_and_the_rest_to_negotiate() {
    let graph = gpt();
    let gradients = 4 * graph.parameter_count();
    for (replicas, fusion_bytes) in [(2, SOME), (3, 1 << 27), (4, 0)] {
        for clock in clocks() {
            let sync = negotiated(Algorithm::Ring, fusion_bytes);
            let plan = plan(&graph, &uniform(sync, replicas, 1, Optimizer::default()));
            let mut trainer = started(&graph, &plan, clock);
            train(&mut trainer, STEPS);
            // Of the whole buffer each sends 2 (n - 1) / n, whatever of it is reduced as one: all together
            // exactly.
            let ranks = 0..replicas;
            let formula: u64 = ranks.clone().map(|rank| bytes(&trainer, rank).0).sum();
            assert_eq!(formula, 2 * u64::from(replicas - 1) * gradients);
            let told: u64 = ranks.map(|rank| bytes(&trainer, rank).1).sum();
            // A word for each request, to the first replica and back.
            let requests = graph.parameters().count() as u64;
            assert_eq!(told, 8 * u64::from(replicas - 1) * requests);
            let sent: u64 = trainer.sent_bytes_per_rank().iter().sum();
            let rest = sent - u64::from(STEPS) * formula;
            // Whole cycles; with at least one in every step, and no more lists than requests.
            assert_eq!(rest % told, 0, "{replicas} replicas, {fusion_bytes} bytes");
            assert!(rest / told >= u64::from(STEPS));
        }
    }
}

#[test]
fn each_rank_holds_what_the_program_says_to_the_byte() {
    let graph = gpt();
    for (replicas, fusion_bytes) in [(2, 0), (2, SOME), (4, 1 << 27)] {
        for clock in clocks() {
            let sync = negotiated(Algorithm::Direct, fusion_bytes);
            let plan = plan(&graph, &uniform(sync, replicas, 2, Optimizer::default()));
            let mut trainer = started(&graph, &plan, clock);
            train(&mut trainer, 3);
            let program = trainer.program();
            let class = program.class(ClassId(0));
            let expected = class.memory_use(program, 0).peak_bytes;
            assert!(trainer.peak_bytes_per_rank().iter().all(|&peak| peak == expected));
            let held = class.lasting().filter(|(_, it)| it.content == Content::Negotiation);
            let held: u64 = held.map(|(id, _)| class.tensor_bytes(id, 0)).sum();
            // A number for each parameter, and room for as much as is reduced as one.
            let requests = 4 * class.params.len() as u64;
            let all = 4 * graph.parameter_count();
            assert_eq!(held, requests + all.min(fusion_bytes as u64) / 4 * 4);
        }
    }
}

#[test]
fn a_resumed_run_with_fixed_order_or_negotiated_is_bitwise_the_uninterrupted_one() {
    let graph = gpt();
    let of = |sync| uniform(sync, 2, 2, Optimizer::default());
    let sync = negotiated(Algorithm::Direct, SOME);
    let mut whole = started(&graph, &plan(&graph, &of(sync)), RunClock::Wall);
    train(&mut whole, 3);
    let folder = tempfile::tempdir().expect("a folder");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    let losses = train(&mut whole, 3);
    let expected = weights(&mut whole);
    for sync in [sync, negotiated(Algorithm::Direct, 0), fixed(Algorithm::Direct)] {
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let mut resumed = started(&graph, &plan(&graph, &of(sync)), RunClock::Wall);
        resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
        assert_eq!(train(&mut resumed, 3), losses);
        assert_eq!(weights(&mut resumed), expected, "{sync:?}");
    }
}

/// The lists that the first rank answered: the requests of each.
fn lists(answers: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut lists = vec![];
    let mut rest = &answers[0][..];
    while let [_, length, more @ ..] = rest {
        let (list, left) = more.split_at(*length as usize);
        lists.push(list.to_vec());
        rest = left;
    }
    lists
}

#[test]
fn a_run_with_the_answers_of_another_is_bitwise_that_run() {
    let graph = gpt();
    let sync = negotiated(Algorithm::Ring, SOME);
    let plan = plan(&graph, &uniform(sync, 3, 1, Optimizer::sgd(0.9)));
    let mut first = started(&graph, &plan, RunClock::Wall);
    train(&mut first, STEPS);
    let answers = first.answers().to_vec();
    assert!(answers[1..].iter().all(Vec::is_empty), "one rank answers");
    let requests = first.program().class(ClassId(0)).params.len();
    let mut times = vec![0; requests];
    lists(&answers).iter().flatten().for_each(|&request| times[request as usize] += 1);
    assert_eq!(times, vec![STEPS; requests]);
    // Every request by itself, the last parameter of the model first: answers that no run gives by itself.
    let alone = |_| (0..requests as u32).rev().flat_map(|request| [lists_of(&answers), 1, request]);
    let alone = vec![(0..STEPS).flat_map(alone).collect(), vec![], vec![]];
    let mut runs = vec![];
    for answers in [answers, alone] {
        let mut again = started(&graph, &plan, RunClock::Wall);
        again.repeat_answers(answers.clone()).expect("threads");
        train(&mut again, STEPS);
        assert_eq!(again.answers(), answers);
        runs.push(weights(&mut again));
    }
    assert!(runs[0] == weights(&mut first));
    assert_close(&runs[1], &runs[0], 1e-5);
    assert!(runs[0] != runs[1], "what is reduced as one shows in the sums of a ring");
}

/// The number of the communicator that lists are of.
fn lists_of(answers: &[Vec<u32>]) -> u32 {
    answers[0][0]
}

#[test]
fn answers_that_are_not_of_the_run_end_it_with_the_reason() {
    let graph = gpt();
    let sync = negotiated(Algorithm::Direct, SOME);
    let plan = plan(&graph, &uniform(sync, 2, 1, Optimizer::default()));
    let mut first = started(&graph, &plan, RunClock::Wall);
    train(&mut first, 1);
    let number = lists_of(first.answers());
    let cut: Vec<u32> = first.answers()[0][..first.answers()[0].len() - 1].to_vec();
    for wrong in [cut, vec![number + 7, 1, 0], vec![number, 0, 5]] {
        let mut again = started(&graph, &plan, RunClock::Wall);
        again.repeat_answers(vec![wrong, vec![]]).expect("threads");
        let error = again.train_steps(1).expect_err("no answers of it").to_string();
        assert!(error.contains("the answers to repeat are of another program"), "{error}");
    }
}

/// The virtual clock's steps, repeated by the simulator from what they took.
#[test]
fn a_recorded_run_is_simulated_as_it_was_bytes_included() {
    let graph = gpt();
    for fusion_bytes in [0, SOME] {
        let sync = negotiated(Algorithm::Ring, fusion_bytes);
        let plan = plan(&graph, &uniform(sync, 4, 1, Optimizer::default()));
        let mut trainer = started(&graph, &plan, RunClock::Virtual(cluster()));
        let before: Vec<u64> = trainer.sent_bytes_per_rank().to_vec();
        let (_, timeline) = trainer.step_recorded().expect("a step");
        let recording = trainer.recording().expect("the virtual clock records");
        let options = Options { steps: 1, folded: false };
        let mut recorded = Recorded::new(recording);
        let simulated = run(trainer.program(), &cluster(), options, &mut recorded);
        let simulated = simulated.expect("the same program");
        assert_eq!(simulated.timeline.tracks.len(), 4);
        for (simulated, was) in simulated.timeline.tracks.iter().zip(&timeline.tracks) {
            assert_eq!(simulated.intervals, was.intervals);
        }
        // What is fused is cut elsewhere, so that bytes are equal together.
        let sent = trainer.sent_bytes_per_rank().iter().zip(before).map(|(now, then)| now - then);
        let total: u64 = simulated.timeline.tracks.iter().map(|track| track.sent_bytes).sum();
        assert_eq!(total, sent.sum::<u64>());
    }
}

#[test]
fn ranks_in_processes_come_to_what_threads_come_to() {
    let graph = gpt();
    let sync = negotiated(Algorithm::Direct, SOME);
    let plan = plan(&graph, &uniform(sync, 4, 1, Optimizer::default()));
    let mut threads = started(&graph, &plan, RunClock::Wall);
    let losses = train(&mut threads, STEPS);
    let expected = weights(&mut threads);
    let blueprint = || {
        let settings = Settings { ..settings(Curve::Constant { peak: 0.05 }) };
        Blueprint::new(graph.clone(), &plan, plan.device_count(), settings).expect("a plan")
    };
    led(&blueprint, &data, |blueprint| {
        let leader = Trainer::start(blueprint, Box::new(data()));
        let mut leader = leader.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(train(&mut leader, STEPS), losses);
        assert!(weights(&mut leader) == expected);
    });
}
