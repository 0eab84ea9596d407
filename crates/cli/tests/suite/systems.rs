//! What a step is by the names of published systems that `--schedule` takes.

use crate::invocation::{Outcome, Place};
use serde_json::Value;
use shardloom::plan::{Corrections, Plan, Prediction, Recompute, Updates, Weights};

/// A model that trains in milliseconds in up to four stages.
const MODEL: &str = "gpt:layers=2,hidden=16,heads=2,vocab=256 --seq 8 --global-batch 8";

/// Losses differ by step sooner with a high rate.
const RUN: &str = "--data text.txt --steps 12 --learning-rate 0.01";

fn train(place: &Place, options: &str) -> Outcome {
    place.run(&format!("train {MODEL} {RUN} {options} --json"))
}

/// The plan that a run was trained under, as its checkpoint has it.
fn plan(options: &str) -> Plan {
    let place = Place::new();
    let outcome = train(&place, &format!("{options} --checkpoint run")).succeeds();
    let manifest = std::fs::read(place.path("run/step-00000012/manifest.json"));
    let manifest: Value = serde_json::from_slice(&manifest.unwrap_or_default()).unwrap_or_default();
    let plan = manifest["meta"]["plan"].as_str().and_then(|it| Plan::from_toml(it, "").ok());
    outcome.check(plan.is_some(), "no plan in the checkpoint");
    plan.expect("checked")
}

fn losses(options: &str) -> Vec<(u64, String)> {
    train(&Place::new(), options).succeeds().losses()
}

fn newest(corrections: Corrections) -> Weights {
    Weights::Newest { corrections }
}

#[test]
fn a_system_s_name_trains_with_its_versions_corrections_updates_and_recomputation() {
    let none = Corrections::default();
    let along_update = newest(Corrections { prediction: Some(Prediction::Weights), ..none });
    let along_velocity =
        newest(Corrections { spike: Some(1.0), prediction: Some(Prediction::Velocity), ..none });
    let pipemare =
        newest(Corrections { anneal_steps: Some(1000), discrepancy: Some(0.135), ..none });
    let momentum = "pb --optimizer sgd:momentum=0.9";
    for (name, weights, microbatches) in [
        ("pipedream", Weights::Stash, 1),
        ("1f1b-async", Weights::Stash, 1),
        ("pipedream-2bw", Weights::DoubleBuffer, 8),
        ("2bw", Weights::DoubleBuffer, 8),
        ("pipemare", pipemare, 8),
        ("pipelined-backpropagation", along_update, 1),
        ("pb", along_update, 1),
        (momentum, along_velocity, 1),
        ("pipedream-flush", Weights::Flush, 8),
        ("dapple", Weights::Flush, 8),
        ("gpipe", Weights::Flush, 8),
    ] {
        let plan = plan(&format!("--pp 2 --schedule {name}"));
        assert_eq!((plan.weights, plan.microbatches), (weights, microbatches), "{name}");
        let recompute = if name == "gpipe" { Recompute::Stage } else { Recompute::None };
        assert_eq!((plan.recompute, plan.updates), (recompute, Updates::Step), "{name}");
    }
}

#[test]
fn two_buffered_weights_train_by_the_name_of_the_system_that_has_them() {
    let shape = "--pp 3 --microbatches 4";
    let by_name = losses(&format!("{shape} --schedule pipedream-2bw"));
    let by_rule = losses(&format!("{shape} --schedule pipedream --versions double-buffer"));
    let stashed = losses(&format!("{shape} --schedule pipedream"));
    assert_eq!(by_name, by_rule);
    assert_ne!(by_name, stashed);
}

#[test]
fn every_system_begins_with_the_loss_of_the_weights_that_it_is_given() {
    let place = Place::new();
    train(&place, "--seed 5 --checkpoint other").succeeds();
    place.run("export other --weights given.safetensors").succeeds();
    let first = |options: &str| {
        let outcome = train(&place, &format!("--weights given.safetensors {options}")).succeeds();
        let (_, loss) = outcome.losses().remove(0);
        loss.parse::<f64>().unwrap_or(f64::NAN)
    };
    let serial = first("");
    for name in ["gpipe", "pipedream", "2bw", "pipemare", "pb", "pb --optimizer sgd:momentum=0.9"] {
        let loss = first(&format!("--pp 4 --schedule {name}"));
        assert!((loss / serial - 1.0).abs() < 1e-5, "{name}: {loss} instead of {serial}");
    }
}

