//! Training with tables on servers, of which workers look up rows: what it is equal to, bytes, memory, timelines,
//! evaluation and checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::trained::Trained;
use crate::support::{Samples, graph, mesh, serial, trainer_with_clock};
use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_graph::Graph;
use shardloom_plan::{
    Number, Optimizer, ParameterGroup, Plan, Precision, Recompute, SendOrder, Summation, Sync,
    Uniform,
};
use shardloom_program::Rank;
use shardloom_sim::{Options, Recorded, RowCounts, run, simulate_rows};
use shardloom_train::{RunClock, Trainer};

const STEPS: u32 = 4;
const SEQ: usize = 8;
const HIDDEN: usize = 16;
const VOCAB: usize = 48;
const BATCH: usize = 24;

type Tensors = BTreeMap<String, Vec<f32>>;

fn gpt() -> Graph {
    graph(&format!("gpt:layers=2,hidden={HIDDEN},heads=2,seq={SEQ},vocab={VOCAB},tied=false"))
}

fn samples() -> Samples {
    Samples::patterned(64, SEQ, VOCAB as u32)
}

fn group(names: &str, servers: &[u32]) -> ParameterGroup {
    ParameterGroup { servers: Some(servers.to_vec()), ..ParameterGroup::named(names) }
}

fn table(servers: &[u32]) -> ParameterGroup {
    ParameterGroup { sparse: Some(true), ..group("embedding.token", servers) }
}

fn by_workers(algorithm: Algorithm) -> ParameterGroup {
    ParameterGroup { algorithm: Some(algorithm), ..group("*", &[]) }
}

fn uniform() -> Uniform {
    Uniform {
        sync: Sync { algorithm: Algorithm::Direct, bucket_bytes: 8000, ..Sync::default() },
        global_batch: BATCH,
        clip_norm: Some(0.5),
        // An update that forgets how large a gradient is would tell rounding apart.
        optimizer: Optimizer::sgd(0.9),
        ..serial()
    }
}

/// So many workers with a table on these servers, and the same without servers, whose replicas gather rows.
fn both(graph: &Graph, workers: u32, servers: &[u32], uniform: &Uniform) -> [Plan; 2] {
    let uniform = Uniform { mesh: mesh(workers, 1, 1), ..uniform.clone() };
    let gathered = Uniform { sync: Sync { sparse: true, ..uniform.sync }, ..uniform.clone() };
    let count = 1 + servers.iter().max().expect("a server");
    let sync = Sync { summation: Some(Summation::of(count)), ..uniform.sync };
    let served = Uniform { sync, ..uniform };
    let [served, gathered] = [served, gathered].map(|it| it.plan(graph, "model", "a100-40g:2x8"));
    [Plan { parameters: vec![table(servers), by_workers(Algorithm::Direct)], ..served }, gathered]
}

/// The same with the servers on the workers' devices, one on each, as published.
fn colocated(plan: &Plan) -> Plan {
    let summation = Some(Summation { colocated: true, ..Summation::of(0) });
    Plan { sync: Sync { summation, ..plan.sync }, ..plan.clone() }
}

fn cluster() -> Cluster {
    Cluster::parse("a100-40g:2x8").expect("a preset")
}

fn started(graph: &Graph, plan: &Plan, clock: RunClock) -> Trainer {
    trainer_with_clock(graph, plan, samples(), 0.05, clock)
}

fn train(trainer: &mut Trainer, steps: u32) -> Vec<f64> {
    let steps = trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    steps.into_iter().map(|step| step.loss).collect()
}

fn trained(graph: &Graph, plan: &Plan, clock: RunClock) -> Tensors {
    let mut trainer = started(graph, plan, clock);
    train(&mut trainer, STEPS);
    trainer.weights().expect("weights")
}

fn optimizers() -> [Optimizer; 5] {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.99, 1e-8, 0.01);
    let (decay_exponent, clip, least_parameter_rms) = (0.8, 1.0, 1e-3);
    [
        Optimizer::sgd(0.0),
        Optimizer::Sgd { momentum: 0.9, weight_decay, reference_batch: None },
        Optimizer::Adamw { beta1, beta2, epsilon, weight_decay },
        Optimizer::Lamb { beta1, beta2, epsilon, weight_decay },
        Optimizer::Adafactor { decay_exponent, clip, least_parameter_rms, weight_decay },
    ]
}

