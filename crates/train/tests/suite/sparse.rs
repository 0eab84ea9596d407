//! Gradients of tables as rows and values: weights are those of the gradients of all elements, bit for bit where
//! these are summed in the same order, and what is held and sent is what the program says.

use std::collections::BTreeMap;

use crate::support::trained::Trained;
use crate::support::{Samples, graph, mesh, serial, settings, trainer_with, trainer_with_clock};
use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::{Extents, Graph};
use shardloom_plan::{
    Averaging, DeviceList, Mesh, Number, Optimizer, ParameterGroup, Pipeline, Plan, Precision,
    ScheduleKind, Sync, Uniform, Updates, Weights,
};
use shardloom_program::{Content, Program, Rank, Shape};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{RunClock, Trainer};

const STEPS: u32 = 4;
pub(super) const SEQ: usize = 8;
pub(super) const HIDDEN: usize = 32;
pub(super) const VOCAB: usize = 64;
const TABLE: &str = "embedding.token";

pub(super) type Tensors = BTreeMap<String, Vec<f32>>;

fn gpt() -> Graph {
    graph(&format!("gpt:layers=4,hidden={HIDDEN},heads=2,seq={SEQ},vocab={VOCAB},tied=false"))
}

pub(super) fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    let samples = Samples::patterned(64, SEQ, VOCAB as u32);
    trainer_with(graph, plan, samples, settings(Curve::Constant { peak: 0.02 }))
}

pub(super) fn trained(graph: &Graph, plan: &Plan) -> Tensors {
    let mut trainer = trainer(graph, plan);
    trainer.train_steps(STEPS).unwrap_or_else(|error| panic!("{error} in\n{}", plan.to_toml()));
    trainer.weights().expect("weights")
}

/// Sums in the order of ranks.
pub(super) fn uniform() -> Uniform {
    let algorithm = "direct".parse().expect("an algorithm");
    let sync = Sync { algorithm, bucket_bytes: 20_000, ..Sync::default() };
    Uniform { sync, global_batch: 24, ..serial() }
}

/// The same plan with gradients of all elements, and with those of rows.
pub(super) fn both(graph: &Graph, uniform: &Uniform) -> [Plan; 2] {
    let plan = uniform.plan(graph, "model", "local");
    [false, true].map(|sparse| sparsely(&plan, sparse))
}

pub(super) fn sparsely(plan: &Plan, sparse: bool) -> Plan {
    Plan { sync: Sync { sparse, ..plan.sync }, ..plan.clone() }
}

pub(super) fn optimizers() -> [Optimizer; 5] {
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

pub(super) fn assert_same(found: &Tensors, expected: &Tensors, what: &str) {
    for (name, expected) in expected {
        let differ = found[name].iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ.count(), 0, "{name} of {}, {what}", expected.len());
    }
}

/// Elements of gradients of the token table that ranks hold, and whether they are rows.
fn table_gradients(graph: &Graph, program: &Program) -> Vec<(usize, bool)> {
    let mut found = vec![];
    for class in &program.classes {
        for (_, tensor) in class.tensors().filter(|(_, it)| it.content == Content::Gradient) {
            let bucket = class.bucket(tensor.bucket.expect("gradients lie in buckets"));
            let mut values = bucket.params.iter().map(|&it| class.param(it).value);
            if values.any(|value| graph.value(value).name == TABLE) {
                let is_of_rows = matches!(tensor.shape, Shape::Local(_));
                let elements = tensor.extents().iter().product();
                found.push((elements, is_of_rows));
            }
        }
    }
    found
}

#[test]
fn replicas_train_the_weights_of_dense_gradients_bit_for_bit() {
    let graph = gpt();
    for optimizer in optimizers() {
        for replicas in [1, 2, 3, 4, 8] {
            let uniform = Uniform { mesh: mesh(replicas, 1, 1), optimizer, ..uniform() };
            let [dense, sparse] = both(&graph, &uniform);
            let what = format!("{} at {replicas} replicas", optimizer.name());
            assert_same(&trained(&graph, &sparse), &trained(&graph, &dense), &what);
        }
    }
}

