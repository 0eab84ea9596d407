//! Training in bfloat16 with fp32 master weights: like PyTorch with the same casts, with the memory and the
//! traffic that the program says, however it is split, saved and resumed.

use crate::support::golden::{initial, losses_of, tokens};
use crate::support::{
    Samples, gpt, graph, llama, mesh, serial, settings, trainer, trainer_with_clock,
};
use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_data::Table;
use shardloom_graph::Graph;
use shardloom_plan::{
    Corrections, LossScale, Mesh, Number, Optimizer, Plan, Precision, Prediction, Recompute,
    ScheduleKind, Sync, Uniform, Weights,
};
use shardloom_program::{Content, Format, Keep, Program, Rank};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, RunClock, Step, Trainer};

/// Everything in bfloat16 but the master weights and the optimizer's moments.
const BF16: Precision =
    Precision { compute: Number::Bf16, gradients: Number::Bf16, master: true, ..Precision::MIXED };

pub(crate) const ADAMW: Optimizer =
    Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };

pub(crate) fn plan(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", "local")
}

pub(crate) fn samples() -> Samples {
    Samples::patterned(64, 16, 64)
}

/// Losses and gradient norms of the golden steps.
fn golden_steps(uniform: &Uniform) -> Vec<(f64, f64)> {
    let graph = graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64");
    let uniform = Uniform { optimizer: ADAMW, clip_norm: Some(1.0), ..uniform.clone() };
    let mut trainer = trainer(&graph, &plan(&graph, &uniform), tokens(), 1e-3);
    trainer.set_weights(initial("gpt")).expect("golden weights are the model's");
    let step = |_| {
        let Step { loss, gradient_norm, .. } = trainer.step().expect("a step");
        (loss, gradient_norm.expect("the plan clips"))
    };
    (0..20).map(step).collect()
}

/// The largest relative differences of losses and of norms from a golden run.
fn differences(found: &[(f64, f64)], run: &str) -> (f64, f64) {
    let golden = losses_of("gpt-bf16");
    let expected =
        |what: &str, step: usize| golden[run][what][step].as_f64().expect("20 numbers of each");
    let largest = |what: &str, of: fn(&(f64, f64)) -> f64| {
        let each = found.iter().enumerate();
        let difference = each.map(|(step, it)| {
            let expected = expected(what, step);
            (of(it) - expected).abs() / expected
        });
        difference.fold(0.0, f64::max)
    };
    (largest("losses", |it| it.0), largest("gradient_norms", |it| it.1))
}

/// How far from a golden run losses and norms may be. Which of two neighbours a number is rounded to depends
/// on the order of sums, so runs with the same casts drift apart by a part of a bfloat16's last bit, 2^-7 of
/// a number at most; PyTorch's own operators round in more places, the loss too.
fn most(run: &str) -> (f64, f64) {
    match run {
        "operators" => (2f64.powi(-10), 2f64.powi(-8)),
        _ => (2f64.powi(-7), 2f64.powi(-8)),
    }
}

#[test]
fn losses_and_gradient_norms_are_those_of_pytorch_with_the_same_casts() {
    let mixed = Precision { gradients: Number::Fp32, ..BF16 };
    let base = Uniform { precision: BF16, ..serial() };
    let zero = |zero| Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
    for uniform in [
        base.clone(),
        Uniform { precision: mixed, ..base.clone() },
        Uniform { mesh: mesh(2, 1, 1), ..base.clone() },
        Uniform { mesh: mesh(2, 1, 1), sync: zero(1), ..base.clone() },
        Uniform { mesh: mesh(2, 1, 1), sync: zero(3), ..base.clone() },
        Uniform { pp: 2, microbatches: 2, ..base.clone() },
        Uniform { mesh: mesh(1, 1, 2), ..base.clone() },
        Uniform { mesh: mesh(1, 1, 2), sequence_parallel: true, precision: mixed, ..base.clone() },
        Uniform { pp: 2, microbatches: 2, mesh: mesh(2, 1, 2), sync: zero(3), ..base.clone() },
    ] {
        let found = golden_steps(&uniform);
        for run in ["operators", "modules"] {
            let (losses, norms) = differences(&found, run);
            let (most_losses, most_norms) = most(run);
            assert!(losses < most_losses, "{run}: losses off by {losses:e} with {uniform:?}");
            assert!(norms < most_norms, "{run}: norms off by {norms:e} with {uniform:?}");
        }
    }
}

