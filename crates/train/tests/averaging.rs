//! Replicas with weights of their own, against as many serial runs that are averaged by plain loops: gradients
//! are those of one rank that trains with each replica's weights on its samples, optimizers' formulas and means
//! are written out element by element. Where numbers divide exactly, weights are equal bit for bit.

mod support;

use std::collections::BTreeMap;

use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{
    Averaging, AveragingTime, Axis, AxisSet, Mesh, Optimizer, Plan, Precision, Sync, Uniform,
};
use shardloom_program::{Content, Rank};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{RunClock, Settings, Trainer};
use support::trained::Trained;
use support::{Samples, graph, losses, mesh, serial, settings, trainer_with};

const BATCH: usize = 24;
const STEPS: usize = 7;
const CURVE: Curve =
    Curve::Cosine { peak: 0.1, warmup_steps: 2, total_steps: STEPS as u64, floor: 0.01 };

fn gpt() -> Graph {
    graph("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32,tied=true")
}

fn uniform(optimizer: Optimizer) -> Uniform {
    Uniform { global_batch: BATCH, clip_norm: None, optimizer, ..serial() }
}

fn averaged(averaging: Averaging, optimizer: Optimizer) -> Uniform {
    let averaging = Some(averaging);
    let algorithm = "direct".parse().expect("an algorithm");
    let sync = Sync { averaging, algorithm, bucket_bytes: 4000, ..Sync::default() };
    Uniform { sync, ..uniform(optimizer) }
}

fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    trainer_with(graph, plan, Samples::patterned(64, 8, 32), settings(CURVE))
}

/// Numbers by the name of the parameter that they are of.
type Tensors = BTreeMap<String, Vec<f32>>;

/// The gradients of runs on one rank, one after the other on the samples as they come.
struct Gradients(Trainer);

impl Gradients {
    fn new(graph: &Graph, samples: usize) -> Gradients {
        // The velocity after a first step is the gradient.
        let alone = Uniform { global_batch: samples, ..uniform(Optimizer::sgd(0.5)) };
        Gradients(trainer(graph, &alone.plan(graph, "model", "local")))
    }

    /// The loss with these weights on the samples that come next, and the gradient of its mean over them.
    fn next(&mut self, weights: &Tensors) -> (f64, Tensors) {
        let Gradients(run) = self;
        run.set_weights(weights.clone()).expect("weights");
        let loss = losses(run, 1)[0];
        let folder = tempfile::tempdir().expect("a folder");
        run.save(folder.path(), Meta::default(), None).expect("saved");
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let checkpoint = latest.expect("the checkpoint").0;
        let gradient = |name: &String| {
            let velocity = checkpoint.read_whole(&format!("optimizer.0/{name}"));
            (name.clone(), velocity.expect("a velocity"))
        };
        (loss, weights.keys().map(gradient).collect())
    }
}

/// A replica with weights and optimizer state of its own.
#[derive(Clone)]
struct Replica {
    weights: Tensors,
    moments: [Tensors; 2],
}

impl Replica {
    /// Updates it for the n-th time, counted from 0.
    fn update(&mut self, graph: &Graph, optimizer: Optimizer, gradient: &Tensors, step: usize) {
        let rate = LearningRate::new(CURVE).expect("a positive rate").at(step as u64) as f32;
        for (_, value) in graph.parameters() {
            let decays = value.parameter().is_some_and(|it| it.decays);
            let of = |tensors: &mut Tensors| {
                std::mem::take(tensors.get_mut(&value.name).expect("a parameter"))
            };
            let mut weights = of(&mut self.weights);
            let [mut m, mut v] = self.moments.each_mut().map(of);
            for (at, &g) in gradient[&value.name].iter().enumerate() {
                let (w, m, v) = (&mut weights[at], &mut m[at], &mut v[at]);
                match optimizer {
                    Optimizer::Sgd { momentum: 0.0, .. } => *w -= rate * g,
                    Optimizer::Sgd { momentum, .. } => {
                        *m = (momentum as f32).mul_add(*m, g);
                        *w -= rate * *m;
                    }
                    Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } => {
                        let decay = if decays { weight_decay as f32 } else { 0.0 };
                        let [beta1, beta2, epsilon] = [beta1, beta2, epsilon].map(|it| it as f32);
                        let number = step as f64 + 1.0;
                        let filled = |beta: f32| (1.0 - f64::from(beta).powf(number)) as f32;
                        *m = beta1.mul_add(*m, (1.0 - beta1) * g);
                        *v = beta2.mul_add(*v, (1.0 - beta2) * g * g);
                        let root = v.sqrt().mul_add(1.0 / filled(beta2).sqrt(), epsilon);
                        *w = (1.0 - rate * decay) * *w - rate / filled(beta1) * *m / root;
                    }
                    _ => unreachable!("these are tested"),
                }
            }
            self.weights.insert(value.name.clone(), weights);
            for (moments, values) in self.moments.iter_mut().zip([m, v]) {
                moments.insert(value.name.clone(), values);
            }
        }
    }
}

