//! Ways of keeping replicas equal that change nothing but the order of additions: on any number of ranks, alone and
//! with tensor parallelism and stages inside, weights are those of one process on the union of the batches.

use std::collections::BTreeMap;

use crate::support::two_nodes::{CLUSTER, data, train, weights};
use crate::support::{graph, serial, trainer};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_plan::{
    Axis, AxisSet, Mesh, Negotiation, Optimizer, Ranges, ScheduleKind, SendOrder, Share, Summation,
    Sync, Uniform,
};

const STEPS: u32 = 20;

/// A learning rate that moves weights far in so few steps.
const LARGE_RATE: f64 = 0.05;
/// One that people train with AdamW at.
const USUAL_RATE: f64 = 3e-4;

/// Without biases of keys, whose gradients are zero but for rounding.
fn llama() -> Graph {
    graph("llama:layers=2,hidden=16,heads=2,ffn=32,seq=8,vocab=32")
}

/// An optimizer, its learning rate, and how far weights are apart at most.
type Case = (Optimizer, f64, f32);

/// AdamW makes whole updates of gradients that are little but rounding, unless its epsilon is larger than these; with
/// the usual one and a large rate weights are more than 1e-5 apart.
fn cases() -> [Case; 4] {
    let (beta1, beta2, weight_decay) = (0.9, 0.99, 0.01);
    let adamw = |epsilon| Optimizer::Adamw { beta1, beta2, epsilon, weight_decay };
    [
        (Optimizer::sgd(0.9), LARGE_RATE, 1e-5),
        (adamw(1e-3), LARGE_RATE, 1e-5),
        (adamw(1e-8), LARGE_RATE, 3e-5),
        (adamw(1e-8), USUAL_RATE, 1e-5),
    ]
}

fn sync() -> Sync {
    Sync { bucket_bytes: 4000, ..Sync::default() }
}

/// All-reduces by each algorithm that so many replicas have.
fn algorithms(replicas: u32) -> Vec<Sync> {
    let nested = Algorithm::NESTED.into_iter().map(|of| of(2));
    let nested = nested.filter(|_| replicas > 2 && replicas.is_multiple_of(2));
    let all = Algorithm::FLAT.into_iter().chain(nested);
    all.map(|algorithm| Sync { algorithm, ..sync() }).collect()
}

/// What is sharded, and reductions whose order is agreed on.
fn others() -> Vec<Sync> {
    let mut all: Vec<Sync> = (1..=3).map(|zero| Sync { zero, ..sync() }).collect();
    for fusion_bytes in [0, 3000] {
        let negotiation = Some(Negotiation { cycle_seconds: 0.0, fusion_bytes });
        all.push(Sync { negotiation, ..sync() });
    }
    all
}

/// Servers that sum, of pieces by hashing, of equal ranges, beside workers that sum a part, and on workers' devices.
fn summing() -> Vec<Sync> {
    let by = |ranges, share| Some(Summation { ranges, share, ..Summation::of(2) });
    let all = [
        by(Ranges::Hashed, Share::default()),
        by(Ranges::Equal, Share::default()),
        by(Ranges::Hashed, Share::Part(0.4)),
        Some(Summation { order: SendOrder::NextUse, ..Summation::of(2) }),
        Some(Summation { colocated: true, ..Summation::of(0) }),
    ];
    all.map(|summation| Sync { summation, ..sync() }).into()
}

/// One process on batches that three replicas can share, or two, four and eight; kept by batch.
struct Alone {
    graph: Graph,
    optimizer: Optimizer,
    learning_rate: f64,
    /// How far others are apart at most.
    most: f32,
    weights: BTreeMap<usize, Vec<f32>>,
}

impl Alone {
    fn weights(&mut self, global_batch: usize) -> &[f32] {
        let (graph, optimizer, rate) = (&self.graph, self.optimizer, self.learning_rate);
        self.weights.entry(global_batch).or_insert_with(|| {
            let uniform = Uniform { global_batch, optimizer, clip_norm: None, ..serial() };
            trained(graph, &uniform, rate)
        })
    }