/// Asserts that the ranks of a trainer send in two steps, and hold, what their program says.
pub(crate) fn assert_as_planned(mut trainer: Trainer, uniform: &Uniform) {
    trainer.train_steps(2).expect("steps");
    let (sent, held) = planned(trainer.program());
    let sent: Vec<u64> = sent.into_iter().map(|bytes| 2 * bytes).collect();
    assert_eq!(trainer.sent_bytes_per_rank(), sent, "{uniform:?}");
    assert_eq!(trainer.peak_bytes_per_rank(), held, "{uniform:?}");
}

/// What the ranks of a program send in a step, and the most that they hold.
fn planned(program: &Program) -> (Vec<u64>, Vec<u64>) {
    let of = |rank| {
        let (class, position) = program.locate(Rank(rank));
        let held = program.class(class).memory_use(program, position);
        (program.sent_bytes(class, position), held.peak_bytes)
    };
    (0..program.ranks() as u32).map(of).unzip()
}

#[test]
fn ranks_hold_and_send_what_the_program_says_to_the_byte() {
    for graph in [gpt(), llama()] {
        for (pp, mesh, sequence_parallel) in [
            (1, mesh(1, 1, 1), false),
            (1, mesh(2, 1, 1), false),
            (1, mesh(2, 1, 2), true),
            (2, mesh(3, 1, 1), false),
            (2, mesh(1, 2, 2), false),
        ] {
            for zero in (0..4).take(if mesh.dp() > 1 { 4 } else { 1 }) {
                let algorithm = [Algorithm::Ring, Algorithm::Direct][usize::from(zero) % 2];
                let gradients = [Number::Bf16, Number::Fp32][usize::from(zero) / 2];
                let uniform = Uniform {
                    pp,
                    mesh,
                    sequence_parallel,
                    global_batch: 12,
                    microbatches: 2,
                    recompute: Recompute::ALL[usize::from(zero) % 3],
                    precision: Precision { gradients, ..BF16 },
                    sync: Sync { zero, bucket_bytes: 10_000, algorithm, ..Sync::default() },
                    ..serial()
                };
                let trainer = trainer(&graph, &plan(&graph, &uniform), samples(), 1e-3);
                assert_as_planned(trainer, &uniform);
            }
        }
    }
}

#[test]
fn both_clocks_train_the_same_weights() {
    let graph = gpt();
    for (algorithm, zero) in
        [(Algorithm::Ring, 0), (Algorithm::Direct, 1), (Algorithm::HalvingDoubling, 3)]
    {
        let sync = Sync { zero, algorithm, bucket_bytes: 10_000, ..Sync::default() };
        let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 2), microbatches: 2, sync, ..serial() };
        let plan = plan(&graph, &Uniform { precision: BF16, ..uniform });
        let cluster = Cluster::parse("h100-80g:8").expect("a preset");
        let weights = [RunClock::Wall, RunClock::Virtual(cluster)].map(|clock| {
            let mut trainer = trainer_with_clock(&graph, &plan, samples(), 1e-2, clock);
            trainer.train_steps(3).expect("steps");
            trainer.weights_digest().expect("a digest")
        });
        assert_eq!(weights[0], weights[1], "{algorithm:?}");
    }
}