fn assert_same(found: &Tensors, expected: &Tensors, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (name, expected) in expected {
        let differ = found[name].iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ.count(), 0, "{name} of {}, {what}", expected.len());
    }
}

/// Both sum the rows of workers in their order. The norm is summed in another, so nothing is clipped.
#[test]
fn without_a_norm_training_is_bit_for_bit_that_of_replicas_that_gather_rows() {
    let graph = gpt();
    for optimizer in optimizers() {
        let looks_at_all =
            matches!(optimizer, Optimizer::Lamb { .. } | Optimizer::Adafactor { .. });
        for workers in [1, 2, 3, 4] {
            for servers in [&[0][..], &[1, 0, 1]] {
                if looks_at_all && servers.len() > 1 {
                    continue;
                }
                let uniform = Uniform { optimizer, microbatches: 2, clip_norm: None, ..uniform() };
                let [served, gathered] = both(&graph, workers, servers, &uniform);
                let what = format!("{} of {workers} workers, {servers:?}", optimizer.name());
                let expected = trained(&graph, &gathered, RunClock::Wall);
                assert_same(&trained(&graph, &served, RunClock::Wall), &expected, &what);
                if servers.iter().all(|&it| it < workers) {
                    let served = colocated(&served);
                    let what = format!("{what} on their devices");
                    assert_same(&trained(&graph, &served, RunClock::Wall), &expected, &what);
                }
                let by_next_use = |it| Summation { order: SendOrder::NextUse, ..it };
                let summation = served.sync.summation.map(by_next_use);
                let sync = Sync { summation, ..served.sync };
                let served = Plan { sync, ..served };
                assert_same(&trained(&graph, &served, RunClock::Wall), &expected, &what);
            }
        }
    }
}

#[test]
fn twenty_steps_lead_to_the_weights_of_one_process_on_the_whole_batch() {
    let graph = gpt();
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.99, 1e-8, 0.01);
    // Where a gradient is near zero AdamW's step is what rounding makes of it.
    let epsilon = f64::max(epsilon, 1e-3);
    for optimizer in [Optimizer::sgd(0.9), Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }]
    {
        let uniform = Uniform { optimizer, ..uniform() };
        let run = |plan: &Plan| Trained::in_rows(&mut started(&graph, plan, RunClock::Wall), &[20]);
        let alone = run(&uniform.plan(&graph, "model", "a100-40g:2x8"));
        for workers in [1, 2, 3, 4, 8] {
            let [mut plan, _] = both(&graph, workers, &[0, 1], &uniform);
            plan.parameters[1] = by_workers(Algorithm::Ring);
            run(&plan).assert_moved(&alone, 1e-5, &plan.to_toml());
            if workers > 1 {
                let plan = colocated(&plan);
                run(&plan).assert_moved(&alone, 1e-5, &plan.to_toml());
            }
        }
    }
}

#[test]
fn both_clocks_and_all_that_computes_again_or_in_other_formats_lead_to_the_same() {
    let graph = gpt();
    let mixed = Precision { compute: Number::Bf16, master: true, ..Precision::MIXED };
    let mixed = Precision { gradients: Number::Fp32, ..mixed };
    let base = Uniform { microbatches: 2, ..uniform() };
    let uniforms = [
        base.clone(),
        Uniform { recompute: Recompute::Full, ..base.clone() },
        Uniform { recompute: Recompute::Block, ..base.clone() },
        Uniform { precision: mixed, clip_norm: None, ..base },
    ];
    for uniform in &uniforms {
        let [served, gathered] = both(&graph, 2, &[0, 1], uniform);
        let found = trained(&graph, &served, RunClock::Wall);
        let virtually = trained(&graph, &served, RunClock::Virtual(cluster()));
        assert_same(&virtually, &found, "the virtual clock");
        let expected = trained(&graph, &gathered, RunClock::Wall);
        for (name, expected) in &expected {
            for (found, expected) in found[name].iter().zip(expected) {
                let apart = (found - expected).abs();
                assert!(apart <= 1e-6 * expected.abs().max(1.0), "{name}: {found} for {expected}");
            }
        }
    }
}

