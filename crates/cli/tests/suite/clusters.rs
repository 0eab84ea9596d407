//! Plans for several clusters beside each other, and against one device.

use crate::invocation::Place;
use serde_json::Value;

const MODEL: &str = "gpt:layers=16,hidden=2048,heads=16,seq=512,vocab=2048";

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

#[test]
fn clusters_are_ranked_by_the_time_of_their_fastest_plans() {
    let place = Place::new();
    let clusters = "--cluster rtx-3090:1x4 --cluster h100-80g:1x4 --cluster gtx-1080-ti:1x1";
    let arguments = format!("plan {MODEL} {clusters} --global-batch 32");
    let outcome = place.run(&format!("{arguments} -o p.toml --json")).succeeds();
    let [first, second, third] = &outcome.objects()[..] else { panic!("not three answers") };
    outcome.check(first["cluster"] == "h100-80g:1x4", "another cluster is first");
    outcome.check(second["cluster"] == "rtx-3090:1x4", "another cluster is second");
    let steps = [first, second].map(|it| number(&it["predicted"]["step_seconds"]));
    outcome.check(steps[0] < steps[1], "the slower is first");
    outcome.check(third["cluster"] == "gtx-1080-ti:1x1" && third["plan"].is_null(), "a third plan");
    let reason = third["refused"].as_str().unwrap_or_default();
    outcome.check(reason.contains("fits on gtx-1080-ti:1x1 in no plan"), "no reason");
    // The same as by itself.
    let alone = place.run(&format!("plan {MODEL} --cluster h100-80g:1x4 --global-batch 32 --json"));
    let alone = alone.succeeds().object();
    outcome.check(alone["predicted"] == first["predicted"], "another prediction than alone");
    let plan = shardloom::read_plan(&place.path("p.toml")).expect("a plan");
    outcome.check(plan.cluster == "h100-80g:1x4", "the plan of another cluster");

    let outcome = place.run(&arguments).succeeds();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    outcome.check(lines[1].starts_with("h100-80g:1x4 "), "another row is first");
    outcome.check(lines[2].starts_with("rtx-3090:1x4 "), "another row is second");
    for line in ["Fastest: h100-80g:1x4", "Cheapest to buy: rtx-3090:1x4"] {
        outcome.check(lines.contains(&line), &format!("no {line:?}"));
    }
    // What is said of a plan alone is said of each.
    for cluster in ["h100-80g:1x4", "rtx-3090:1x4"] {
        for said in ["Speed-up: ", "Software: ", "Not searched: "] {
            let begin = format!("{cluster}: {said}");
            outcome.check(lines.iter().any(|it| it.starts_with(&begin)), &format!("no {begin:?}"));
        }
    }
    // Only software that nobody calibrated is known of the second.
    let warned = |others: &str| {
        let clusters = "--cluster h100-80g:1x4 --cluster tpu-v5p:1x4";
        let arguments = format!("plan {MODEL} {clusters} --global-batch 32 {others}");
        let stdout = place.run(&arguments).succeeds().stdout;
        stdout.contains("\nNot alike: the software of tpu-v5p:1x4 is not calibrated")
    };
    assert!(warned("") && !warned("--stack pytorch"));
    outcome.check(!outcome.stdout.contains("Not alike"), "one software is called unlike itself");
}

#[test]
fn a_plan_that_is_written_says_under_which_software_it_was_found() {
    let place = Place::new();
    let of = |clusters: &str| {
        let arguments = format!("plan {MODEL} {clusters} --global-batch 32 --stack pytorch");
        place.run(&format!("{arguments} -o plan.toml --force")).succeeds()
    };
    for clusters in ["--cluster a100-80g:1x4", "--cluster a100-80g:1x4 --cluster h100-80g:1x4"] {
        let outcome = of(clusters);
        let last = outcome.stdout.lines().last().unwrap_or_default();
        outcome
            .check(last.ends_with("; simulate it with --stack pytorch"), "nothing is said of it");
    }
}

#[test]
fn where_no_cluster_has_a_plan_each_says_why() {
    let place = Place::new();
    let clusters = "--cluster gtx-1080-ti:1x1 --cluster rtx-2080:1x1";
    let outcome = place.run(&format!("plan {MODEL} {clusters} --global-batch 32 --json"));
    outcome.check(outcome.stderr.contains("fits on gtx-1080-ti:1x1 in no plan"), "no first reason");
    outcome.refuses("usage", "fits on rtx-2080:1x1 in no plan");
}

