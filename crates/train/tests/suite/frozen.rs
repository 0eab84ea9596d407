//! Training with frozen parameters.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_checkpoint::{Checkpoint, Meta};
use shardloom_graph::Graph;
use shardloom_plan::{
    Averaging, Compression, Optimizer, ParameterGroup, Plan, Precision, Recompute, ScheduleKind,
    Sync, Uniform, Weights,
};
use shardloom_program::Rank;
use shardloom_train::Trainer;

use crate::support::{Samples, graph, llama, losses, mesh, serial, trainer};

const RATE: f64 = 1e-2;

const SGD: Optimizer = Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0, reference_batch: None };

fn untied() -> Graph {
    graph("gpt:layers=2,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1")
}

/// All but the head; all but the middle, which has frozen blocks on both sides; every second one.
fn choices(graph: &Graph) -> [Vec<String>; 3] {
    let names: Vec<String> = graph.parameters().map(|(_, it)| it.name.clone()).collect();
    let without = |prefix: &str| -> Vec<String> {
        names.iter().filter(|it| !it.starts_with(prefix)).cloned().collect()
    };
    [without("head."), without("block.1."), names.iter().step_by(2).cloned().collect()]
}

fn freezing(plan: Plan, frozen: &[String]) -> Plan {
    let names: Vec<&str> = frozen.iter().map(String::as_str).collect();
    let group = ParameterGroup { frozen: true, ..ParameterGroup::of_all(&names) };
    Plan { parameters: vec![group], ..plan }
}

fn planned(graph: &Graph, uniform: &Uniform, frozen: &[String]) -> Plan {
    freezing(uniform.plan(graph, "model", "local"), frozen)
}

fn start(graph: &Graph, plan: &Plan) -> Trainer {
    trainer(graph, plan, Samples::patterned(64, 16, 64), RATE)
}

type Values = BTreeMap<String, Vec<f32>>;

fn weights(trainer: &mut Trainer) -> Values {
    trainer.weights().unwrap_or_else(|error| panic!("{error}"))
}

/// Plans of all kinds with a flush, which train like the serial one.
fn plans() -> Vec<Uniform> {
    let zero = |zero| Sync { zero, bucket_bytes: 4_000, ..Sync::default() };
    let base = Uniform { microbatches: 4, ..serial() };
    let pipeline = |schedule, pp| Uniform { schedule, pp, ..base.clone() };
    let mut plans: Vec<Uniform> =
        (0..4).map(|it| Uniform { mesh: mesh(2, 1, 1), sync: zero(it), ..base.clone() }).collect();
    plans.extend([
        Uniform { mesh: mesh(1, 1, 2), sequence_parallel: true, ..base.clone() },
        Uniform { mesh: mesh(1, 2, 1), sync: zero(3), ..base.clone() },
        Uniform { recompute: Recompute::Block, ..base.clone() },
        Uniform { recompute: Recompute::Full, ..pipeline(ScheduleKind::OneForwardOneBackward, 3) },
        Uniform { mesh: mesh(2, 1, 1), sync: zero(3), ..pipeline(ScheduleKind::Afab, 2) },
        pipeline(ScheduleKind::Interleaved, 2),
        pipeline(ScheduleKind::ZeroBubbleH1, 2),
        pipeline(ScheduleKind::ZeroBubbleV, 2),
        pipeline(ScheduleKind::Chimera, 2),
    ]);
    plans
}

/// Plain gradient descent of everything, after each step of which what is frozen is put back.
fn by_putting_back(graph: &Graph, frozen: &[String], steps: usize) -> (Vec<f64>, Values) {
    let uniform = Uniform { optimizer: SGD, clip_norm: None, ..serial() };
    let mut run = start(graph, &uniform.plan(graph, "model", "local"));
    let first = weights(&mut run);
    let step = |_| {
        let loss = losses(&mut run, 1)[0];
        let mut now = weights(&mut run);
        now.extend(frozen.iter().map(|name| (name.clone(), first[name].clone())));
        run.set_weights(now).unwrap_or_else(|error| panic!("{error}"));
        loss
    };
    let lost = (0..steps).map(step).collect();
    (lost, weights(&mut run))
}

#[test]
fn frozen_parameters_stay_and_the_others_train_as_if_these_were_put_back_after_each_step() {
    for graph in [untied(), llama()] {
        for frozen in choices(&graph) {
            let uniform = Uniform { optimizer: SGD, clip_norm: None, ..serial() };
            let mut run = start(&graph, &planned(&graph, &uniform, &frozen));
            let first = weights(&mut run);
            let lost = losses(&mut run, 4);
            let last = weights(&mut run);
            let expected = by_putting_back(&graph, &frozen, 4);
            assert_eq!((lost, &last), (expected.0, &expected.1), "{frozen:?} of {}", graph.name());
            for (name, values) in &last {
                assert_eq!(*values == first[name], frozen.contains(name), "{name}");
            }
        }
    }
}

