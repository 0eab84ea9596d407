//! Every method's plan of a small GPT: valid, lowered, simulated, and in the words that it was published
//! with.

use std::fmt::Write;

use shardloom_cluster::Cluster;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_methods::{Choice, all, named};
use shardloom_plan::{LossScale, Number, PassTimes, Plan, Precision};
use shardloom_program::lower;
use shardloom_search::Request;
use shardloom_sim::{Options, simulate};

const GPT: &str = "gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024,tied=false";

fn graph(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

fn chosen(method: &str, cluster_text: &str, global_batch: usize) -> Choice {
    let cluster = Cluster::parse(cluster_text).expect("a preset");
    let request = Request::new(GPT, cluster_text, global_batch);
    let method = named(method).expect("registered");
    method.choose(&graph(GPT), &cluster, &request).expect("a plan")
}

/// A plan in the words that methods differ in.
fn words(plan: &Plan) -> String {
    let chain = |stages: &[shardloom_plan::Stage]| {
        let stage = |it: &shardloom_plan::Stage| {
            format!("{}-{}@{}", it.blocks.0, it.blocks.1, String::from(it.devices.clone()))
        };
        stages.iter().map(stage).collect::<Vec<_>>().join(" ")
    };
    let mesh = plan.stages().next().map(|(_, stage)| stage.mesh).expect("a stage");
    let mut text = format!(
        "{} x {}, {mesh}, {} weights, recompute {}{}, zero {}{}",
        plan.schedule.name(),
        plan.microbatches,
        plan.weights.name(),
        plan.recompute.name(),
        if plan.recompute_last { "" } else { " except the last" },
        plan.sync.zero,
        if plan.post_validation { ", post-validation" } else { "" }
    );
    for pipeline in &plan.pipeline {
        write!(text, "\n    {}", chain(&pipeline.stage)).expect("memory");
    }
    text
}

fn check(method: &str, cluster_text: &str) -> String {
    let choice = chosen(method, cluster_text, 64);
    let cluster = Cluster::parse(cluster_text).expect("a preset");
    let devices = cluster.device_count() as usize;
    let plan = &choice.plan;
    let graph = plan.graph_of(&graph(GPT)).into_owned();
    plan.validate(&graph, devices).expect("a valid plan");
    assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml").as_ref(), Ok(plan));
    let program = lower(&graph, plan, devices).expect("a program");
    let found = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
    assert_eq!(found.summary().step_seconds, choice.judgement.step_seconds, "{method}");
    assert!(choice.judgement.step_seconds > 0.0 && choice.simulated <= choice.space, "{method}");
    assert!(choice.judgement.fits(0.95), "{method}");
    assert_eq!(plan.global_batch, 64);
    words(plan)
}

#[test]
fn every_method_has_a_plan_that_is_valid_and_can_be_simulated() {
    let mut text = String::new();
    for method in all() {
        let words = check(method.name, "h100-80g:1x8");
        writeln!(text, "{}: {words}", method.name).expect("memory");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn plans_for_several_nodes_are_valid_too() {
    for method in ["gpipe", "pipedream", "pipedream-2bw", "chimera", "zb-v"] {
        check(method, "h100-80g:2x4");
    }
}

#[test]
fn the_registry_is_as_recorded() {
    let mut text = String::new();
    for it in all() {
        writeln!(text, "{} | {} | {}", it.name, it.family.name(), it.paper).expect("memory");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn schedules_that_fill_gaps_are_made_for_the_times_of_their_passes() {
    for method in ["zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "hanayo"] {
        let times = chosen(method, "h100-80g:4", 32).plan.pass_times;
        let all = [times.forward, times.input, times.weight, times.message];
        assert!(all.iter().all(|&time| time > 0.0), "{method}: {times:?}");
        // Hanayo's backward passes are whole; of others input gradients free a part.
        let some = 0.0 < times.kept && times.kept < 1.0;
        assert!(if method == "hanayo" { times.kept == 1.0 } else { some }, "{method}: {times:?}");
    }
    for method in ["gpipe", "interleaved", "megatron-lm"] {
        let times = chosen(method, "h100-80g:4", 32).plan.pass_times;
        assert_eq!(times, PassTimes::default(), "{method} has one order, whatever passes take");
    }
}

/// Without a scale small gradients are zero in fp16, so that such a plan is not trained.
#[test]
fn plans_in_fp16_scale_the_loss_as_is_usual() {
    let text = "v100-32g:4";
    let (graph, cluster) = (graph(GPT), Cluster::parse(text).expect("a preset"));
    let precision = Precision::usual(Number::Fp16);
    let request = Request { precision, ..Request::new(GPT, text, 16) };
    let mut scaled = vec![];
    for method in all() {
        // Some have no plan in this format, or for this model.
        let Ok(Choice { plan, notes, .. }) = method.choose(&graph, &cluster, &request) else {
            continue;
        };
        assert_eq!(plan.loss_scale, LossScale::usual(&plan), "{}", method.name);
        let in_fp16 = plan.precision.compute == Number::Fp16;
        assert_eq!(plan.loss_scale.is_some(), in_fp16, "{}", method.name);
        // To see overflows stages wait that otherwise do not, which is said.
        let waits = in_fp16 && !plan.flushes() && plan.stages().count() > 1;
        let is_said =
            notes.iter().any(|note| note.contains("stages wait for each other at the end"));
        assert_eq!(is_said, waits, "{}: {notes:?}", method.name);
        scaled.extend(plan.loss_scale.map(|_| method.name));
    }
    let usual = ["data-parallel", "horovod", "byteps", "herring", "autosync"];
    // Their steps overlap, or their updates come before the norm.
    let overlapping = ["zb-h1", "v-half", "pipedream", "pipedream-2bw"];
    for name in usual.into_iter().chain(overlapping) {
        assert!(scaled.contains(&name), "{name} is not among {scaled:?}");
    }
}

/// What moves weights along a velocity is trained in fp32 only.
#[test]
fn methods_that_move_weights_are_planned_in_fp32() {
    let (graph, cluster) = (graph(GPT), Cluster::parse("h100-80g:4").expect("a preset"));
    for asked in [Precision::FP32, Precision::usual(Number::Bf16), Precision::usual(Number::Fp16)] {
        let request = Request { precision: asked, ..Request::new(GPT, "h100-80g:4", 16) };
        for (name, moves) in
            [("pipemare", true), ("pipelined-backpropagation", true), ("pipedream-2bw", false)]
        {
            let method = named(name).expect("it is registered");
            let Choice { plan, notes, .. } =
                method.choose(&graph, &cluster, &request).expect("a plan");
            assert_eq!(plan.weights.corrections().move_weights(), moves, "{name}");
            assert_eq!(plan.precision, if moves { Precision::FP32 } else { asked }, "{name}");
            let is_said = notes.iter().any(|note| note.contains("everything is in fp32"));
            assert_eq!(is_said, moves && asked != Precision::FP32, "{name}: {notes:?}");
        }
    }
}
