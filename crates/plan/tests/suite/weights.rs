//! Versions of weights and updates of schedules without a flush.

use shardloom_plan::{
    Corrections, LossScale, Optimizer, Plan, Prediction, ScheduleKind, Updates, Weights,
};

use crate::scenario::{DEVICES, complaint, graph, plan};

#[test]
fn only_schedules_without_a_flush_have_other_weights_than_those_of_a_flush() {
    assert_eq!(
        complaint(|it| it.weights = Weights::Stash),
        "weights.rule = stash: 1f1b has a flush, so \"flush\""
    );
    assert_eq!(
        complaint(|it| it.schedule = ScheduleKind::PipeDream),
        "weights.rule = flush: pipedream has no flush, so \"stash\", \"vertical-sync\", \
         \"double-buffer\" or \"newest\""
    );
}

#[test]
fn corrections_of_the_newest_weights_are_in_their_range_and_of_whole_weights_under_momentum() {
    let pipemare = |it: &mut Plan, corrections: Corrections| {
        it.schedule = ScheduleKind::PipeMare;
        it.optimizer = Optimizer::sgd(0.9);
        it.weights = Weights::Newest { corrections };
    };
    let newest = |corrections: Corrections| complaint(|it| pipemare(it, corrections));
    assert_eq!(
        newest(Corrections { discrepancy: Some(1.5), ..Corrections::default() }),
        "weights.discrepancy = 1.5: a share is above 0 and below 1"
    );
    for end in [0.0, 1.0] {
        let corrections = Corrections { discrepancy: Some(end), ..Corrections::default() };
        let rule = "a share is above 0 and below 1";
        assert_eq!(newest(corrections), format!("weights.discrepancy = {end}: {rule}"));
    }
    let moved = "moves weights for the passes that read them, which takes whole ones: zero = 0";
    let along = |prediction| Corrections { prediction: Some(prediction), ..Corrections::default() };
    for zero in 1..=3 {
        for (key, corrections) in [
            ("discrepancy", Corrections { discrepancy: Some(0.1), ..Corrections::default() }),
            ("prediction", along(Prediction::Velocity)),
            ("prediction", along(Prediction::Weights)),
        ] {
            let refused = complaint(|it| {
                pipemare(it, corrections);
                it.sync.zero = zero;
            });
            assert_eq!(refused, format!("sync.zero = {zero}: weights.{key} {moved}"));
        }
    }
    assert_eq!(
        newest(Corrections { spike: Some(-1.0), ..Corrections::default() }),
        "weights.spike = -1: finite and above 0"
    );
    assert_eq!(
        newest(Corrections { anneal_steps: Some(0), ..Corrections::default() }),
        "weights.anneal_steps = 0: at least 1 step"
    );
    for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
        let without = |corrections: Corrections| {
            complaint(|it| {
                pipemare(it, corrections);
                it.optimizer = optimizer;
            })
        };
        let rule = "it is defined for optimizer.kind = \"sgd\" with momentum";
        assert_eq!(
            without(Corrections { spike: Some(1.0), ..Corrections::default() }),
            format!("weights.spike = set: {rule}")
        );
        let prediction = Some(Prediction::Velocity);
        assert_eq!(
            without(Corrections { prediction, ..Corrections::default() }),
            format!("weights.prediction = velocity: {rule}")
        );
    }
}

#[test]
fn rounds_of_replicas_update_without_a_flush_and_without_a_norm_of_all_gradients() {
    fn endless(plan: &mut Plan) {
        plan.schedule = ScheduleKind::PipeDream;
        plan.weights = Weights::Stash;
        plan.clip_norm = None;
        plan.updates = Updates::Round;
    }
    let mut plan = plan();
    endless(&mut plan);
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    let complaint = |change: fn(&mut Plan)| {
        complaint(|it| {
            endless(it);
            change(it);
        })
    };
    let flushed = complaint(|it| {
        it.schedule = ScheduleKind::OneForwardOneBackward;
        it.weights = Weights::Flush;
    });
    assert!(flushed.starts_with("updates = round: "), "{flushed}");
    assert!(flushed.contains("which has no flush"), "{flushed}");
    let buffered = complaint(|it| it.weights = Weights::DoubleBuffer);
    assert!(buffered.contains("\"stash\" or \"vertical-sync\""), "{buffered}");
    for change in [
        |it: &mut Plan| it.clip_norm = Some(1.0),
        |it: &mut Plan| it.skip_non_finite = true,
        |it: &mut Plan| it.loss_scale = Some(LossScale::Constant { scale: 8.0 }),
    ] {
        let clipped = complaint(change);
        assert!(clipped.contains("no norm of all gradients"), "{clipped}");
    }
}