#[test]
fn every_plan_trains_what_is_not_frozen_like_the_serial_one_and_holds_what_the_program_says() {
    let graph = untied();
    for frozen in choices(&graph) {
        let mut serial = start(&graph, &planned(&graph, &serial(), &frozen));
        let (expected, first) = (losses(&mut serial, 8), weights(&mut serial));
        for uniform in plans() {
            let of = || format!("{frozen:?} under {uniform:?}");
            let mut run = start(&graph, &planned(&graph, &uniform, &frozen));
            for (loss, expected) in losses(&mut run, 8).into_iter().zip(&expected) {
                let apart = (loss - expected).abs() / expected;
                assert!(apart < 1e-4, "{loss} instead of {expected}, {}", of());
            }
            let last = weights(&mut run);
            assert!(frozen.iter().all(|name| last[name] == first[name]), "{}", of());
            let program = run.program();
            for (&counted, rank) in run.peak_bytes_per_rank().iter().zip(0u32..) {
                let (id, position) = program.locate(Rank(rank));
                let planned = program.class(id).memory_use(program, position).peak_bytes;
                assert_eq!(counted, planned, "rank {rank}, {}", of());
            }
        }
    }
}

/// Without a flush gradients are late, so that a serial run is only close to it.
#[test]
fn without_a_flush_frozen_parameters_stay_and_the_others_learn() {
    let graph = untied();
    for weights_rule in [Weights::Stash, Weights::DoubleBuffer] {
        let uniform = Uniform {
            pp: 3,
            microbatches: 4,
            schedule: ScheduleKind::PipeDream,
            clip_norm: None,
            ..serial()
        };
        let serial_like = Uniform { clip_norm: None, ..serial() };
        for frozen in choices(&graph) {
            let plan = Plan { weights: weights_rule, ..planned(&graph, &uniform, &frozen) };
            let mut run = start(&graph, &plan);
            let first = weights(&mut run);
            let trained = run.train_steps(16).unwrap_or_else(|error| panic!("{error}"));
            let mut serial = start(&graph, &planned(&graph, &serial_like, &frozen));
            let expected = losses(&mut serial, 16)[15];
            let apart = (trained[15].loss - expected).abs() / expected;
            assert!(apart < 0.03, "{} instead of {expected}", trained[15].loss);
            for (name, values) in weights(&mut run) {
                assert_eq!(values == first[&name], frozen.contains(&name), "{name}");
            }
        }
    }
}

/// Of what was frozen an optimizer has no state: it begins with the first update.
#[test]
fn what_was_frozen_trains_on_under_a_plan_that_does_not_freeze_it_as_from_its_first_update() {
    let graph = untied();
    let [frozen, ..] = choices(&graph);
    let uniform = Uniform { clip_norm: None, ..serial() };
    let plan = planned(&graph, &uniform, &frozen);
    let unfrozen = Plan { parameters: vec![], ..plan.clone() };
    let mut run = start(&graph, &plan);
    losses(&mut run, 5);
    let folder = tempfile::tempdir().expect("a folder");
    let saved = run.save(folder.path(), Meta::default(), None).expect("saved");
    run.replan(&unfrozen, 1).unwrap_or_else(|error| panic!("{error}"));
    let mut resumed = start(&graph, &unfrozen);
    resumed.resume(Checkpoint::open(&saved).expect("sound")).unwrap_or_else(|it| panic!("{it}"));
    let before = weights(&mut resumed);
    assert_eq!(losses(&mut run, 1), losses(&mut resumed, 1));
    assert_eq!(weights(&mut run), weights(&mut resumed));
    // The first update of AdamW moves every weight by the rate, whatever its gradient, but for weight decay.
    let [least, most] = moved(&before, &weights(&mut resumed), "block.0.ffn.up.weight");
    assert!(least > 0.98 * RATE && most < 1.02 * RATE, "moved by {least} to {most}");
    let [least, _] = moved(&before, &weights(&mut resumed), "head.weight");
    assert!(least < 0.5 * RATE, "the head's sixth update moved all of it by {least} or more");
    // And back again: what is frozen anew has no state to begin with later.
    run.replan(&plan, 1).unwrap_or_else(|error| panic!("{error}"));
    let held = weights(&mut run);
    losses(&mut run, 2);
    let now = weights(&mut run);
    assert!(frozen.iter().all(|name| now[name] == held[name]));
    assert_ne!(now["head.weight"], held["head.weight"]);
    run.replan(&unfrozen, 1).unwrap_or_else(|error| panic!("{error}"));
    let before = weights(&mut run);
    losses(&mut run, 1);
    let [least, most] = moved(&before, &weights(&mut run), "block.0.ffn.up.weight");
    assert!(least > 0.98 * RATE && most < 1.02 * RATE, "moved by {least} to {most}");
}