#[test]
fn both_clocks_train_the_same_weights() {
    let graph = gpt();
    let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 2), microbatches: 4, ..uniform() };
    let [_, plan] = both(&graph, &Uniform { global_batch: 16, ..uniform });
    let samples = || Samples::patterned(64, SEQ, VOCAB as u32);
    let cluster = Cluster::parse("h100-80g:8").expect("a preset");
    let weights = [RunClock::Wall, RunClock::Virtual(cluster)].map(|clock| {
        let mut trainer = trainer_with_clock(&graph, &plan, samples(), 1e-2, clock);
        trainer.train_steps(3).expect("steps");
        trainer.weights_digest().expect("a digest")
    });
    assert_eq!(weights[0], weights[1]);
}

#[test]
fn sums_in_another_order_differ_by_rounding_only() {
    let graph = gpt();
    let optimizers = optimizers();
    for optimizer in &optimizers[..2] {
        for replicas in [1, 2, 3, 4, 8] {
            let uniform =
                Uniform { mesh: mesh(replicas, 1, 1), optimizer: *optimizer, ..uniform() };
            let sync = Sync { algorithm: "ring".parse().expect("an algorithm"), ..uniform.sync };
            let [dense, sparse] = both(&graph, &Uniform { sync, ..uniform });
            let of = |plan: &Plan| Trained::in_rows(&mut trainer(&graph, plan), &[STEPS]);
            of(&sparse).assert_moved(&of(&dense), 1e-5, &format!("{replicas} replicas"));
        }
    }
}

/// Plans of many kinds, without the word.
pub(super) fn kinds(graph: &Graph) -> Vec<(String, Plan)> {
    let base = Uniform { microbatches: 4, global_batch: 16, ..uniform() };
    let of = |uniform: Uniform| uniform.plan(graph, "model", "local");
    let mut plans: Vec<(String, Plan)> = vec![];
    for (pp, mesh, sequence_parallel) in [
        (1, mesh(1, 1, 2), false),
        (1, mesh(2, 1, 2), true),
        (1, mesh(1, 2, 1), false),
        (2, mesh(2, 2, 1), false),
        (2, mesh(1, 2, 2), true),
    ] {
        let uniform = Uniform { pp, mesh, sequence_parallel, ..base.clone() };
        plans.push((format!("{pp} stages of {mesh}, {sequence_parallel}"), of(uniform)));
    }
    for schedule in ScheduleKind::ALL {
        if schedule == ScheduleKind::Table {
            continue;
        }
        for mesh in [mesh(1, 1, 1), mesh(2, 1, 1)] {
            let clip_norm = schedule.flushes().then_some(1.0);
            let uniform = Uniform { pp: 2, schedule, mesh, clip_norm, ..base.clone() };
            let plan = of(uniform);
            if schedule.flushes() {
                let later = Plan { post_validation: true, ..plan.clone() };
                plans.push((format!("{} by {mesh}, validated later", schedule.name()), later));
            }
            plans.push((format!("{} by {mesh}", schedule.name()), plan));
        }
    }
    let rounds =
        Uniform { pp: 2, schedule: ScheduleKind::PipeDream, clip_norm: None, ..base.clone() };
    let rounds = Plan { updates: Updates::Round, weights: Weights::Stash, ..of(rounds) };
    plans.push(("updates of each micro-batch".into(), rounds));
    // Two pipelines with different numbers of micro-batches, the first with two replicas in each.
    let mut unequal = of(Uniform { mesh: mesh(2, 1, 1), ..base.clone() });
    let stage = unequal.pipeline[0].stage[0].clone();
    let second = shardloom_plan::Stage { devices: DeviceList(vec![2, 3]), ..stage.clone() };
    unequal.pipeline = vec![
        Pipeline { microbatches: Some(3), stage: vec![stage] },
        Pipeline { microbatches: Some(1), stage: vec![second] },
    ];
    plans.push(("pipelines with unequal shares".into(), unequal));
    let apart = of(Uniform { mesh: mesh(2, 1, 1), clip_norm: None, ..base.clone() });
    let averaging = Some(Averaging::local_sgd(2));
    let apart = Plan { sync: Sync { averaging, ..apart.sync }, ..apart };
    plans.push(("replicas that are averaged".into(), apart));
    let precision = Precision { compute: Number::Bf16, master: true, ..Precision::MIXED };
    let precision = Precision { gradients: Number::Fp32, ..precision };
    let mixed = of(Uniform { pp: 2, mesh: mesh(2, 1, 1), precision, ..base });
    plans.push(("bf16 with masters".into(), mixed));
    plans
}

