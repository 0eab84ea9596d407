//! What corrections of late gradients keep from step to step, in checkpoints and beside given weights.

use std::collections::BTreeMap;

use crate::support::{Samples, gpt, llama, losses, mesh, serial, trainer};
use shardloom_checkpoint::{Checkpoint, Meta, Store};
use shardloom_graph::Graph;
use shardloom_plan::{
    Corrections, Mesh, Optimizer, Plan, Prediction, ScheduleKind, Uniform, Weights,
};
use shardloom_train::Trainer;

const NONE: Corrections = Corrections {
    anneal_steps: None,
    discrepancy: None,
    synchronous_steps: 0,
    spike: None,
    prediction: None,
};

const DISCREPANCY: Corrections = Corrections { discrepancy: Some(0.135), ..NONE };

const FROM_LAST_UPDATE: Corrections = Corrections { prediction: Some(Prediction::Weights), ..NONE };

const BOTH: Corrections = Corrections { prediction: Some(Prediction::Weights), ..DISCREPANCY };

/// GPT, whose tied ends are in the first and the last stage, in a pipeline without flush.
fn plan(graph: &Graph, stages: usize, mesh: Mesh, corrections: Corrections) -> Plan {
    let uniform = Uniform {
        pp: stages,
        mesh,
        microbatches: 2,
        schedule: ScheduleKind::PipeMare,
        clip_norm: None,
        ..serial()
    };
    let mut plan = uniform.plan(graph, "model", "local");
    plan.weights = Weights::Newest { corrections };
    plan
}

fn run(graph: &Graph, plan: &Plan) -> Trainer {
    trainer(graph, plan, Samples::patterned(64, 16, 64), 3e-3)
}

fn train(trainer: &mut Trainer, steps: u32) -> Vec<f64> {
    let trained = trainer.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    trained.iter().map(|step| step.loss).collect()
}

fn saved(trainer: &mut Trainer) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    trainer.save(folder.path(), Meta::default(), None).expect("a checkpoint");
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    (folder, latest.expect("the checkpoint").0)
}