/// Asserts that under every other optimizer, and sharded, losses in `precision` are within `most` of those in fp32.
pub(crate) fn assert_nearly_as_in_fp32(
    precision: Precision,
    loss_scale: Option<LossScale>,
    most: f64,
) {
    let graph = gpt();
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 };
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    for optimizer in [Optimizer::sgd(0.9), lamb, adafactor] {
        let trained = |precision, loss_scale, mesh: Mesh, zero| {
            let sync = Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
            let uniform = Uniform { optimizer, precision, mesh, sync, ..serial() };
            let plan = Plan { loss_scale, ..plan(&graph, &uniform) };
            let mut trainer = trainer(&graph, &plan, samples(), 1e-3);
            let steps = trainer.train_steps(5).expect("steps");
            steps.into_iter().map(|step| step.loss).collect::<Vec<f64>>()
        };
        let fp32 = trained(Precision::FP32, None, Mesh::SINGLE, 0);
        for (mesh, zero) in [(Mesh::SINGLE, 0), (mesh(2, 1, 1), 1), (mesh(2, 1, 1), 3)] {
            for (found, expected) in trained(precision, loss_scale, mesh, zero).iter().zip(&fp32) {
                let difference = (found - expected).abs() / expected;
                assert!(difference < most, "{optimizer:?}: {found}, fp32 {expected}");
            }
        }
    }
}

#[test]
fn every_optimizer_updates_master_weights() {
    assert_nearly_as_in_fp32(BF16, None, 2f64.powi(-7));
}

#[test]
fn an_fp32_master_copy_of_fp32_weights_changes_nothing() {
    let graph = gpt();
    for (zero, schedule) in [
        (0, ScheduleKind::OneForwardOneBackward),
        (1, ScheduleKind::ZeroBubbleH1),
        (3, ScheduleKind::OneForwardOneBackward),
    ] {
        let weights = [false, true].map(|master| {
            let sync = Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
            let precision = Precision { master, ..Precision::FP32 };
            let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 4, ..serial() };
            let uniform = Uniform { sync, precision, schedule, clip_norm: Some(0.5), ..uniform };
            let is_validated = schedule == ScheduleKind::ZeroBubbleH1;
            let plan = Plan { post_validation: is_validated, ..plan(&graph, &uniform) };
            let mut trainer = trainer(&graph, &plan, samples(), 1e-2);
            trainer.train_steps(4).expect("steps");
            trainer.weights_digest().expect("a digest")
        });
        assert_eq!(weights[0], weights[1], "zero {zero}, {schedule:?}");
    }
}

#[test]
fn an_update_that_is_undone_makes_the_weights_anew() {
    let graph = graph("gpt:layers=4,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1");
    let schedule = ScheduleKind::ZeroBubbleH1;
    let uniform = Uniform { pp: 2, microbatches: 4, schedule, precision: BF16, ..serial() };
    // Every norm exceeds this bound, so that every update is wrong at first.
    let usual = plan(&graph, &Uniform { clip_norm: Some(0.01), ..uniform });
    let later = Plan { post_validation: true, ..usual.clone() };
    let [usual, later] = [usual, later].map(|plan| {
        let mut trainer = trainer(&graph, &plan, samples(), 1e-2);
        trainer.train_steps(4).expect("steps");
        trainer.weights().expect("weights")
    });
    for (name, usual) in usual {
        for (found, expected) in later[&name].iter().zip(usual) {
            assert!((found - expected).abs() < 1e-4, "{name}: {found}, {expected}");
        }
    }
}