#[test]
fn pipemare_s_corrections_can_be_left_out() {
    let plain = plan("--pp 2 --schedule pipemare --versions newest");
    assert_eq!(plain.weights, newest(Corrections::default()));
}

#[test]
fn pipedream_updates_after_every_micro_batch() {
    let plan_of = |options: &str| plan(&format!("--pp 2 --microbatches 4 --schedule {options}"));
    assert_eq!(plan_of("pipedream").updates, Updates::Round);
    assert_eq!(plan_of("pipedream --versions vertical-sync").updates, Updates::Round);
    // These have their versions of one update a step.
    assert_eq!(plan_of("pipedream --versions double-buffer").updates, Updates::Step);
    assert_eq!(plan_of("pipedream --versions newest").updates, Updates::Step);
    assert_eq!(plan_of("1f1b-async --versions double-buffer").updates, Updates::Step);
    assert_eq!(plan_of("2bw").updates, Updates::Step);
}

#[test]
fn options_may_say_otherwise_where_that_is_no_contradiction() {
    let recompute = |options: &str| plan(&format!("--pp 2 {options}")).recompute;
    assert_eq!(recompute("--schedule gpipe --recompute none"), Recompute::None);
    assert_eq!(recompute("--schedule gpipe --recompute full"), Recompute::Full);
    assert_eq!(
        plan("--pp 2 --schedule 2bw --versions double-buffer").weights,
        Weights::DoubleBuffer
    );
}

#[test]
fn what_contradicts_a_system_s_name_is_refused() {
    let place = Place::new();
    for (options, kind, hint) in [
        (
            "2bw --versions stash",
            "usage",
            "a name for double-buffer; --schedule pipedream takes it",
        ),
        ("pipedream-2bw --versions newest", "usage", "--versions newest cannot be given"),
        ("pb --versions vertical-sync", "usage", "a name for newest; --schedule pipemare"),
        ("pb --microbatches 2", "usage", "of which every micro-batch is a step"),
        ("gpipe --versions stash", "plan", "afab has a flush"),
        ("pipedream --microbatches 2 --clip-norm 1", "plan", "leave out clip_norm"),
        ("pipemare --dp 2 --zero 1", "plan", "zero = 0"),
    ] {
        let arguments = format!("--pp 2 --schedule {options}");
        train(&place, &arguments).refuses(kind, hint);
        let simulate = format!("simulate {MODEL} --cluster h100-80g:4 {arguments} --json");
        place.run(&simulate).refuses(kind, hint);
    }
}

#[test]
fn simulation_and_comparison_hold_the_versions_of_the_system() {
    let place = Place::new();
    let shape = format!("{MODEL} --cluster h100-80g:4 --pp 4 --microbatches 4");
    let peak = |options: &str| {
        let outcome =
            place.run(&format!("simulate {shape} --schedule {options} --json")).succeeds();
        let answer = outcome.object();
        answer["ranks"]
            .as_array()
            .into_iter()
            .flatten()
            .fold(0, |most, rank| most.max(rank["peak_bytes"].as_u64().unwrap_or(0)))
    };
    let double_buffered = peak("pipedream --versions double-buffer");
    assert_eq!(peak("2bw"), double_buffered);
    assert!(peak("pipedream") > double_buffered && double_buffered > 0);

    let names = "pipedream,2bw,pipedream-2bw,pipemare,pb,gpipe,afab";
    let outcome = place.run(&format!("compare {shape} --schedules {names} --json")).succeeds();
    let answer = outcome.object();
    let row = |name: &str| {
        let rows = answer["rows"].as_array().into_iter().flatten();
        let row = rows.into_iter().find(|row| row["method"] == name);
        outcome.check(row.is_some(), &format!("no row {name}"));
        row.expect("checked")
    };
    let peak_of = |name: &str| row(name)["peak_bytes"].as_u64().unwrap_or(0);
    outcome.check(peak_of("2bw") == double_buffered, "other versions");
    outcome.check(peak_of("pipedream-2bw") == double_buffered, "other versions");
    outcome.check(peak_of("pipedream") > double_buffered, "other versions");
    outcome.check(peak_of("gpipe") < peak_of("afab"), "nothing is computed again");
    let reason = row("pb")["reason"].as_str().unwrap_or_default();
    outcome.check(reason.contains("every micro-batch is a step"), "pb has several");
}