#[test]
fn plans_of_every_kind_train_the_weights_of_dense_gradients_bit_for_bit() {
    let graph = gpt();
    for (what, plan) in kinds(&graph) {
        let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01, reference_batch: None };
        let plan = Plan { optimizer, ..plan };
        let expected = trained(&graph, &plan);
        let sparse = sparsely(&plan, true);
        assert_same(&trained(&graph, &sparse), &expected, &what);
        let trainer = trainer(&graph, &sparse);
        let held = table_gradients(&graph, trainer.program());
        assert!(!held.is_empty() && held.iter().all(|&(_, rows)| rows), "{what}: {held:?}");
    }
}

#[test]
fn gradients_of_16_bits_are_near_those_of_dense_ones() {
    let graph = gpt();
    let precision = Precision {
        compute: Number::Bf16,
        gradients: Number::Bf16,
        master: true,
        ..Precision::MIXED
    };
    let uniform = Uniform {
        mesh: mesh(2, 1, 2),
        microbatches: 2,
        precision,
        optimizer: Optimizer::sgd(0.9),
        ..uniform()
    };
    let [dense, sparse] = both(&graph, &Uniform { global_batch: 16, ..uniform });
    let of = |plan: &Plan| Trained::in_rows(&mut trainer(&graph, plan), &[STEPS]);
    of(&sparse).assert_moved(&of(&dense), 2e-2, "bf16");
}

/// Bytes that rows and values of so many rows take.
fn bytes(rows: usize) -> usize {
    rows * (4 + 4 * HIDDEN)
}

#[test]
fn replicas_send_and_hold_rows_and_no_gradient_of_the_table() {
    let graph = gpt();
    for (replicas, microbatches) in [(1, 1), (2, 1), (2, 3), (4, 2), (8, 1)] {
        let uniform = Uniform { mesh: mesh(replicas, 1, 1), microbatches, ..uniform() };
        let [dense, sparse] = both(&graph, &uniform).map(|plan| {
            let mut trainer = trainer(&graph, &plan);
            trainer.train_steps(2).expect("steps");
            let program = trainer.program();
            for (rank, &peak) in (0..).map(Rank).zip(trainer.peak_bytes_per_rank()) {
                let (class, position) = program.locate(rank);
                let expected = program.class(class).memory_use(program, position).peak_bytes;
                assert_eq!(peak, expected, "{replicas} replicas, {microbatches} micro-batches");
            }
            for (rank, &sent) in (0..).map(Rank).zip(trainer.sent_bytes_per_rank()) {
                let (class, position) = program.locate(rank);
                assert_eq!(sent, 2 * program.sent_bytes(class, position));
            }
            let held = table_gradients(&graph, program);
            let first = program.class(program.locate(Rank(0)).0);
            let gradients = first.persistent_bytes(0).gradients as usize;
            (trainer.sent_bytes_per_rank().iter().sum::<u64>() as usize / 2, held, gradients)
        });
        let n = replicas as usize;
        // Of its samples each replica reads all tokens, in all micro-batches.
        let rows = 24 / n * SEQ;
        let table = 4 * VOCAB * HIDDEN;
        // What direct all-reduces send is cut evenly, as 2 (n - 1) times the table divides.
        let [sent_rows, sent_table] = [n * (n - 1) * bytes(rows), 2 * (n - 1) * table];
        assert_eq!(dense.0 - sent_table, sparse.0 - sent_rows, "{n} replicas");
        let held: usize = if n == 1 { bytes(rows) } else { bytes(n * rows) };
        assert_eq!(dense.2 - table, sparse.2 - held, "{n} replicas");
        assert!(dense.1.iter().all(|&(elements, of_rows)| elements >= VOCAB * HIDDEN && !of_rows));
        let levels = if n == 1 { vec![rows] } else { vec![rows, n * rows] };
        let expected: Vec<(usize, bool)> =
            levels.into_iter().map(|rows| (rows * HIDDEN, true)).collect();
        assert_eq!(sparse.1, expected);
    }
}