/// The tensors of corrections in a checkpoint, whole.
fn kept(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<f32>> {
    let names = checkpoint.names().filter(|name| name.starts_with("correction."));
    names.map(|it| (it.to_owned(), checkpoint.read_whole(it).expect("whole"))).collect()
}

fn digest(trainer: &mut Trainer) -> String {
    trainer.weights_digest().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_resumed_run_goes_on_with_the_movement_of_the_weights() {
    let graph = gpt();
    for corrections in [DISCREPANCY, FROM_LAST_UPDATE, BOTH] {
        for mesh in [Mesh::SINGLE, mesh(2, 1, 1), mesh(1, 1, 2)] {
            let plan = plan(&graph, 3, mesh, corrections);
            let mut whole = run(&graph, &plan);
            train(&mut whole, 5);
            let (_folder, checkpoint) = saved(&mut whole);
            let mut resumed = run(&graph, &plan);
            resumed.resume(checkpoint).expect("the same model");
            let what = format!("{corrections:?} on {mesh}");
            assert_eq!(train(&mut resumed, 4), train(&mut whole, 4), "{what}");
            assert_eq!(digest(&mut resumed), digest(&mut whole), "{what}");
        }
    }
}

#[test]
fn given_weights_begin_without_a_movement() {
    let graph = gpt();
    let serial = serial().plan(&graph, "model", "local");
    let mut other = run(&graph, &serial);
    train(&mut other, 6);
    let weights = other.weights().expect("weights");
    let mut first = run(&graph, &serial);
    first.set_weights(weights.clone()).expect("the same model");
    let expected = losses(&mut first, 1)[0];
    for corrections in [DISCREPANCY, FROM_LAST_UPDATE, BOTH] {
        let plan = plan(&graph, 4, Mesh::SINGLE, corrections);
        let mut given = run(&graph, &plan);
        given.set_weights(weights.clone()).expect("the same model");
        // What earlier steps left is no movement of these weights either.
        let mut later = run(&graph, &plan);
        train(&mut later, 3);
        later.set_weights(weights.clone()).expect("the same model");
        let (_folder, checkpoint) = saved(&mut later);
        for (name, values) in kept(&checkpoint) {
            let parameter = name.split_once('/').expect("it names its parameter").1;
            match name.starts_with("correction.previous-weights/") {
                true => assert_eq!(values, weights[parameter], "{name}"),
                false => assert!(values.iter().all(|&it| it == 0.0), "{name}"),
            }
        }
        let loss = losses(&mut given, 1)[0];
        assert!((loss - expected).abs() < 1e-5 * expected, "{loss} instead of {expected}");
    }
}

#[test]
fn given_weights_leave_nothing_of_what_was_trained_before() {
    // Without dropout and with the same samples in every third step, steps differ by state only.
    let graph = llama();
    let samples = || Samples::patterned(24, 16, 64);
    let plan = plan(&graph, 3, Mesh::SINGLE, BOTH);
    let mut fresh = trainer(&graph, &plan, samples(), 3e-3);
    let weights = fresh.weights().expect("weights");
    let mut later = trainer(&graph, &plan, samples(), 3e-3);
    train(&mut later, 3);
    later.set_weights(weights).expect("the same model");
    assert_eq!(train(&mut later, 6), train(&mut fresh, 6));
    assert_eq!(digest(&mut later), digest(&mut fresh));
}

#[test]
fn a_checkpoint_without_a_movement_begins_as_given_weights_do() {
    // This is also what versions wrote that did not save it.
    let graph = gpt();
    let plain = plan(&graph, 3, Mesh::SINGLE, NONE);
    let mut whole = run(&graph, &plain);
    train(&mut whole, 4);
    let (_folder, checkpoint) = saved(&mut whole);
    assert!(kept(&checkpoint).is_empty());
    let weights = whole.weights().expect("weights");
    let mut resumed = run(&graph, &plan(&graph, 3, Mesh::SINGLE, BOTH));
    // Nothing of what this run did before may be left.
    train(&mut resumed, 3);
    resumed.resume(checkpoint).expect("the same model");
    let (_folder, checkpoint) = saved(&mut resumed);
    let begun = kept(&checkpoint);
    assert!(!begun.is_empty());
    for (name, values) in begun {
        let parameter = name.split_once('/').expect("it names its parameter").1;
        match name.starts_with("correction.previous-weights/") {
            true => assert_eq!(values, weights[parameter], "{name}"),
            false => assert!(values.iter().all(|&it| it == 0.0), "{name}"),
        }
    }
    assert_eq!(train(&mut resumed, 1), train(&mut whole, 1), "the first step extrapolates nothing");
}

#[test]
fn other_plans_take_the_movement_of_what_they_delay() {
    let graph = gpt();
    let mut whole = run(&graph, &plan(&graph, 4, Mesh::SINGLE, BOTH));
    train(&mut whole, 5);
    let (_folder, checkpoint) = saved(&mut whole);
    let before = kept(&checkpoint);
    // The last stage's gradients are not late, but for the tied ones, which the first stage has too.
    assert!(before.contains_key("correction.mean-velocity/embedding.token"));
    let velocities = before.keys().filter(|it| it.starts_with("correction.mean-velocity/"));
    assert!(velocities.count() < graph.parameters().count());
    for (stages, mesh) in [(2, mesh(1, 1, 2)), (3, mesh(2, 1, 1)), (1, mesh(2, 1, 1))] {
        let mut other = run(&graph, &plan(&graph, stages, mesh, BOTH));
        let (_folder, checkpoint) = saved(&mut whole);
        other.resume(checkpoint).expect("the same model");
        let (_folder, checkpoint) = saved(&mut other);
        let taken = kept(&checkpoint);
        assert_eq!(taken.is_empty(), stages == 1, "one stage has no delay");
        for (name, values) in taken {
            assert_eq!(values, before[&name], "{name} of {stages} stages of {mesh}");
        }
        train(&mut other, 1);
    }
    // A plan with a flush has no use for it.
    let uniform = Uniform { pp: 2, microbatches: 2, clip_norm: None, ..serial() };
    let mut flushing = run(&graph, &uniform.plan(&graph, "model", "local"));
    let (_folder, checkpoint) = saved(&mut whole);
    flushing.resume(checkpoint).expect("the same model");
    assert_eq!(flushing.weights().expect("weights"), whole.weights().expect("weights"));
}

#[test]
fn tied_weights_stay_equal_whatever_their_stages_delay() {
    // A checkpoint has only one of the two: it stands for both.
    let graph = gpt();
    let spike = Corrections {
        spike: Some(1.0),
        anneal_steps: Some(8),
        prediction: Some(Prediction::Velocity),
        ..DISCREPANCY
    };
    let mut plan = plan(&graph, 4, Mesh::SINGLE, spike);
    plan.optimizer = Optimizer::sgd(0.9);
    let mut whole = run(&graph, &plan);
    train(&mut whole, 5);
    let (_folder, checkpoint) = saved(&mut whole);
    let mut resumed = run(&graph, &plan);
    resumed.resume(checkpoint).expect("the same model");
    assert_eq!(train(&mut resumed, 4), train(&mut whole, 4));
    assert_eq!(digest(&mut resumed), digest(&mut whole));
}