/// The least and the most that elements of a parameter have moved.
fn moved(before: &Values, after: &Values, name: &str) -> [f64; 2] {
    let pairs = before[name].iter().zip(&after[name]);
    let moved: Vec<f64> = pairs.map(|(before, after)| f64::from((before - after).abs())).collect();
    [f64::min, f64::max].map(|pick| moved.iter().copied().reduce(pick).expect("some elements"))
}

#[test]
fn frozen_weights_are_held_in_16_bits_where_these_are_computed_in_and_train_like_fp32() {
    let graph = untied();
    let [frozen, ..] = choices(&graph);
    let in_fp32 = planned(&graph, &serial(), &frozen);
    let uniform = Uniform { precision: Precision::MIXED, mesh: mesh(2, 1, 1), ..serial() };
    let in_bf16 = planned(&graph, &uniform, &frozen);
    let expected = losses(&mut start(&graph, &in_fp32), 8);
    let mut run = start(&graph, &in_bf16);
    for (loss, expected) in losses(&mut run, 8).into_iter().zip(expected) {
        assert!((loss - expected).abs() / expected < 2_f64.powi(-7), "{loss} and {expected}");
    }
    let held = weights(&mut run);
    let is_bf16 = |it: &f32| it.to_bits() & 0xffff == 0;
    assert!(frozen.iter().all(|name| held[name].iter().all(is_bf16)));
    assert!(!held["head.weight"].iter().all(is_bf16), "the head has a copy in fp32");
}

/// Residuals of equally large buckets of other parameters are no use.
#[test]
fn what_compression_leaves_out_is_saved_by_all_parameters_of_a_bucket() {
    let graph = untied();
    let sync = Sync { compression: Compression::OneBit, ..Sync::default() };
    let uniform = Uniform { mesh: mesh(2, 1, 1), clip_norm: None, sync, ..serial() };
    let names = |block: usize| {
        let names = graph.parameters().map(|(_, it)| it.name.clone());
        let prefix = format!("block.{block}.");
        let frozen: Vec<String> = names.filter(|it| it.starts_with(&prefix)).collect();
        let mut run = start(&graph, &planned(&graph, &uniform, &frozen));
        losses(&mut run, 1);
        let folder = tempfile::tempdir().expect("a folder");
        let saved = run.save(folder.path(), Meta::default(), None).expect("saved");
        let checkpoint = Checkpoint::open(&saved).expect("sound");
        let of_ranks = checkpoint.names().filter(|it| it.starts_with("rank-state."));
        of_ranks.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let [first, second] = [names(0), names(1)];
    assert_eq!(first.len(), second.len());
    assert!(!first.is_empty());
    assert_eq!(first.intersection(&second).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(first, names(0));
}

#[test]
fn averaged_replicas_share_what_is_frozen_and_cannot_freeze_what_they_have_of_their_own() {
    let graph = untied();
    let [frozen, ..] = choices(&graph);
    let averaging = Some(Averaging { every: 3, ..Averaging::local_sgd(3) });
    let sync = Sync { averaging, ..Sync::default() };
    let uniform = Uniform { mesh: mesh(2, 1, 1), clip_norm: None, sync, ..serial() };
    let plan = planned(&graph, &uniform, &frozen);
    let mut run = start(&graph, &plan);
    let before = weights(&mut run);
    losses(&mut run, 2);
    let replicas = run.weights_of_replicas().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(replicas.len(), 2);
    for replica in &replicas {
        assert_eq!(replica.len(), before.len(), "each has all parameters");
        assert!(frozen.iter().all(|name| replica[name] == before[name]));
    }
    assert_ne!(replicas[0]["head.weight"], replicas[1]["head.weight"]);
    let mut whole = start(&graph, &Plan { parameters: vec![], ..plan.clone() });
    losses(&mut whole, 2);
    let folder = tempfile::tempdir().expect("a folder");
    let saved = whole.save(folder.path(), Meta::default(), None).expect("saved");
    let refused = start(&graph, &plan).resume(Checkpoint::open(&saved).expect("sound"));
    let error = refused.expect_err("refused").to_string();
    assert!(error.contains("of 2 replicas with weights of their own"), "{error}");
    assert!(error.contains("exported weights, which are the mean"), "{error}");
}
