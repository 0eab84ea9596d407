//! A way of keeping replicas equal that no crate knows: gradients are applied one step late, so that their
//! sum may be formed while the next step computes. It is one implementation of one trait, and lowering,
//! memory, simulation, training and checkpoints follow.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{Samples, gpt, mesh, serial, settings};
use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, Reduction};
use shardloom_plan::{Mesh, Optimizer, Plan, Uniform};
use shardloom_program::sync::{Gradients, Replicated, Synchronisation, Unheld};
use shardloom_program::{
    Action, Collective, Content, Copies, Extent, Format, Initial, Instruction, Keep, Program,
    Tensor, TensorId, View, lower, lower_with,
};
use shardloom_sim::{Options, simulate};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, RunClock, Settings, Trainer};

/// Updates with the sum of the step before.
#[derive(Debug)]
struct Late;

fn add(tensors: &mut Vec<Tensor>, tensor: Tensor) -> TensorId {
    tensors.push(tensor);
    TensorId(tensors.len() as u32 - 1)
}

impl Synchronisation for Late {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        let whole = Extent::Exactly(bucket.elements);
        let weights = add(tensors, bucket.weights(whole));
        let written = add(tensors, bucket.gradients("gradients", whole, Keep::Resident));
        let keep = Keep::State(Initial::Zero);
        let content = Content::Synchronisation(0);
        let late = add(tensors, bucket.flat("late sum", whole, Format::F32, keep, content));
        Replicated {
            weights,
            used: weights,
            gradients: Some(Gradients { written, reduced: View::whole(late), rows: None }),
            looked_up: None,
            updated: View::whole(weights),
            own: vec![],
        }
    }

    fn after_gradient(&self, bucket: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let (sum, all) =
            (Collective::AllReduce(Reduction::Sum), View::whole(held.expect_gradients().written));
        vec![bucket.over_replicas(sum, Algorithm::Ring, all, all)]
    }

    fn after_update(&self, _: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        vec![Instruction::new(
            Action::Copy,
            [View::whole(held.expect_gradients().written)],
            [held.expect_gradients().reduced],
        )]
    }
}

const CONSTANT: Curve = Curve::Constant { peak: 0.05 };

fn plan(graph: &Graph, mesh: Mesh, optimizer: Optimizer) -> Plan {
    let uniform = Uniform { mesh, optimizer, clip_norm: None, ..serial() };
    uniform.plan(graph, "model", "local")
}

fn program(graph: &Graph, plan: &Plan) -> Program {
    lower_with(graph, plan, plan.device_count(), &Late).unwrap_or_else(|error| panic!("{error}"))
}

fn samples() -> Box<Samples> {
    Box::new(Samples::patterned(64, 16, 64))
}

fn trainer(graph: &Graph, plan: &Plan, settings: Settings) -> Trainer {
    let devices = plan.device_count();
    let blueprint = Blueprint::with_way(graph.clone(), plan, devices, settings, Arc::new(Late));
    let blueprint = blueprint.unwrap_or_else(|error| panic!("{error}"));
    Trainer::start(blueprint, samples()).expect("ranks start")
}

/// The weights after an update with the gradients of step `step` at the initial weights.
fn updated(graph: &Graph, step: u64) -> BTreeMap<String, Vec<f32>> {
    let plan = plan(graph, Mesh::SINGLE, Optimizer::sgd(0.0));
    let mut plain = Trainer::new(graph.clone(), &plan, 1, samples(), settings(CONSTANT));
    let plain = plain.as_mut().expect("ranks start");
    let initial = plain.weights().expect("weights");
    for _ in 0..=step {
        plain.set_weights(initial.clone()).expect("the same weights");
        plain.step().expect("a step");
    }
    plain.weights().expect("weights")
}

