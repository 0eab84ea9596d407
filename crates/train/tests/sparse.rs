//! Gradients of tables as rows and values: weights are those of the gradients of all elements, bit for bit where
//! these are summed in the same order.

mod support;

use std::collections::BTreeMap;

use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, ParameterGroup, Plan, Sync, Uniform};
use shardloom_train::Trainer;
use shardloom_train::learning_rate::Curve;
use support::{Samples, graph, mesh, serial, settings, trainer_with};

const STEPS: u32 = 4;

type Tensors = BTreeMap<String, Vec<f32>>;

fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=32,heads=2,seq=8,vocab=64,tied=false")
}

fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    trainer_with(
        graph,
        plan,
        Samples::patterned(64, 8, 64),
        settings(Curve::Constant { peak: 0.02 }),
    )
}

fn trained(graph: &Graph, plan: &Plan) -> Tensors {
    let mut trainer = trainer(graph, plan);
    trainer.train_steps(STEPS).unwrap_or_else(|error| panic!("{error}"));
    trainer.weights().expect("weights")
}

fn uniform() -> Uniform {
    let algorithm = "direct".parse().expect("an algorithm");
    let sync = Sync { algorithm, bucket_bytes: 20_000, ..Sync::default() };
    Uniform { sync, global_batch: 24, ..serial() }
}

/// The same plan with gradients of all elements, and with those of rows.
fn both(graph: &Graph, uniform: Uniform) -> [Plan; 2] {
    [false, true].map(|sparse| {
        let sync = Sync { sparse, ..uniform.sync };
        Uniform { sync, ..uniform.clone() }.plan(graph, "model", "local")
    })
}

fn optimizers() -> Vec<Optimizer> {
    let names = ["sgd", "adamw", "lamb", "adafactor"];
    let default = |name: &str| shardloom_plan_default(name);
    names.iter().map(|name| default(name)).chain([Optimizer::sgd(0.0)]).collect()
}

fn shardloom_plan_default(name: &str) -> Optimizer {
    match name {
        "sgd" => Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01, reference_batch: None },
        "lamb" => Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.01 },
        "adafactor" => Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.01,
        },
        _ => Optimizer::default(),
    }
}

fn assert_same(found: &Tensors, expected: &Tensors, what: &str) {
    for (name, expected) in expected {
        let differ = found[name].iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differ.count(), 0, "{name} of {}, {what}", expected.len());
    }
}

#[test]
fn replicas_train_the_weights_of_dense_gradients_bit_for_bit() {
    let graph = gpt();
    for optimizer in optimizers() {
        for replicas in [1, 2, 3, 4, 8] {
            let uniform = Uniform { mesh: mesh(replicas, 1, 1), optimizer, ..uniform() };
            let [dense, sparse] = both(&graph, uniform);
            let what = format!("{} at {replicas} replicas", optimizer.name());
            assert_same(&trained(&graph, &sparse), &trained(&graph, &dense), &what);
        }
    }
    let _ = ParameterGroup::named("*");
}
