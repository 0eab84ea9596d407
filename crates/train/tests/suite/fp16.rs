//! Training in fp16 with fp32 master weights and a scaled loss: like PyTorch with the same casts and its scaler,
//! with the memory and the traffic that the program says, however it is split, saved and resumed.

use crate::bf16::{ADAMW, assert_as_planned, assert_nearly_as_in_fp32, plan, samples};
use crate::support::golden::{initial, losses_of, tokens};
use crate::support::{gpt, graph, llama, mesh, serial, settings, trainer, trainer_with};
use shardloom_checkpoint::{Meta, Store};
use shardloom_data::Table;
use shardloom_graph::Graph;
use shardloom_plan::{
    LossScale, Mesh, Number, Optimizer, Plan, Precision, ScheduleKind, Sync, Uniform,
};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, Error, OnNonFinite, Settings, Step, Trainer};

const FP16: Precision =
    Precision { compute: Number::Fp16, gradients: Number::Fp16, master: true, ..Precision::MIXED };

/// A scale with which gradients overflow at first, and that grows so often that they do again.
const TOO_LARGE: LossScale = LossScale::Dynamic { initial: (1 << 24) as f64, growth_interval: 4 };

fn scaled(plan: Plan, loss_scale: LossScale) -> Plan {
    Plan { loss_scale: Some(loss_scale), ..plan }
}

fn small_steps() -> Settings {
    settings(Curve::Constant { peak: 1e-3 })
}

#[test]
fn losses_norms_and_scales_are_those_of_pytorch_with_the_same_casts_and_its_scaler() {
    let golden = &losses_of("gpt-fp16")["operators"];
    let number = |what: &str, step: usize| golden[what][step].as_f64();
    let graph = graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64");
    let base = Uniform { precision: FP16, optimizer: ADAMW, clip_norm: Some(1.0), ..serial() };
    let zero = |zero| Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
    for uniform in [
        base.clone(),
        Uniform { mesh: mesh(2, 1, 1), sync: zero(1), ..base.clone() },
        Uniform { mesh: mesh(2, 1, 1), sync: zero(3), ..base.clone() },
        Uniform { pp: 2, microbatches: 2, ..base.clone() },
        Uniform { mesh: mesh(1, 1, 2), sequence_parallel: true, ..base.clone() },
        Uniform { pp: 2, microbatches: 2, mesh: mesh(2, 1, 2), sync: zero(3), ..base.clone() },
    ] {
        let plan = scaled(plan(&graph, &uniform), TOO_LARGE);
        let mut trainer = trainer_with(&graph, &plan, tokens(), small_steps());
        trainer.set_weights(initial("gpt")).expect("golden weights are the model's");
        for (at, step) in trainer.train_steps(20).expect("steps").into_iter().enumerate() {
            let Step { loss, gradient_norm, skipped, loss_scale, .. } = step;
            assert_eq!(loss_scale, number("scales", at), "step {at} with {uniform:?}");
            let expected = number("losses", at).expect("a loss");
            let off = (loss - expected).abs() / expected;
            assert!(off < 2f64.powi(-12), "loss of step {at} off by {off:e} with {uniform:?}");
            let norm = gradient_norm.expect("the plan looks at it");
            assert_eq!(skipped, !norm.is_finite());
            match number("gradient_norms", at) {
                None => assert!(skipped, "step {at} overflows, with {uniform:?}"),
                Some(expected) => {
                    let off = (norm - expected).abs() / expected;
                    assert!(off < 2f64.powi(-10), "norm of step {at}: {off:e} with {uniform:?}");
                }
            }
        }
    }
}

#[test]
fn ranks_hold_and_send_what_the_program_says_to_the_byte() {
    for graph in [gpt(), llama()] {
        for (pp, mesh, zero) in
            [(1, mesh(1, 1, 1), 0), (1, mesh(2, 1, 2), 1), (2, mesh(2, 1, 1), 3)]
        {
            for gradients in [Number::Fp16, Number::Fp32] {
                let precision = Precision { gradients, ..FP16 };
                let sync = Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
                let uniform = Uniform { pp, mesh, microbatches: 2, precision, sync, ..serial() };
                let plan = scaled(plan(&graph, &uniform), LossScale::dynamic());
                assert_as_planned(trainer(&graph, &plan, samples(), 1e-3), &uniform);
            }
        }
    }
}

#[test]
fn every_optimizer_updates_master_weights() {
    for gradients in [Number::Fp16, Number::Fp32] {
        // No step is left out with so small a scale.
        let scale = LossScale::Dynamic { initial: 1024.0, growth_interval: 2_000 };
        assert_nearly_as_in_fp32(Precision { gradients, ..FP16 }, Some(scale), 2f64.powi(-10));
    }
}