/// Averages replicas: sums in their order.
fn average(replicas: &mut [Replica], rate: f64) {
    let (kept, taken) = ((1.0 - rate) as f32, (rate / replicas.len() as f64) as f32);
    let names: Vec<String> = replicas[0].weights.keys().cloned().collect();
    for name in names {
        for at in 0..replicas[0].weights[&name].len() {
            let values = replicas.iter().map(|replica| replica.weights[&name][at]);
            let sum = values.reduce(|sum, value| sum + value).expect("replicas");
            for replica in replicas.iter_mut() {
                let weight = &mut replica.weights.get_mut(&name).expect("a parameter")[at];
                *weight = match rate {
                    1.0 => taken * sum,
                    _ => kept * *weight + taken * sum,
                };
            }
        }
    }
}

/// What so many serial replicas come to: the loss of each step, and the weights of each replica.
fn replayed(
    graph: &Graph,
    count: usize,
    averaging: Averaging,
    optimizer: Optimizer,
) -> (Vec<f64>, Vec<Tensors>) {
    let mut gradients = Gradients::new(graph, BATCH / count);
    let weights = gradients.0.weights().expect("weights");
    let zero: Tensors =
        weights.iter().map(|(name, it)| (name.clone(), vec![0.0; it.len()])).collect();
    let mut replicas = vec![Replica { weights, moments: [zero.clone(), zero] }; count];
    let mut mean_losses = vec![];
    for step in 0..STEPS {
        let found: Vec<_> = replicas.iter().map(|it| gradients.next(&it.weights)).collect();
        mean_losses.push(found.iter().map(|(loss, _)| loss).sum::<f64>() / count as f64);
        let is_due = (step + 1).is_multiple_of(averaging.every as usize);
        let averages = |when| is_due && count > 1 && averaging.when == when;
        if averages(AveragingTime::BeforeUpdate) {
            average(&mut replicas, averaging.rate);
        }
        for (replica, (_, gradient)) in replicas.iter_mut().zip(&found) {
            replica.update(graph, optimizer, gradient, step);
        }
        if averages(AveragingTime::AfterUpdate) {
            average(&mut replicas, averaging.rate);
        }
    }
    (mean_losses, replicas.into_iter().map(|replica| replica.weights).collect())
}

fn assert_near(found: &[Tensors], expected: &[Tensors], most: f32, of: &str) {
    assert_eq!(found.len(), expected.len(), "{of}");
    for (replica, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (name, expected) in expected {
            for (&found, &expected) in found[name].iter().zip(expected) {
                let same = found.to_bits() == expected.to_bits();
                let near = same || (found - expected).abs() <= most;
                assert!(near, "{name} of replica {replica}: {found} for {expected}, {of}");
            }
        }
    }
}

/// With an epsilon so large that rounding of a gradient that is zero does not become an update.
const ADAMW: Optimizer =
    Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-2, weight_decay: 0.1 };

const LOCAL: [Averaging; 2] = [
    Averaging { every: 1, rate: 1.0, when: AveragingTime::AfterUpdate, over: None },
    Averaging { every: 3, rate: 1.0, when: AveragingTime::AfterUpdate, over: None },
];

#[test]
fn replicas_come_to_what_serial_runs_that_are_averaged_come_to() {
    let graph = gpt();
    let now_and_then = Averaging { every: 2, rate: 0.25, ..Averaging::SYNCHRONOUS };
    let [each, third] = LOCAL;
    for optimizer in [Optimizer::sgd(0.0), ADAMW] {
        for averaging in [each, third, Averaging::SYNCHRONOUS, now_and_then] {
            for replicas in [1, 2, 3, 4, 8] {
                let of = format!("{replicas} of {averaging:?} with {optimizer:?}");
                let mesh = mesh(replicas, 1, 1);
                let plan = Uniform { mesh, ..averaged(averaging, optimizer) };
                let mut run = trainer(&graph, &plan.plan(&graph, "model", "local"));
                let losses = losses(&mut run, STEPS);
                let found = run.weights_of_replicas().expect("weights");
                let count = replicas as usize;
                let (expected_losses, expected) = replayed(&graph, count, averaging, optimizer);
                // A third is no binary fraction.
                let most = if replicas == 3 { 1e-6 } else { 0.0 };
                assert_near(&found, &expected, most, &of);
                for (loss, expected) in losses.iter().zip(expected_losses) {
                    assert!((loss - expected).abs() < 1e-5 * expected, "{loss}, {expected}: {of}");
                }
            }
        }
    }
}