#[test]
fn stashed_versions_are_of_the_weights_in_use() {
    let graph = gpt();
    let uniform = Uniform { pp: 2, schedule: ScheduleKind::PipeDream, ..serial() };
    let uniform = Uniform { microbatches: 4, clip_norm: None, ..uniform };
    let trained = |precision| {
        let plan =
            plan(&graph, &Uniform { precision, optimizer: Optimizer::sgd(0.9), ..uniform.clone() });
        let plan = Plan { weights: Weights::Stash, ..plan };
        let mut trainer = trainer(&graph, &plan, samples(), 1e-2);
        let steps = trainer.train_steps(6).expect("steps");
        steps.into_iter().map(|step| step.loss).collect::<Vec<f64>>()
    };
    for (found, expected) in trained(BF16).iter().zip(trained(Precision::FP32)) {
        let difference = (found - expected).abs() / expected;
        assert!(difference < 2f64.powi(-7), "{found}, fp32 {expected}");
    }
}

/// A copy in fp32 of weights in fp32 changes nothing, whichever version of them a pass reads.
#[test]
fn versions_of_weights_with_masters_are_those_of_weights_without() {
    let graph = graph("gpt:layers=4,hidden=32,heads=4,seq=16,vocab=64");
    let uniform = Uniform { pp: 4, schedule: ScheduleKind::PipeDream, ..serial() };
    let uniform = Uniform { microbatches: 4, clip_norm: None, ..uniform };
    for weights in [Weights::Stash, Weights::VerticalSync] {
        let trained = |master| {
            let precision = Precision { master, ..Precision::FP32 };
            let optimizer = Optimizer::sgd(0.9);
            let plan = plan(&graph, &Uniform { precision, optimizer, ..uniform.clone() });
            let mut trainer = trainer(&graph, &Plan { weights, ..plan }, samples(), 1e-1);
            let steps = trainer.train_steps(6).expect("steps");
            let losses: Vec<u64> = steps.iter().map(|step| step.loss.to_bits()).collect();
            (losses, trainer.weights().expect("weights"))
        };
        assert_eq!(trained(true), trained(false), "{}", weights.name());
    }
}

#[test]
fn real_inputs_are_rounded() {
    let graph = graph("mlp:inputs=12,hidden=24,layers=4,classes=8");
    let trained = |precision, scale: f32| {
        let values = (0..64 * 12).map(|at| scale * ((at * 37 % 101) as f32 / 101.0 - 0.5));
        let targets = (0..64).map(|row| row * 5 % 8).collect();
        let table = Table::from_rows(values.collect(), targets, 0.0, 1).expect("rows");
        let uniform = Uniform { precision, optimizer: Optimizer::sgd(0.9), ..serial() };
        let mut trainer = trainer(&graph, &plan(&graph, &uniform), table, 1e-2);
        let steps = trainer.train_steps(4).expect("steps");
        steps.into_iter().map(|step| step.loss).collect::<Vec<f64>>()
    };
    for (found, expected) in trained(BF16, 1.0).iter().zip(trained(Precision::FP32, 1.0)) {
        let difference = (found - expected).abs() / expected;
        assert!(difference > 0.0 && difference < 2f64.powi(-7), "{found}, fp32 {expected}");
    }
    // Less than half of an input's last bit more makes no difference.
    assert_eq!(trained(BF16, 1.0)[0], trained(BF16, 1.0 + 1e-7)[0]);
}

fn split(precision: Precision, zero: u8) -> Uniform {
    let sync = Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
    Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 2, sync, precision, ..serial() }
}