/// A power of two changes exponents only.
#[test]
fn the_scale_changes_nothing_where_nothing_is_rounded_to_zero() {
    let graph = gpt();
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    for (optimizer, post_validation) in [(ADAMW, false), (adafactor, false), (ADAMW, true)] {
        let schedule = ScheduleKind::ZeroBubbleH1;
        let sync = Sync { zero: 1, bucket_bytes: 10_000, ..Sync::default() };
        let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 4, ..serial() };
        let uniform = Uniform { optimizer, schedule, sync, clip_norm: Some(0.5), ..uniform };
        let trained = |loss_scale| {
            let plan = Plan { loss_scale, post_validation, ..plan(&graph, &uniform) };
            let mut trainer = trainer(&graph, &plan, samples(), 1e-2);
            let steps = trainer.train_steps(4).expect("steps");
            let norms: Vec<_> = steps.into_iter().map(|step| step.gradient_norm).collect();
            (norms, trainer.weights_digest().expect("a digest"))
        };
        let plain = trained(None);
        let constant = LossScale::Constant { scale: 1024.0 };
        assert_eq!(trained(Some(constant)), plain, "{optimizer:?}");
        if !post_validation {
            let dynamic = LossScale::Dynamic { initial: 64.0, growth_interval: 2 };
            assert_eq!(trained(Some(dynamic)), plain, "{optimizer:?}");
        }
    }
}

/// Updates that overflow are undone as if they had been waited for.
#[test]
fn overflows_are_left_out_where_updates_are_validated_afterwards() {
    let graph = gpt();
    let schedule = ScheduleKind::ZeroBubbleH1;
    let uniform = Uniform { pp: 2, microbatches: 4, schedule, precision: FP16, ..serial() };
    let trained = |post_validation, scale| {
        let scale = LossScale::Constant { scale };
        let plan = Plan { post_validation, ..scaled(plan(&graph, &uniform), scale) };
        let settings = Settings { on_non_finite: OnNonFinite::Skip, ..small_steps() };
        let mut trainer = trainer_with(&graph, &plan, samples(), settings);
        let steps = trainer.train_steps(6).expect("steps");
        let skipped = steps.iter().filter(|step| step.skipped).count();
        (skipped, trainer.weights_digest().expect("a digest"))
    };
    for (scale, skips) in [(4096.0, 0), (TOO_LARGE.initial(), 6)] {
        let waited = trained(false, scale);
        assert_eq!(waited.0, skips);
        assert_eq!(trained(true, scale), waited, "{scale}");
    }
}