    /// Holds a mesh of replicas in so many stages to it.
    fn check(&mut self, sync: Sync, mesh: Mesh, pp: usize) {
        let replicas = mesh.dp() as usize * mesh.width(Axis::REPLICA);
        let global_batch = if replicas == 3 { 12 } else { 16 };
        let uniform = Uniform {
            sync,
            mesh,
            pp,
            global_batch,
            microbatches: if pp > 1 { 2 } else { 1 },
            schedule: ScheduleKind::OneForwardOneBackward,
            optimizer: self.optimizer,
            clip_norm: None,
            ..serial()
        };
        let found = trained(&self.graph, &uniform, self.learning_rate);
        let most = self.most;
        let expected = self.weights(global_batch);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let apart = (found - expected).abs() / expected.abs().max(1.0);
            assert!(apart <= most, "{found} for {expected}: {mesh} in {pp} stages, {sync:?}");
        }
    }
}

fn trained(graph: &Graph, uniform: &Uniform, learning_rate: f64) -> Vec<f32> {
    let plan = uniform.plan(graph, "model", CLUSTER);
    let mut trainer = trainer(graph, &plan, data(), learning_rate);
    train(&mut trainer, STEPS);
    weights(&mut trainer)
}

fn alone() -> [Alone; 4] {
    cases().map(|(optimizer, learning_rate, most)| Alone {
        graph: llama(),
        optimizer,
        learning_rate,
        most,
        weights: BTreeMap::new(),
    })
}

#[test]
fn every_algorithm_on_any_number_of_ranks_leads_to_the_weights_of_one_process() {
    for mut alone in alone() {
        for replicas in [1, 2, 3, 4, 8] {
            for sync in algorithms(replicas) {
                alone.check(sync, Mesh::of(replicas, 1, 1), 1);
            }
        }
    }
}

#[test]
fn shards_and_agreed_orders_on_any_number_of_ranks_lead_to_the_weights_of_one_process() {
    for mut alone in alone() {
        for replicas in [1, 2, 3, 4, 8] {
            for sync in others() {
                alone.check(sync, Mesh::of(replicas, 1, 1), 1);
            }
        }
        for (replicas, zero) in [4, 8].into_iter().flat_map(|it| [(it, 1), (it, 2), (it, 3)]) {
            let mesh = Mesh::of(replicas, 1, 1).sharing_within(2).expect("it divides");
            alone.check(Sync { zero, ..sync() }, mesh, 1);
        }
        for replicas in [4, 8] {
            let mesh = Mesh::of(replicas, 1, 1).sharing_within(2).expect("it divides");
            let second_copy_over = AxisSet::of(&[Axis::DP]);
            alone.check(Sync { zero: 3, second_copy_over, ..sync() }, mesh, 1);
        }
    }
}

#[test]
fn servers_that_sum_for_any_number_of_workers_lead_to_the_weights_of_one_process() {
    for mut alone in alone() {
        for workers in [1, 2, 3, 4, 8] {
            for sync in summing() {
                alone.check(sync, Mesh::of(workers, 1, 1), 1);
            }
        }
    }
}

#[test]
fn with_tensor_parallelism_and_stages_inside_it_is_still_one_process() {
    // At the usual rate weights are nearer each other than at the large one.
    for mut alone in alone().into_iter().filter(|it| it.learning_rate == LARGE_RATE) {
        for (mesh, pp) in [
            (Mesh::of(2, 1, 2), 1),
            (Mesh::of(2, 1, 1), 2),
            (Mesh::of(2, 1, 2), 2),
            (Mesh::of(4, 1, 1), 2),
        ] {
            for sync in algorithms(mesh.dp()).into_iter().chain(others()) {
                alone.check(sync, mesh, pp);
            }
        }
    }
}