#[test]
fn checkpoints_hold_masters_and_are_exchanged_with_fp32() {
    let graph = gpt();
    for (zero, precision, other) in
        [(0, BF16, Precision::FP32), (1, Precision::FP32, BF16), (3, BF16, Precision::FP32)]
    {
        let first = plan(&graph, &split(precision, zero));
        let mut before = trainer(&graph, &first, samples(), 1e-2);
        before.train_steps(2).expect("steps");
        let folder = tempfile::tempdir().expect("a folder");
        before.save(folder.path(), Meta::default(), None).expect("saved");
        let latest =
            || Store::open(folder.path()).and_then(|store| store.load_latest()).expect("it").0;
        let weights = before.weights().expect("weights");

        // Weights, two moments, and nothing twice.
        let names: Vec<String> = latest().names().map(str::to_owned).collect();
        assert_eq!(names.len(), 3 * weights.len(), "{names:?}");

        // The same plan goes on as if there had been no interruption.
        let mut resumed = trainer(&graph, &first, samples(), 1e-2);
        resumed.resume(latest()).expect("resumed");
        before.train_steps(2).expect("steps");
        resumed.train_steps(2).expect("steps");
        let [one, same] = [&mut before, &mut resumed].map(|it| it.weights_digest().expect("it"));
        assert_eq!(one, same, "zero {zero}");

        // Another precision, split otherwise, takes the very weights, and updates them nearly alike.
        let second = plan(&graph, &Uniform { precision: other, ..serial() });
        let mut taken = trainer(&graph, &second, samples(), 1e-2);
        taken.resume(latest()).expect("resumed");
        assert_eq!(taken.weights().expect("weights"), weights, "zero {zero}");
        let losses = [&mut taken, &mut {
            let mut again = trainer(&graph, &first, samples(), 1e-2);
            again.resume(latest()).expect("resumed");
            again
        }]
        .map(|it| it.step().expect("a step").loss);
        assert!((losses[0] - losses[1]).abs() < 2f64.powi(-7) * losses[1], "{losses:?}");

        // So does a run that is planned anew.
        let mut replanned = trainer(&graph, &first, samples(), 1e-2);
        replanned.resume(latest()).expect("resumed");
        replanned.replan(&second, 1).expect("the same model");
        taken = trainer(&graph, &second, samples(), 1e-2);
        taken.resume(latest()).expect("resumed");
        let digests = [&mut taken, &mut replanned].map(|it| {
            it.train_steps(2).expect("steps");
            it.weights_digest().expect("a digest")
        });
        assert_eq!(digests[0], digests[1], "zero {zero}");
    }
}

#[test]
fn only_masters_and_moments_are_in_fp32_and_saved() {
    let graph = gpt();
    let plan = plan(&graph, &split(BF16, 1));
    let blueprint = Blueprint::new(graph, &plan, 4, settings(Curve::Constant { peak: 1e-2 }));
    let blueprint = blueprint.unwrap_or_else(|error| panic!("{error}"));
    for class in &blueprint.program().classes {
        for tensor in &class.tensors {
            let is_saved = matches!(tensor.keep, Keep::State(_));
            let expected =
                matches!(tensor.content, Content::MasterWeight | Content::OptimizerState(_));
            assert_eq!(is_saved, expected, "{}", tensor.name);
            let is_short = match tensor.content {
                Content::Weight | Content::Gradient => true,
                // Statistics of norms and of cross-entropy, and losses, are fp32 all the same.
                Content::Activation => continue,
                _ => false,
            };
            assert_eq!(tensor.format == Format::Bf16, is_short, "{}", tensor.name);
        }
        let values = class.tensors.iter().filter(|it| it.content == Content::Activation);
        let short = values.clone().filter(|it| it.format == Format::Bf16).count();
        let long = values.filter(|it| it.format == Format::F32).count();
        assert!(short > 2 * long && long > 0, "{short} tensors of values in bf16, {long} in fp32");
    }
}

#[test]
fn what_is_not_trained_in_is_refused_with_what_is() {
    let graph = gpt();
    let refusal = |plan: &Plan| {
        let devices = plan.device_count();
        let source = Box::new(samples());
        let refused = Trainer::new(
            graph.clone(),
            plan,
            devices,
            source,
            settings(Curve::Constant { peak: 1e-2 }),
        );
        refused.err().expect("it is refused").to_string()
    };
    let of = |precision| plan(&graph, &Uniform { precision, ..serial() });
    let message = refusal(&of(Precision { master: false, ..BF16 }));
    assert!(message.contains("set precision.master to true"), "{message}");
    let message = refusal(&of(Precision { gradients: Number::Fp16, ..BF16 }));
    assert!(message.contains("gradients are in fp32 or as precision.compute"), "{message}");
    let prediction = Some(Prediction::Weights);
    let corrections = Corrections { prediction, ..Corrections::default() };
    let uniform = Uniform { pp: 2, microbatches: 4, clip_norm: None, ..serial() };
    let uniform = Uniform { schedule: ScheduleKind::PipeMare, precision: BF16, ..uniform };
    let plan = plan(&graph, &uniform);
    let message = refusal(&Plan { weights: Weights::Newest { corrections }, ..plan });
    assert!(message.contains("weight prediction are trained in fp32 only"), "{message}");
}

