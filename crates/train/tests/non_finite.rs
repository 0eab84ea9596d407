//! What happens to gradients and weights that are no numbers.

mod support;

use shardloom_plan::{Optimizer, Plan, ScheduleKind, Uniform};
use shardloom_train::checkpoint::Meta;
use shardloom_train::{Error, Trainer};
use support::{Samples, gpt, serial, trainer};

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
    let plan: Plan = uniform.plan(&graph, "model", "local");
    trainer(&graph, &plan, Samples::patterned(64, 16, 64), 1e20)
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