/// Servers that hold the table sum some other gradients besides.
#[test]
fn servers_that_also_sum_train_the_same() {
    let graph = gpt();
    let uniform = Uniform { clip_norm: None, ..uniform() };
    let [served, gathered] = both(&graph, 3, &[0, 1], &uniform);
    let expected = trained(&graph, &gathered, RunClock::Wall);
    for rest in [vec![], vec![group("*bias", &[1]), by_workers(Algorithm::Direct)]] {
        let parameters = [table(&[0, 1])].into_iter().chain(rest).collect();
        let plan = Plan { parameters, ..served.clone() };
        let found = trained(&graph, &plan, RunClock::Wall);
        assert_same(&found, &expected, &plan.to_toml());
    }
}

/// The different tokens of each worker's samples of a step, by piece of the table.
fn distinct(workers: usize, pieces: usize, microbatches: usize, step: usize) -> Vec<Vec<usize>> {
    let tokens = samples().inputs;
    let each = BATCH / workers / microbatches;
    let of = |worker: usize, piece: usize| {
        let rows = shardloom_collectives::chunk(VOCAB, pieces, piece);
        let microbatches = (0..microbatches).map(|it| it * workers + worker);
        let samples = microbatches.flat_map(|it| it * each..(it + 1) * each);
        let samples = samples.map(|it| &tokens[(step * BATCH + it) % tokens.len()]);
        let all: BTreeSet<usize> = samples.flatten().map(|&it| it as usize).collect();
        all.into_iter().filter(|row| rows.contains(row)).count()
    };
    (0..workers).map(|worker| (0..pieces).map(|piece| of(worker, piece)).collect()).collect()
}

/// With w bytes of a table, of which a share a of the rows is looked up, a worker gets a w bytes and sends as many
/// (Parallax, table 1), and besides which rows these are; its servers send and get all of that.
#[test]
fn what_is_sent_are_the_published_bytes_of_different_rows_and_as_predicted() {
    let graph = gpt();
    for (workers, servers, microbatches) in
        [(1, &[0][..], 1), (2, &[0, 1], 2), (4, &[0, 1, 0], 1), (3, &[1, 0], 2)]
    {
        let uniform = Uniform { microbatches, clip_norm: None, ..uniform() };
        let [plan, _] = both(&graph, workers as u32, servers, &uniform);
        // What workers send of the rest to each other is as without servers.
        let alone = Plan { parameters: vec![group("*", &[])], ..plan.clone() };
        let alone = Plan { sync: Sync { summation: None, ..alone.sync }, ..alone };
        let alone = Plan { parameters: vec![], ..alone };
        let table_bytes = 4 * VOCAB * HIDDEN;
        let dense = {
            let mut trainer = started(&graph, &alone, RunClock::Wall);
            train(&mut trainer, 1);
            trainer.sent_bytes_per_rank().iter().sum::<u64>() as usize
                - 2 * (workers - 1) * table_bytes
        };
        let clocks = [RunClock::Wall, RunClock::Virtual(cluster())];
        let plans = [plan.clone(), colocated(&plan)];
        for (plan, clock) in plans.iter().flat_map(|plan| clocks.clone().map(|clock| (plan, clock)))
        {
            let mut trainer = started(&graph, plan, clock);
            let mut before = vec![0; trainer.program().ranks()];
            for step in 0..3 {
                train(&mut trainer, 1);
                let sent = trainer.sent_bytes_per_rank().to_vec();
                let step_bytes: Vec<usize> =
                    sent.iter().zip(&before).map(|(now, then)| (now - then) as usize).collect();
                let rows = distinct(workers, servers.len(), microbatches, step);
                let all: usize = rows.iter().flatten().sum();
                // Rows and gradients for them once each, 4 HIDDEN bytes, and 4 that say which.
                let expected = dense + all * (4 + 2 * 4 * HIDDEN);
                assert_eq!(step_bytes.iter().sum::<usize>(), expected, "{workers}, {servers:?}");
                for server in 0..step_bytes.len() - workers {
                    let own = rows.iter().flat_map(|of| {
                        let pieces = of.iter().zip(servers);
                        pieces.filter(move |it| *it.1 as usize == server).map(|it| *it.0)
                    });
                    assert_eq!(step_bytes[workers + server], 4 * HIDDEN * own.sum::<usize>());
                }
                let measured = RowCounts::Measured(trainer.row_counts().expect("counts"));
                let options = Options { steps: 1, folded: false };
                let program = trainer.program();
                let predicted =
                    simulate_rows(&graph, &cluster(), program, options, measured).expect("it runs");
                let predicted = predicted.timeline.tracks.iter().map(|it| it.sent_bytes as usize);
                assert_eq!(predicted.collect::<Vec<_>>(), step_bytes);
                before = sent;
            }
        }
    }
}