#[test]
fn several_clusters_have_their_notes_and_budgets_and_a_wrong_one_is_refused() {
    let place = Place::new();
    let arguments = format!("plan {MODEL} --cluster h100-80g:1x7 --global-batch 1");
    let outcome = place.run(&format!("{arguments} --cluster h100-80g:1x8 --tokens 1e9")).succeeds();
    let said = |text: &str| outcome.stdout.lines().any(|line| line.starts_with(text));
    outcome.check(said("h100-80g:1x7: 1e9 tokens take "), "no budget");
    outcome.check(said("h100-80g:1x7: 1 of 7 devices is left out"), "no note");
    let outcome = place.run(&format!("{arguments} --cluster nonsense:1x8 --json"));
    outcome.refuses("cluster", "nonsense");
}

#[test]
fn a_vocabulary_that_would_better_be_padded_is_named() {
    let place = Place::new();
    let plan = |vocabulary: usize| {
        let model = format!("gpt:layers=2,hidden=4096,heads=32,seq=2048,vocab={vocabulary}");
        // One sample leaves nothing but tensor parallelism.
        let arguments =
            format!("plan {model} --cluster h100-80g:1x8 --global-batch 1 --method megatron-lm");
        place.run(&format!("{arguments} --json")).succeeds().object()
    };
    let odd = plan(50257);
    let tp = odd["plan"]["pipeline"][0]["stage"][0]["mesh"]["tp"].as_u64().unwrap_or(0);
    assert_eq!(tp, 8, "{odd}");
    let note = odd["notes"].to_string();
    let [odd, even] = [&odd, &plan(51200)].map(|it| number(&it["predicted"]["step_seconds"]));
    let saved = format!(
        "padded to 51200 (--pad-vocabulary 1024), which changes no loss, the same plan would take {:.1}% less",
        100.0 * (1.0 - even / odd)
    );
    assert!(note.contains(&saved), "{note}: no {saved}");
    let note = plan(51200)["notes"].to_string();
    assert!(!note.contains("vocabulary"), "{note}");
}

#[test]
fn a_speed_up_is_that_against_a_plan_for_one_device() {
    let place = Place::new();
    let plan = |cluster: &str| {
        let arguments = format!("plan {MODEL} --cluster {cluster} --global-batch 32 --json");
        place.run(&arguments).succeeds().object()
    };
    let (all, one) = (plan("h100-80g:1x4"), plan("h100-80g:1x1"));
    let [all, one] = [&all["predicted"], &one["predicted"]];
    let ratio = number(&one["step_seconds"]) / number(&all["step_seconds"]);
    // One is by estimate.
    let close = (number(&all["speedup"]) / ratio - 1.0).abs() < 0.02;
    assert!(close, "{all} against {one}");
    let share = number(&all["speedup"]) / 4.0;
    assert!((number(&all["efficiency"]) - share).abs() < 1e-9, "{all}");
    let outcome = place.run(&format!("plan {MODEL} --cluster h100-80g:1x4 --global-batch 32"));
    let outcome = outcome.succeeds();
    let line = format!("Speed-up: {:.1} against one device", number(&all["speedup"]));
    outcome.check(outcome.stdout.contains(&line), &format!("no {line:?}"));
}

/// One rank stands for others only where these have the same device.
#[test]
fn ranks_on_unlike_devices_are_simulated_by_themselves_and_the_smaller_is_said_to_be_full() {
    let place = Place::new();
    let model = "gpt:layers=24,hidden=2048,heads=16,seq=512,vocab=2048";
    let numbers = "--dp 4 --global-batch 8 --precision fp16";
    for (cluster, smaller) in
        [("h100-80g:1x2+v100-16g:1x2", [2, 3]), ("v100-16g:1x2+h100-80g:1x2", [0, 1])]
    {
        let simulate = format!("simulate {model} --cluster {cluster} {numbers}");
        let answer = place.run(&format!("{simulate} --json")).succeeds().object();
        assert_eq!(
            (&answer["folded"], answer["ranks"].as_array().map(Vec::len)),
            (&false.into(), Some(4))
        );
        let outcome = place.run(&simulate).succeeds();
        let says = "Ranks that do the same are on unlike devices, so each was simulated by itself.";
        outcome.check(outcome.stdout.contains(says), "it does not say so");
        let memory = outcome.stdout.lines().last().unwrap_or_default();
        outcome.check(memory.starts_with("Memory: does not fit"), "it fits");
        let named = |rank: u32| memory.contains(&format!("; rank {rank} holds "));
        outcome.check(smaller.into_iter().any(named), "another rank is said to be full");
    }
    let alike = place.run(&format!("simulate {model} --cluster h100-80g:4 {numbers} --json"));
    assert_eq!(alike.succeeds().object()["folded"], true);
}