/// Steps of a small GPT, and its weights afterwards.
fn trained(uniform: &Uniform, steps: u32) -> (Vec<f64>, Trainer) {
    let graph = gpt();
    let uniform = Uniform { optimizer: ADAMW, clip_norm: Some(1.0), ..uniform.clone() };
    let mut run = trainer(&graph, &plan(&graph, &uniform), samples(), 3e-3);
    let steps = run.train_steps(steps).expect("steps");
    (steps.iter().map(|step| step.loss).collect(), run)
}

fn weights(run: &mut Trainer) -> std::collections::BTreeMap<String, Vec<f32>> {
    run.weights().expect("weights")
}

#[test]
fn weights_rounded_stochastically_are_bfloat16_and_learn_as_with_masters() {
    let base = Uniform { precision: Precision::STOCHASTIC, ..serial() };
    let (with_masters, _) = trained(&Uniform { precision: Precision::MIXED, ..base.clone() }, 60);
    let (found, mut run) = trained(&base, 60);
    let is_bf16 = |it: &f32| it.to_bits() & 0xffff == 0;
    assert!(weights(&mut run).values().flatten().all(is_bf16));
    // The mean of the last ten, as each is of another batch.
    let last = |losses: &[f64]| losses[50..].iter().sum::<f64>() / 10.0;
    let (found, expected) = (last(&found), last(&with_masters));
    assert!((found - expected).abs() < 0.03 * expected, "{found} for {expected}");
    assert!(found < 0.8 * with_masters[0], "something is learnt: {found}");
    // Neither masters nor anything else stands for them: 2 bytes, 4 of gradients and 8 of moments.
    let program = run.program();
    let class = &program.classes[0];
    let elements: usize = class.buckets.iter().map(|bucket| bucket.elements).sum();
    let bytes = class.persistent_bytes(0);
    assert_eq!(
        [bytes.weights, bytes.gradients, bytes.state],
        [2, 4, 8].map(|it| it * elements as u64)
    );
}

#[test]
fn weights_rounded_stochastically_are_the_same_whoever_rounds_them() {
    let sync = |zero, algorithm| Sync { zero, algorithm, bucket_bytes: 10_000, ..Sync::default() };
    let base = Uniform {
        precision: Precision::STOCHASTIC,
        mesh: mesh(2, 1, 1),
        sync: sync(0, Algorithm::Direct),
        ..serial()
    };
    let (losses, mut run) = trained(&base, 5);
    let expected = weights(&mut run);
    for zero in 1..4 {
        let uniform = Uniform { sync: sync(zero, Algorithm::Direct), ..base.clone() };
        let (found, mut run) = trained(&uniform, 5);
        assert_eq!((found, weights(&mut run)), (losses.clone(), expected.clone()), "ZeRO-{zero}");
    }
    // Two stages have the same sums, and so the same numbers to round.
    let stages = Uniform { pp: 2, ..base.clone() };
    let (found, mut run) = trained(&stages, 5);
    assert_eq!((found, weights(&mut run)), (losses.clone(), expected.clone()));
    // Saved and resumed, and by another seed.
    let graph = gpt();
    let uniform = Uniform { optimizer: ADAMW, clip_norm: Some(1.0), ..base };
    let plan = plan(&graph, &uniform);
    let mut first = trainer(&graph, &plan, samples(), 3e-3);
    first.train_steps(2).expect("steps");
    let folder = tempfile::tempdir().expect("a folder");
    first.save(folder.path(), Meta::default(), None).expect("saved");
    let mut resumed = trainer(&graph, &plan, samples(), 3e-3);
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
    resumed.train_steps(3).expect("steps");
    assert_eq!(weights(&mut resumed), expected);
}