#[test]
fn executed_and_simulated_timelines_are_equal_and_memory_is_as_predicted() {
    let graph = gpt();
    let uniform = Uniform { microbatches: 2, ..uniform() };
    for (workers, on_their_devices) in [(1, false), (2, false), (4, false), (2, true), (4, true)] {
        let [plan, gathered] = both(&graph, workers, &[0, 1], &uniform);
        let plan = if on_their_devices { colocated(&plan) } else { plan };
        let mut trainer = started(&graph, &plan, RunClock::Virtual(cluster()));
        let (_, executed) = trainer.train_steps_recorded(1).expect("steps");
        let mut recorded = Recorded::new(trainer.recording().expect("the virtual clock records"));
        let options = Options { steps: 1, folded: false };
        let simulated =
            run(trainer.program(), &cluster(), options, &mut recorded).expect("it runs");
        for (simulated, executed) in simulated.timeline.tracks.iter().zip(&executed.tracks) {
            assert_eq!(simulated.intervals, executed.intervals);
        }
        let mut threads = started(&graph, &plan, RunClock::Wall);
        train(&mut threads, STEPS);
        for trainer in [&trainer, &threads] {
            let program = trainer.program();
            for rank in 0..program.ranks() {
                let (class, position) = program.locate(Rank(rank as u32));
                let peak = program.class(class).memory_use(program, position).peak_bytes;
                assert_eq!(trainer.peak_bytes_per_rank()[rank], peak, "rank {rank}");
            }
            assert_eq!(trainer.system_allocations(), 0);
        }
        // No worker has the table, nor what the optimizer keeps of it.
        let gathered = started(&graph, &gathered, RunClock::Wall);
        let state = |trainer: &Trainer| {
            let program = trainer.program();
            let class = program.class(program.locate(Rank(0)).0);
            class.persistent_bytes(0).state as usize
        };
        assert_eq!(state(&gathered) - state(&threads), 4 * VOCAB * HIDDEN);
    }
}

#[test]
fn evaluation_looks_up_rows_too_and_leaves_training_as_it_is() {
    let graph = gpt();
    let uniform = Uniform { microbatches: 2, clip_norm: None, ..uniform() };
    let [served, gathered] = both(&graph, 2, &[0, 1], &uniform);
    let mut all = vec![];
    for (plan, clock) in [
        (&served, RunClock::Wall),
        (&served, RunClock::Virtual(cluster())),
        (&gathered, RunClock::Wall),
    ] {
        let mut trainer = started(&graph, plan, clock);
        train(&mut trainer, 1);
        let before = trainer.validate(100).expect("a loss").expect("samples");
        train(&mut trainer, 1);
        let after = trainer.validate(100).expect("a loss").expect("samples");
        all.push((before, after, trainer.weights().expect("weights")));
    }
    assert!(all[0].0 != all[0].1);
    for (before, after, weights) in &all[1..] {
        // Both evaluate the same 60 samples, in micro-batches of different sizes.
        assert!((before - all[0].0).abs() < 1e-6 && (after - all[0].1).abs() < 1e-6);
        assert_same(weights, &all[0].2, "after evaluation");
    }
}

