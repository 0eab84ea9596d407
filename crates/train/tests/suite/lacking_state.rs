//! Checkpoints that lack state of the optimizer, all of it or that of one parameter.

use crate::support::{Samples, gpt, mesh, serial, trainer};
use shardloom_checkpoint::{Checkpoint, Meta, Piece, Writer};
use shardloom_plan::{Optimizer, Plan, Sync, Uniform};
use shardloom_train::Trainer;
use tempfile::TempDir;

const STEPS: u32 = 3;

const OPTIMIZERS: [Optimizer; 4] = [
    Optimizer::sgd(0.9),
    Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
    Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 },
    Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    },
];

/// On one rank, and with state in shards.
fn plans(optimizer: Optimizer) -> [Plan; 2] {
    let one = || Uniform { optimizer, clip_norm: None, ..serial() };
    let sync = Sync { zero: 1, bucket_bytes: 4000, ..Sync::default() };
    [one(), Uniform { mesh: mesh(2, 1, 1), sync, ..one() }]
        .map(|uniform| uniform.plan(&gpt(), "model", "local"))
}

fn start(plan: &Plan) -> Trainer {
    trainer(&gpt(), plan, Samples::patterned(64, 16, 64), 1e-2)
}

fn train(run: &mut Trainer, steps: u32) -> Vec<f64> {
    let steps = run.train_steps(steps).unwrap_or_else(|error| panic!("{error}"));
    steps.iter().map(|step| step.loss).collect()
}

/// Those tensors of a checkpoint that are `kept`, as a checkpoint.
fn kept(checkpoint: &Checkpoint, kept: impl Fn(&str) -> bool) -> (TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    let writer = Writer::create(folder.path(), checkpoint.step()).expect("a new checkpoint");
    let names: Vec<&str> = checkpoint.names().filter(|name| kept(name)).collect();
    let values = names.iter().map(|name| checkpoint.read_whole(name).expect("it is there"));
    let values: Vec<Vec<f32>> = values.collect();
    let pieces = names.iter().zip(&values).map(|(&name, values)| {
        Piece::whole(name, checkpoint.global_shape(name).expect("it has one"), values)
    });
    writer.shard(0, pieces).expect("written");
    let path = writer.finish(checkpoint.meta().clone(), None).expect("written");
    (folder, Checkpoint::open(&path).expect("sound"))
}

/// A run after some steps, and what it has saved.
fn saved(plan: &Plan) -> (Trainer, TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = start(plan);
    train(&mut run, STEPS);
    let path = run.save(folder.path(), Meta::default(), None).expect("saved");
    (run, folder, Checkpoint::open(&path).expect("sound"))
}

fn is_state(name: &str) -> bool {
    name.starts_with("optimizer.")
}

#[test]
fn state_that_is_lacking_of_one_parameter_is_missed_by_its_name_and_state_of_all_goes_on() {
    for plan in OPTIMIZERS.into_iter().flat_map(plans) {
        let (mut run, _folder, checkpoint) = saved(&plan);
        let (_all, whole) = kept(&checkpoint, |_| true);
        let mut resumed = start(&plan);
        resumed.resume(whole).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(train(&mut resumed, 2), train(&mut run, 2));
        assert_eq!(resumed.weights_digest().unwrap(), run.weights_digest().unwrap());
        let states: Vec<&str> = checkpoint.names().filter(|name| is_state(name)).collect();
        assert!(states.len() > 8, "{states:?}");
        for lacking in [states[0], states[states.len() / 2], states[states.len() - 1]] {
            let (_rest, rest) = kept(&checkpoint, |name| name != lacking);
            let error = start(&plan).resume(rest).expect_err("it has lost something").to_string();
            assert!(error.contains(lacking), "{lacking} under\n{}: {error}", plan.to_toml());
        }
    }
}

/// Descent without momentum keeps none, and what begins with a velocity of 0 is that in its first step.
#[test]
fn without_any_state_descent_begins_with_no_velocity_and_other_optimizers_are_refused() {
    for optimizer in OPTIMIZERS {
        let is_descent = matches!(optimizer, Optimizer::Sgd { .. });
        for (plan, plain) in plans(optimizer).into_iter().zip(plans(Optimizer::sgd(0.0))) {
            let (_run, _folder, checkpoint) = saved(&plan);
            let (_bare, bare) = kept(&checkpoint, |name| !is_state(name));
            let mut begins = start(&plan);
            // What it has trained before leaves nothing.
            train(&mut begins, 2);
            match begins.resume(Checkpoint::open(bare.path()).expect("sound")) {
                Ok(()) => assert!(is_descent, "{optimizer:?} needs its state"),
                Err(error) => {
                    assert!(!is_descent && error.to_string().contains("optimizer."), "{error}");
                    continue;
                }
            }
            let mut expected = start(&plain);
            expected.resume(bare).expect("it needs no state");
            assert_eq!(train(&mut begins, 1), train(&mut expected, 1));
            assert_eq!(begins.weights_digest().unwrap(), expected.weights_digest().unwrap());
            train(&mut begins, 1);
            train(&mut expected, 1);
            assert_ne!(begins.weights_digest().unwrap(), expected.weights_digest().unwrap());
        }
    }
}