#[test]
fn few_tokens_of_a_large_vocabulary_are_less_to_hold_and_to_send() {
    let graph = graph("gpt:layers=1,hidden=32,heads=2,seq=8,vocab=2048,tied=false");
    let uniform = Uniform { mesh: mesh(2, 1, 1), optimizer: Optimizer::sgd(0.0), ..uniform() };
    let [dense, sparse] = both(&graph, &Uniform { global_batch: 4, ..uniform }).map(|plan| {
        let samples = Samples::patterned(64, SEQ, 2048);
        let curve = Curve::Constant { peak: 0.02 };
        let mut trainer = trainer_with(&graph, &plan, samples, settings(curve));
        trainer.train_steps(STEPS).expect("steps");
        let (sent, peak) = (trainer.sent_bytes_per_rank()[0], trainer.peak_bytes_per_rank()[0]);
        (sent / u64::from(STEPS), peak, trainer.weights().expect("weights"))
    });
    assert_same(&sparse.2, &dense.2, "a large vocabulary");
    let table = graph.parameters().find(|(_, it)| it.name == TABLE).expect("a table").1;
    let table = 4 * Extents::global(&graph, 1).elements(&table.axes) as u64;
    assert_eq!(table, 4 * 2048 * 32);
    // Each of two replicas sends all of the table by a direct all-reduce, or 16 rows.
    assert_eq!(dense.0 - sparse.0, table - bytes(16) as u64);
    assert!(dense.1 - sparse.1 > table * 9 / 10, "{} and {}", dense.1, sparse.1);
}

/// A run of `first` goes on, under the same plan and with dense gradients, as if there had been no interruption, and
/// under `other` alike with both.
pub(super) fn assert_goes_on(graph: &Graph, first: Mesh, other: Mesh) {
    let plan = |mesh: Mesh, sparse| {
        let uniform = Uniform { mesh, microbatches: 2, global_batch: 16, ..uniform() };
        sparsely(&uniform.plan(graph, "model", "local"), sparse)
    };
    let sparse = plan(first, true);
    let mut whole = trainer(graph, &sparse);
    let folder = tempfile::tempdir().expect("a folder");
    whole.train_steps(2).expect("steps");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    whole.train_steps(2).expect("steps");
    let expected = whole.weights().expect("weights");
    let go_on = |plan: &Plan| {
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let mut resumed = trainer(graph, plan);
        resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
        resumed.train_steps(2).expect("steps");
        resumed.weights().expect("weights")
    };
    assert_same(&go_on(&sparse), &expected, "the same plan");
    assert_same(&go_on(&plan(first, false)), &expected, "dense gradients");
    assert_same(&go_on(&plan(other, true)), &go_on(&plan(other, false)), "another mesh");
}

#[test]
fn a_run_goes_on_with_dense_gradients_and_under_another_mesh() {
    assert_goes_on(&gpt(), mesh(2, 1, 2), mesh(4, 1, 1));
}

#[test]
fn a_table_in_a_group_goes_with_zero_and_compression_of_others() {
    let graph = gpt();
    let base = Uniform { mesh: mesh(2, 1, 1), microbatches: 2, ..uniform() };
    let base = base.plan(&graph, "model", "local");
    let table = |sparse| ParameterGroup {
        sparse: Some(sparse),
        zero: Some(0),
        compression: Some(Default::default()),
        ..ParameterGroup::named("embedding.tok*")
    };
    let syncs = [
        Sync { zero: 1, ..base.sync },
        Sync { zero: 3, ..base.sync },
        Sync { compression: "top-k:4".parse().expect("a compression"), ..base.sync },
    ];
    for sync in syncs {
        let [dense, sparse] = [false, true].map(|sparse| {
            let parameters = vec![table(sparse)];
            trained(&graph, &Plan { sync, parameters, ..base.clone() })
        });
        assert_same(&sparse, &dense, &format!("{sync:?}"));
    }
}
