//! Updates: the optimizer's settings, and the norm that gradients are clipped to.

use shardloom_plan::{Optimizer, ScheduleKind, Updates, Weights};

use crate::scenario::{DEVICES, complaint, graph, plan};

fn adamw(beta1: f64, epsilon: f64, weight_decay: f64) -> Optimizer {
    Optimizer::Adamw { beta1, beta2: 0.9, epsilon, weight_decay }
}

#[test]
fn gradients_are_clipped_to_a_norm_that_is_finite_and_above_0() {
    for norm in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let message = complaint(|it| it.clip_norm = Some(norm));
        assert_eq!(message, format!("clip_norm = {norm}: a norm is finite and above 0"));
    }
}

#[test]
fn settings_of_optimizers_are_in_their_range() {
    let optimizers = [
        (adamw(1.0, 1e-8, 0.0), "optimizer.beta1 = 1: at least 0 and below 1"),
        (adamw(f64::NAN, 1e-8, 0.0), "optimizer.beta1 = NaN: at least 0 and below 1"),
        (adamw(0.9, 0.0, 0.0), "optimizer.epsilon = 0: finite and above 0"),
        (adamw(0.9, 1e-8, -0.1), "optimizer.weight_decay = -0.1: finite and at least 0"),
        (Optimizer::sgd(-0.5), "optimizer.momentum = -0.5: at least 0 and below 1"),
        (
            Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch: Some(0) },
            "optimizer.reference_batch = 0: at least 1",
        ),
        (
            Optimizer::Lamb { beta1: 0.9, beta2: 1.5, epsilon: 1e-6, weight_decay: 0.0 },
            "optimizer.beta2 = 1.5: at least 0 and below 1",
        ),
        (
            Optimizer::Adafactor {
                decay_exponent: 0.8,
                clip: f64::INFINITY,
                least_parameter_rms: 1e-3,
                weight_decay: 0.0,
            },
            "optimizer.clip = inf: finite and above 0",
        ),
    ];
    for (optimizer, expected) in optimizers {
        assert_eq!(complaint(|it| it.optimizer = optimizer), expected);
    }
}

#[test]
fn momentum_scaled_to_the_batch_is_between_0_and_1_in_32_bits() {
    let of = |reference| Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
        reference_batch: Some(reference),
    };
    let message = complaint(|it| it.optimizer = of(1 << 40));
    assert!(message.contains("so large that the momentum of updates of"), "{message}");
    let message = complaint(|it| {
        (it.global_batch, it.optimizer) = (1000 * it.global_batch, of(1));
    });
    assert!(message.contains("so small that the momentum of updates of"), "{message}");
    let mut rounds = plan();
    rounds.schedule = ScheduleKind::PipeDream;
    rounds.weights = Weights::Stash;
    rounds.updates = Updates::Round;
    rounds.clip_norm = None;
    rounds.optimizer = of(15_000_000);
    let message = rounds.validate(&graph(), DEVICES).expect_err("1 in 32 bits").to_string();
    assert!(message.contains("momentum of updates of 2 samples"), "{message}");
    let mut fine = plan();
    fine.optimizer = of(1 << 20);
    assert_eq!(fine.validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn only_plain_descent_leaves_alone_what_has_no_gradient() {
    let sgd =
        |momentum, weight_decay| Optimizer::Sgd { momentum, weight_decay, reference_batch: None };
    assert!(!sgd(0.0, 0.0).changes_without_gradient());
    for optimizer in [sgd(0.9, 0.0), sgd(0.0, 0.1), adamw(0.9, 1e-8, 0.0), adamw(0.9, 1e-8, 0.1)] {
        assert!(optimizer.changes_without_gradient(), "{optimizer:?}");
    }
}