/// Gradients too small for fp16 are there with a scale, and are not without.
#[test]
fn gradients_that_would_vanish_are_kept() {
    let graph = graph("mlp:inputs=12,hidden=24,layers=4,classes=8");
    // How far an update moves the first layer's weights.
    let moved = |precision, scale| {
        let values = (0..64 * 12).map(|at| (at * 37 % 101) as f32 / 101.0 - 0.5);
        let targets = (0..64).map(|row| row * 5 % 8).collect();
        let table = Table::from_rows(values.collect(), targets, 0.0, 1).expect("rows");
        let uniform = Uniform { precision, optimizer: Optimizer::sgd(0.0), ..serial() };
        let uniform = Uniform { clip_norm: None, ..uniform };
        let plan = scaled(plan(&graph, &uniform), LossScale::Constant { scale });
        let mut trainer = trainer(&graph, &plan, table, 1e5);
        let mut weights = trainer.weights().expect("weights");
        let matrices: Vec<String> =
            weights.keys().filter(|it| it.ends_with("weight")).cloned().collect();
        let [first, second, third, ..] = &matrices[..] else { panic!("{matrices:?}") };
        // Units are on, though what goes through two layers, forward and back, is 2^-24 times as large.
        let biases = weights.iter_mut().filter(|(name, _)| name.ends_with("bias"));
        biases.flat_map(|(_, values)| values).for_each(|it| *it = 0.1);
        for name in [second, third] {
            weights.get_mut(name).expect("it").iter_mut().for_each(|it| *it *= 2f32.powi(-12));
        }
        trainer.set_weights(weights.clone()).expect("the same parameters");
        trainer.step().expect("a step");
        let after = trainer.weights().expect("weights").remove(first).expect("it");
        after.iter().zip(&weights[first]).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    let length = |of: &[f32]| of.iter().map(|it| it.powi(2)).sum::<f32>().sqrt();
    let exact = moved(Precision::FP32, 1.0);
    assert!(length(&exact) > 0.0);
    assert_eq!(length(&moved(FP16, 1.0)), 0.0);
    let kept = moved(FP16, 2f64.powi(15));
    let off: Vec<f32> = kept.iter().zip(&exact).map(|(kept, exact)| kept - exact).collect();
    assert!(length(&off) < 1e-2 * length(&exact), "{} of {}", length(&off), length(&exact));
}

#[test]
fn runs_go_on_with_the_scale_that_they_had() {
    let graph = gpt();
    let sync = Sync { zero: 1, bucket_bytes: 10_000, ..Sync::default() };
    let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 2, sync, ..serial() };
    let first = scaled(plan(&graph, &Uniform { precision: FP16, ..uniform }), TOO_LARGE);
    let second = scaled(plan(&graph, &Uniform { precision: FP16, ..serial() }), TOO_LARGE);
    let came_to = |trainer: &mut Trainer| {
        let steps = trainer.train_steps(8).expect("steps");
        let scales: Vec<_> = steps.iter().map(|step| step.loss_scale).collect();
        (scales, trainer.weights_digest().expect("a digest"))
    };
    // In the middle of a row of finite steps too.
    for before in [3, 10] {
        let mut whole = trainer(&graph, &first, samples(), 1e-2);
        whole.train_steps(before).expect("steps");
        let folder = tempfile::tempdir().expect("a folder");
        whole.save(folder.path(), Meta::default(), None).expect("saved");
        let latest =
            || Store::open(folder.path()).and_then(|store| store.load_latest()).expect("it").0;
        let resumed = |plan: &Plan| {
            let mut trainer = trainer(&graph, plan, samples(), 1e-2);
            trainer.resume(latest()).expect("resumed");
            trainer
        };
        let mut replanned = resumed(&first);
        replanned.replan(&second, 1).expect("the same model");
        assert_eq!(came_to(&mut replanned), came_to(&mut resumed(&second)), "{before} steps");
        assert_eq!(came_to(&mut resumed(&first)), came_to(&mut whole), "{before} steps");
    }
    // A checkpoint of a run without a scale has none.
    let mut plain = trainer(&graph, &plan(&graph, &serial()), samples(), 1e-2);
    plain.step().expect("a step");
    let folder = tempfile::tempdir().expect("a folder");
    plain.save(folder.path(), Meta::default(), None).expect("saved");
    let (latest, _) = Store::open(folder.path()).and_then(|it| it.load_latest()).expect("it");
    let mut resumed = trainer(&graph, &second, samples(), 1e-2);
    resumed.resume(latest).expect("resumed");
    assert_eq!(resumed.step().expect("a step").loss_scale, Some(TOO_LARGE.initial()));
}

/// A scale that cannot become smaller leaves an overflow to what the run says of it.
#[test]
fn an_overflow_that_no_smaller_scale_mends_is_one() {
    let graph = gpt();
    let overflows = LossScale::Constant { scale: TOO_LARGE.initial() };
    let uniform = Uniform { precision: FP16, ..serial() };
    let of = |on_non_finite| {
        let plan = scaled(plan(&graph, &uniform), overflows);
        trainer_with(&graph, &plan, samples(), Settings { on_non_finite, ..small_steps() })
    };
    let mut stops = of(OnNonFinite::Stop);
    let weights = stops.weights().expect("weights");
    let error = stops.step().expect_err("it overflows");
    assert!(matches!(error, Error::NonFiniteGradient { step: 0 }), "{error}");
    assert_eq!(stops.weights().expect("weights"), weights);
    for step in of(OnNonFinite::Skip).train_steps(2).expect("steps") {
        assert!(step.skipped && step.loss_scale == Some(TOO_LARGE.initial()));
    }
}

#[test]
fn in_fp16_the_loss_has_a_scale() {
    let graph: Graph = gpt();
    let refusal = |plan: &Plan| {
        let refused = Blueprint::new(graph.clone(), plan, 1, small_steps());
        refused.err().expect("it is refused").to_string()
    };
    let of = |precision| plan(&graph, &Uniform { precision, mesh: Mesh::SINGLE, ..serial() });
    let message = refusal(&of(FP16));
    assert!(message.contains("set loss_scale = { rule = \"dynamic\" }"), "{message}");
    let message = refusal(&scaled(of(Precision { master: false, ..FP16 }), LossScale::dynamic()));
    assert!(message.contains("set precision.master to true"), "{message}");
    let mixed = Precision { gradients: Number::Bf16, ..FP16 };
    let message = refusal(&scaled(of(mixed), LossScale::dynamic()));
    assert!(message.contains("precision.gradients"), "{message}");
}