#[test]
fn what_a_rank_holds_and_sends_follows_from_the_tensors_that_the_way_names() {
    let graph = gpt();
    let plan = plan(&graph, mesh(2, 1, 1), Optimizer::default());
    let (own, plain) = (program(&graph, &plan), lower(&graph, &plan, 2).expect("a program"));
    for ((id, own_class), plain_class) in own.classes().zip(&plain.classes) {
        let [late, usual] = [own_class, plain_class].map(|class| class.persistent_bytes(0));
        let elements: usize = own_class.buckets.iter().map(|bucket| bucket.elements).sum();
        assert_eq!(late.total(), usual.total() + 4 * elements as u64);
        assert_eq!(own.sent_bytes(id, 0), plain.sent_bytes(id, 0), "{id:?}");
    }
    let kept = |class: &shardloom_program::Class| {
        let all = class.tensors.iter().filter(|it| it.content == Content::Synchronisation(0));
        all.filter(|it| it.copies == Copies::One).count()
    };
    assert_eq!(kept(&own.classes[0]), own.classes[0].buckets.len());
    let cluster = Cluster::parse("h100-80g:2").expect("a preset");
    let options = Options { steps: 3, folded: false };
    let found = simulate(&graph, &cluster, &own, options).expect("it runs");
    let track = &found.timeline.tracks[0];
    assert_eq!(track.peak_bytes, own.classes[0].memory_use(&own, 0).peak_bytes);
    assert!(track.intervals.iter().any(|it| it.label.starts_with("all-reduce")));
}

#[test]
fn training_applies_each_gradient_one_step_late_and_holds_what_was_counted() {
    let graph = gpt();
    let plan = plan(&graph, mesh(2, 1, 1), Optimizer::sgd(0.0));
    let cluster = Cluster::parse("h100-80g:2").expect("a preset");
    let [first, second] = [0, 1].map(|step| updated(&graph, step));
    for clock in [RunClock::Wall, RunClock::Virtual(cluster)] {
        let mut trainer = trainer(&graph, &plan, Settings { clock, ..settings(CONSTANT) });
        let initial = trainer.weights().expect("weights");
        trainer.step().expect("a step");
        assert_eq!(trainer.weights().expect("weights"), initial, "nothing to apply yet");
        trainer.step().expect("a step");
        let after = trainer.weights().expect("weights");
        trainer.step().expect("a step");
        let last = trainer.weights().expect("weights");
        for (name, initial) in &initial {
            for (index, &before) in initial.iter().enumerate() {
                let near = |found: f32, expected: f32| {
                    let most = 1e-6 + 1e-4 * (expected - before).abs();
                    assert!((found - expected).abs() <= most, "{name}: {found}, {expected}");
                };
                near(after[name][index], first[name][index]);
                near(last[name][index], first[name][index] + second[name][index] - before);
            }
        }
        let program = trainer.program().clone();
        for (peak, position) in trainer.peak_bytes_per_rank().iter().zip(0..) {
            assert_eq!(*peak, program.classes[0].memory_use(&program, position).peak_bytes);
        }
    }
}

#[test]
fn a_resumed_run_goes_on_with_the_sum_that_was_not_applied_yet() {
    let graph = gpt();
    let plan = plan(&graph, mesh(2, 1, 2), Optimizer::sgd(0.9));
    let mut whole = trainer(&graph, &plan, settings(CONSTANT));
    let folder = tempfile::tempdir().expect("a folder");
    whole.train_steps(3).expect("steps");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    whole.train_steps(3).expect("steps");
    let mut resumed = trainer(&graph, &plan, settings(CONSTANT));
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
    resumed.train_steps(3).expect("steps");
    let [one, other] = [&mut whole, &mut resumed].map(|it| it.weights_digest().expect("a digest"));
    assert_eq!(one, other);
}

#[test]
fn a_run_that_is_planned_anew_keeps_the_way_and_what_it_holds() {
    let graph = gpt();
    let optimizer = Optimizer::sgd(0.9);
    let [before, after] = [mesh(2, 1, 2), mesh(4, 1, 1)].map(|mesh| plan(&graph, mesh, optimizer));
    let mut replanned = trainer(&graph, &before, settings(CONSTANT));
    let folder = tempfile::tempdir().expect("a folder");
    replanned.train_steps(3).expect("steps");
    replanned.save(folder.path(), Meta::default(), None).expect("saved");
    replanned.replan(&after, after.device_count()).expect("the same model");
    let mut resumed = trainer(&graph, &after, settings(CONSTANT));
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
    assert_eq!(replanned.program(), resumed.program());
    let [one, other] = [&mut replanned, &mut resumed].map(|it| {
        it.train_steps(3).expect("steps");
        it.weights_digest().expect("a digest")
    });
    assert_eq!(one, other);
}