#[test]
fn a_run_goes_on_with_other_servers_and_without_any() {
    let graph = gpt();
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.99, 1e-8, 0.01);
    let optimizer = Optimizer::Adamw { beta1, beta2, epsilon, weight_decay };
    let uniform = Uniform { optimizer, clip_norm: None, ..uniform() };
    let [served, gathered] = both(&graph, 2, &[0, 1], &uniform);
    let [other, _] = both(&graph, 2, &[2, 1, 0, 1], &uniform);
    let dense = Plan { sync: Sync { sparse: false, ..gathered.sync }, ..gathered.clone() };
    for first in [&served, &gathered] {
        let mut whole = started(&graph, first, RunClock::Wall);
        train(&mut whole, 3);
        let folder = tempfile::tempdir().expect("a folder");
        whole.save(folder.path(), Meta::default(), None).expect("saved");
        let losses = train(&mut whole, 3);
        let expected = whole.weights().expect("weights");
        for plan in [&served, &other, &gathered, &dense] {
            let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
            let mut resumed = started(&graph, plan, RunClock::Wall);
            resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
            assert_eq!(train(&mut resumed, 3), losses);
            assert_same(&resumed.weights().expect("weights"), &expected, &plan.to_toml());
        }
    }
}

/// The norm of all gradients is that of workers' and servers' together.
#[test]
fn clipping_is_by_the_norm_of_all_gradients() {
    let graph = gpt();
    let uniform = Uniform { clip_norm: Some(1e-2), ..uniform() };
    let [served, gathered] = both(&graph, 3, &[0, 1], &uniform);
    let mut norms = vec![];
    for plan in [&served, &gathered] {
        let mut trainer = started(&graph, plan, RunClock::Wall);
        let steps = trainer.train_steps(STEPS).expect("steps");
        norms.push(steps.iter().map(|it| it.gradient_norm.expect("a norm")).collect::<Vec<_>>());
    }
    for (found, expected) in norms[0].iter().zip(&norms[1]) {
        assert!(*expected > 1e-2 && (found / expected - 1.0).abs() < 1e-6, "{norms:?}");
    }
}

/// Features, categories of tables of 12, 40 and 7 rows, and labels.
struct Clicks(Samples);

impl Source for Clicks {
    fn field<'a>(
        &'a self,
        _: Part,
        position: u64,
        input: &str,
        _: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        const FEATURES: [[f32; 4]; 2] = [[0.5, -0.25, 1.0, 0.0], [-1.0, 0.75, 0.25, 0.5]];
        let row = &self.0.inputs[position as usize % self.0.inputs.len()];
        Ok(match input {
            "features" => Some(Field::Reals(&FEATURES[position as usize % 2])),
            "targets" => Some(Field::Indices(&self.0.targets[position as usize % 64][..1])),
            _ => {
                let number =
                    input.strip_prefix("category.").and_then(|it| it.parse::<usize>().ok());
                number.and_then(|at| row.get(at..=at)).map(Field::Indices)
            }
        })
    }

    fn validation_len(&self) -> u64 {
        64
    }
}

/// Some tables are in several pieces, some on one server, and one among the workers' dense parameters.
#[test]
fn several_tables_lie_on_several_servers() {
    let graph = graph("dlrm:dense=4,rows=12-40-7,embed=8,bottom=16,top=16-8");
    let clicks = || {
        let mut samples = Samples::patterned(64, 8, 7);
        samples.targets.iter_mut().flatten().for_each(|label| *label %= 2);
        Clicks(samples)
    };
    let tables: Vec<&str> = graph.tables().map(|it| graph.value(it).name.as_str()).collect();
    assert_eq!(tables.len(), 3);
    let uniform = Uniform { microbatches: 2, clip_norm: None, ..uniform() };
    let trained = |plan: &Plan| {
        let mut trainer = trainer_with_clock(&graph, plan, clicks(), 0.05, RunClock::Wall);
        train(&mut trainer, STEPS);
        trainer.weights().expect("weights")
    };
    for workers in [1, 3] {
        let [mut served, mut gathered] = both(&graph, workers, &[0, 1], &uniform);
        gathered.sync.sparse = false;
        let of = |table: &str, servers: &[u32]| ParameterGroup {
            sparse: Some(true),
            ..group(table, servers)
        };
        served.parameters =
            vec![of(tables[0], &[0, 1, 1, 0]), of(tables[1], &[1]), by_workers(Algorithm::Direct)];
        assert_same(&trained(&served), &trained(&gathered), "three tables");
    }
}