/// Rows of tokens that never come only decay, in each step by about a twentieth of the distance of two numbers.
#[test]
fn weights_are_rounded_otherwise_in_every_step() {
    let graph = graph("gpt:layers=1,hidden=32,heads=2,seq=16,vocab=128");
    let uniform = Uniform { precision: Precision::STOCHASTIC, optimizer: ADAMW, ..serial() };
    let mut run = trainer(&graph, &plan(&graph, &uniform), samples(), 3e-3);
    let unused = |run: &mut Trainer| weights(run)["embedding.token"][64 * 32..].to_vec();
    let before = unused(&mut run);
    let moved = |after: &[f32]| {
        let differ = before.iter().zip(after).filter(|(before, after)| before != after);
        differ.count() as f64 / before.len() as f64
    };
    run.train_steps(1).expect("a step");
    let (first, after) = (moved(&unused(&mut run)), run.train_steps(29).map(|_| unused(&mut run)));
    let last = moved(&after.expect("steps"));
    // Were the same rounded down each time, the rest would stay as it is.
    assert!((0.03..0.1).contains(&first) && (0.6..1.0).contains(&last), "{first}, {last}");
}

#[test]
fn every_optimizer_updates_weights_that_are_rounded_stochastically() {
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.95, epsilon: 1e-6, weight_decay: 0.01 };
    for optimizer in [Optimizer::sgd(0.9), lamb, Optimizer::default()] {
        let uniform = Uniform { precision: Precision::STOCHASTIC, optimizer, ..serial() };
        for mesh in [mesh(1, 1, 1), mesh(2, 1, 2)] {
            let graph = gpt();
            let sync = Sync { zero: if mesh.dp() > 1 { 1 } else { 0 }, ..Sync::default() };
            let uniform = Uniform { mesh, sync, ..uniform.clone() };
            let mut run = trainer(&graph, &plan(&graph, &uniform), samples(), 3e-3);
            let steps = run.train_steps(20).expect("steps");
            assert!(steps[19].loss < steps[0].loss, "{optimizer:?}: {:?}", steps[19]);
            assert_as_planned(trainer(&graph, &plan(&graph, &uniform), samples(), 3e-3), &uniform);
        }
    }
}

#[test]
fn rounding_to_nearest_without_masters_is_refused_and_so_is_stochastic_rounding_with_them() {
    let graph = gpt();
    let refusal = |precision: Precision| {
        let plan = plan(&graph, &Uniform { precision, ..serial() });
        let blueprint =
            Blueprint::new(graph.clone(), &plan, 1, settings(Curve::Constant { peak: 1e-3 }));
        blueprint.err().expect("no such plan").to_string()
    };
    let nearest = refusal(Precision { master: false, ..Precision::MIXED });
    assert!(
        nearest.contains("set precision.master to true, or rounding = \"stochastic\""),
        "{nearest}"
    );
    let half = refusal(Precision { compute: Number::Fp16, ..Precision::STOCHASTIC });
    assert!(half.ends_with("set precision.master to true"), "{half}");
    let rule = "of weights in bf16 without an fp32 copy";
    for precision in [
        Precision { master: true, ..Precision::STOCHASTIC },
        Precision { compute: Number::Fp32, ..Precision::STOCHASTIC },
    ] {
        let refused = refusal(precision);
        assert!(refused.contains("precision.rounding") && refused.contains(rule), "{refused}");
    }
}
