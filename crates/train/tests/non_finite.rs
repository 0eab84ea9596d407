//! What happens to gradients and weights that are no numbers.

mod support;

use std::time::Duration;

use shardloom_plan::{Optimizer, Plan, ScheduleKind, Uniform};
use shardloom_train::checkpoint::Meta;
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{Error, OnNonFinite, RunClock, Settings, Trainer};
use support::{Samples, gpt, serial};

/// A learning rate that blows the weights up in a step or two.
fn blown_up(schedule: ScheduleKind) -> Trainer {
    let graph = gpt();
    let uniform = Uniform {
        pp: 2,
        microbatches: 4,
        schedule,
        optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
        clip_norm: None,
        ..serial()
    };
    let mut plan: Plan = uniform.plan(&graph, "model", "local");
    plan.skip_non_finite = schedule.flushes();
    let settings = Settings {
        seed: 7,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e20 }).expect("a positive rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    let samples = Box::new(Samples::patterned(64, 16, 64));
    Trainer::new(graph, &plan, 2, samples, settings).unwrap_or_else(|error| panic!("{error}"))
}

fn cause(error: Error) -> Error {
    match error {
        Error::Rank { error, .. } => *error,
        other => other,
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_run_before_its_update() {
    let mut trainer = blown_up(ScheduleKind::OneForwardOneBackward);
    let error = (0..8).find_map(|_| trainer.step().err()).expect("it cannot go well");
    let stopped = matches!(error, Error::NonFiniteGradient { .. } | Error::NonFiniteLoss { .. });
    assert!(stopped, "{error}");
    let weights = trainer.weights().expect("weights");
    assert!(weights.values().flatten().all(|weight| weight.is_finite()));
}

#[test]
fn weights_that_are_not_finite_are_not_saved() {
    // Without a flush only the loss is looked at, and that comes too late.
    let mut trainer = blown_up(ScheduleKind::PipeDream);
    assert!(matches!(trainer.train_steps(8), Err(Error::NonFiniteLoss { .. })));
    let folder = tempfile::tempdir().expect("a folder");
    let error = trainer.save(folder.path(), Meta::default(), None).expect_err("nothing to save");
    let error = cause(error);
    assert!(matches!(error, Error::NonFiniteWeights { .. }), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
}
