//! `shardloom compare`.

use crate::invocation::{Outcome, Place, TINY};
use serde_json::Value;

/// The rows, by the name of the schedule.
#[track_caller]
fn rows(outcome: &Outcome) -> Vec<(String, Value)> {
    let answer = outcome.object();
    let rows = answer["rows"].as_array().cloned().unwrap_or_default();
    let keys = [
        "method",
        "step_seconds",
        "step_seconds_deviation",
        "speedup",
        "utilisation",
        "wait_fraction",
        "waits",
        "sent_bytes",
        "peak_bytes",
        "final_loss",
    ];
    for row in &rows {
        let has = |key: &&str| row.get(key).is_some();
        outcome.check(keys.iter().all(has), &format!("a key is missing in {row}"));
    }
    rows.iter()
        .map(|row| (row["method"].as_str().unwrap_or_default().to_owned(), row.clone()))
        .collect()
}

const SIMULATED: &str = "compare --stack shardloom gpt:layers=8,hidden=64,heads=4,seq=32,vocab=64 \
                         --cluster h100-80g:4 --pp 4 --global-batch 16 --microbatches 8";

#[test]
fn schedules_are_simulated_and_sorted_by_the_time_of_a_step() {
    let outcome = Place::new()
        .run(&format!("{SIMULATED} --schedules afab,1f1b,chimera,hanayo,interleaved:2 --json"))
        .succeeds();
    let rows = rows(&outcome);
    outcome.check(rows.len() == 5, "not five rows");
    let seconds: Vec<f64> =
        rows.iter().map(|(_, row)| row["step_seconds"].as_f64().unwrap_or(f64::NAN)).collect();
    outcome.check(seconds.is_sorted() && seconds[0] > 0.0, "not in order");
    for (_, row) in &rows {
        let share = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let (busy, waiting) = (share("utilisation"), share("wait_fraction"));
        outcome.check(busy > 0.0 && waiting >= 0.0 && busy + waiting <= 1.0 + 1e-9, "no shares");
        outcome.check(row["final_loss"].is_null() && row["reason"].is_null(), "a loss or a reason");
        outcome.check(share("speedup") > 0.0 && share("waits") > 0.0, "no speed-up or no waits");
    }
    let peak = |name: &str| {
        let row = rows.iter().find(|(method, _)| method == name);
        row.and_then(|(_, row)| row["peak_bytes"].as_u64()).unwrap_or(0)
    };
    outcome.check(peak("afab") > peak("1f1b") && peak("1f1b") > 0, "GPipe keeps no more");
}

/// On two nodes that reduces in groups of a node, which the single device that it is compared with has not.
#[test]
fn a_method_has_the_fastest_algorithm_or_the_one_that_was_asked_for() {
    let seconds = |algorithm: &str| {
        let model = "gpt:layers=4,hidden=256,heads=4,seq=256,vocab=1024";
        let outcome = Place::new().run(&format!(
            "compare --stack shardloom {model} --cluster h100-80g:2x4 --global-batch 32 --methods data-parallel \
             {algorithm} --json"
        ));
        let rows = rows(&outcome.succeeds());
        rows[0].1["step_seconds"].as_f64().expect("a time")
    };
    let (fastest, ring) = (seconds(""), seconds("--algorithm ring"));
    assert!(fastest < 0.95 * ring, "{fastest} where {ring} was asked for");
}

#[test]
fn a_row_is_what_simulate_says_of_the_same_plan() {
    let place = Place::new();
    let simulate = SIMULATED.replacen("compare", "simulate", 1);
    let simulated =
        place.run(&format!("{simulate} --schedule hanayo --chunks 2 --json")).succeeds().object();
    let outcome = place.run(&format!("{SIMULATED} --schedules hanayo:2 --json")).succeeds();
    let row = rows(&outcome).remove(0).1;
    outcome.check(row["method"] == "hanayo:2", "another name");
    outcome.check(row["step_seconds"] == simulated["step_seconds"], "another time");
    let idle = simulated["bubble_fraction"].as_f64().unwrap_or(f64::NAN);
    outcome.check(row["utilisation"] == 1.0 - idle, "another utilisation");
    let ranks = simulated["ranks"].as_array().cloned().unwrap_or_default();
    let sum = |key: &str| -> f64 {
        let of = |rank: &Value| {
            rank[key].as_f64().unwrap_or(f64::NAN) * rank["multiplicity"].as_f64().unwrap_or(1.0)
        };
        ranks.iter().map(of).sum()
    };
    outcome.check(row["sent_bytes"].as_f64() == Some(sum("sent_bytes")), "other bytes are sent");
    let waits = row["waits"].as_f64().unwrap_or(f64::NAN);
    outcome.check((waits - sum("waits") / 4.0).abs() < 1e-9, "another number of waits");
}

#[test]
fn schedules_that_do_not_exist_are_listed_with_the_reason() {
    let place = Place::new();
    let schedules = "--schedules interleaved:7,1f1b,1f1b:2,pipedream";
    let outcome = place.run(&format!("{SIMULATED} {schedules} --json")).succeeds();
    let rows = rows(&outcome);
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["pipedream", "1f1b", "interleaved:7", "1f1b:2"];
    outcome.check(names == expected, "another order");
    for (row, hint) in rows[2..].iter().zip(["10 blocks", "one stage"]) {
        let reason = row.1["reason"].as_str().unwrap_or_default();
        outcome.check(reason.contains(hint) && row.1["step_seconds"].is_null(), hint);
    }
    let text = place.run(&format!("{SIMULATED} {schedules}")).succeeds();
    text.check(text.stdout.contains("fastest") && text.stdout.contains("- 1f1b:2: "), "no list");
}

#[test]
fn what_does_not_fit_in_memory_is_never_the_fastest() {
    let place = Place::new();
    let arguments = "compare gpt:layers=12,hidden=5120,heads=40,seq=2048,vocab=51200 \
                     --cluster v100-16g:4 --pp 4 --global-batch 64 --microbatches 64 --recompute full";
    let outcome =
        place.run(&format!("{arguments} --schedules gpipe,1f1b,chimera --json")).succeeds();
    let rows = rows(&outcome);
    let fits: Vec<bool> = rows.iter().map(|(_, row)| row["fit"] != "exceeds").collect();
    outcome.check(fits.contains(&false), "all fit, so that this proves nothing");
    outcome
        .check(fits.is_sorted_by(|one, other| one >= other), "one that does not fit comes first");
}

#[test]
fn a_plan_of_which_one_stage_does_not_fit_does_not_fit() {
    let place = Place::new();
    let plan = "gpt:layers=12,hidden=3584,heads=32,seq=2048,vocab=51200 --cluster v100-16g:4 --pp 4 --global-batch 64 \
                --microbatches 64 --recompute none --json";
    let outcome = place.run(&format!("simulate {plan} --schedule 1f1b")).succeeds();
    let memory = outcome.object()["memory"].as_array().cloned().unwrap_or_default();
    let fitting = memory.iter().filter(|it| it["fit"] == "fits").count();
    outcome.check(fitting == 3 && memory.len() == 4, "another number of stages fits");
    let outcome = place.run(&format!("compare {plan} --schedules 1f1b")).succeeds();
    let rows = rows(&outcome);
    outcome.check(rows.len() == 1 && rows[0].1["fit"] == "exceeds", "it fits");
}

#[test]
fn really_trained_schedules_end_with_the_same_loss() {
    let place = Place::new();
    let schedules = "--schedules gpipe,1f1b,interleaved,chimera,hanayo,zb-h1,pipedream:1,1f1b:2";
    let arguments = format!("compare {TINY} --pp 2 --microbatches 2 --run --steps 3 {schedules}");
    for cluster in ["", "--cluster h100-80g:2"] {
        let outcome = place.run(&format!("{arguments} {cluster} --json")).succeeds();
        let rows = rows(&outcome);
        let measured: Vec<&Value> =
            rows.iter().map(|(_, row)| row).filter(|row| row["reason"].is_null()).collect();
        outcome.check(measured.len() == 7, "not seven are trained");
        let loss = |row: &Value| row["final_loss"].as_f64().unwrap_or(f64::NAN);
        let late = |row: &Value| row["method"] == "pipedream:1";
        let first = measured.iter().find(|row| !late(row)).expect("most have a flush");
        for row in &measured {
            let apart = (loss(row) / loss(first) - 1.0).abs();
            // Without a flush gradients are late, and losses differ.
            outcome.check(late(row) || apart < 1e-4, &format!("another loss in {row}"));
            let share = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
            outcome.check(share("step_seconds") > 0.0 && share("utilisation") > 0.0, "no time");
            outcome.check((0.0..1.0).contains(&share("wait_fraction")), "no share of waiting");
            outcome.check(row["peak_bytes"].as_u64() > Some(0), "no memory");
            outcome.check(row["sent_bytes"].as_u64() > Some(0), "nothing is sent");
            outcome.check(share("speedup") > 0.0, "no speed-up over one rank");
            outcome.check(row["step_seconds_deviation"].is_null(), "one run has no deviation");
        }
    }
}

#[test]
fn repeats_give_the_mean_of_their_steps_and_its_deviation() {
    let arguments = format!("compare {TINY} --pp 2 --microbatches 2 --run --steps 2");
    let outcome = Place::new()
        .run(&format!("{arguments} --schedules gpipe,1f1b --repeats 3 --json"))
        .succeeds();
    for (_, row) in rows(&outcome) {
        let repeats = row["step_seconds_of_repeats"].as_array().cloned().unwrap_or_default();
        outcome.check(repeats.len() == 3, "not three times");
        let times: Vec<f64> = repeats.iter().filter_map(Value::as_f64).collect();
        let mean = times.iter().sum::<f64>() / 3.0;
        let found = row["step_seconds"].as_f64().unwrap_or(f64::NAN);
        outcome.check((found / mean - 1.0).abs() < 1e-9, "not their mean");
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        let deviation = row["step_seconds_deviation"].as_f64().unwrap_or(f64::NAN);
        outcome
            .check((deviation - (squares / 2.0).sqrt()).abs() < 1e-9 * mean, "another deviation");
    }
}

/// Also where a search looks at some of the machines, which would usually compute in bf16.
#[test]
fn what_is_trained_is_in_32_bits_where_nobody_asks_for_fewer() {
    let place = Place::new();
    let arguments = "compare gpt:layers=2,hidden=64,heads=2,seq=64 --data text.txt --global-batch 4 --methods auto \
                     --run --steps 2 --cluster a100-80g:2x1,uplink=1Gbps --json";
    let loss = |precision: &str| {
        let outcome = place.run(&format!("{arguments} {precision}")).succeeds();
        let rows = rows(&outcome);
        rows.iter().map(|(_, row)| row["final_loss"].to_string()).collect::<Vec<_>>()
    };
    let usual = loss("");
    assert_eq!(usual, loss("--precision fp32"));
    assert_ne!(usual, loss("--precision bf16"));
}

#[test]
fn a_loss_is_reached_after_the_same_steps_by_what_trains_alike() {
    let place = Place::new();
    let arguments = format!(
        "compare {TINY} --pp 2 --microbatches 2 --run --steps 60 --cluster h100-80g:2 \
         --learning-rate 0.01 --schedules gpipe,1f1b"
    );
    let outcome = place.run(&format!("{arguments} --until-loss 5 --json")).succeeds();
    outcome.check(outcome.object()["until_loss"] == 5.0, "another loss");
    let rows = rows(&outcome);
    let value = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    for (_, row) in &rows {
        let (steps, time) = (value(row, "steps_to_loss"), value(row, "seconds_to_loss"));
        outcome.check(1.0 < steps && steps <= 60.0, "not reached");
        // In virtual time all steps of an order take about as long.
        let share = time / (steps * value(row, "step_seconds"));
        outcome.check((0.5..2.0).contains(&share), "the time is not that of these steps");
    }
    outcome.check(rows[0].1["steps_to_loss"] == rows[1].1["steps_to_loss"], "other steps");
    let never = place.run(&format!("{arguments} --until-loss 0.001")).succeeds();
    never.check(never.stdout.contains("not reached"), "reached");
}

const METHODS: &str = "compare gpt:layers=8,hidden=64,heads=4,seq=32,vocab=64 --cluster h100-80g:4 \
                       --global-batch 16 --methods gpipe,auto,zb-h1,pipedream,chimera";

#[test]
fn methods_choose_their_plans_for_the_same_cluster_and_batch() {
    let place = Place::new();
    let outcome = place.run(&format!("{METHODS} --json")).succeeds();
    let rows = rows(&outcome);
    outcome.check(rows.len() == 5, "not five rows");
    let seconds = |row: &Value| row["step_seconds"].as_f64().unwrap_or(f64::NAN);
    outcome.check(rows.is_sorted_by_key(|(_, row)| seconds(row)), "not in order");
    let model = "gpt:layers=8,hidden=64,heads=4,seq=32,vocab=64 --cluster h100-80g:4";
    for (name, row) in &rows {
        let method = if name == "auto" { String::new() } else { format!("--method {name}") };
        let planned = place
            .run(&format!("plan {model} --global-batch 16 {method} --json"))
            .succeeds()
            .object();
        let same = planned["predicted"]["step_seconds"] == row["step_seconds"];
        outcome.check(same, &format!("plan says another time than {row}"));
    }
    let text = place.run(METHODS).succeeds();
    let words = text.stdout.contains("Their plans:\n- ") && text.stdout.contains("zb-h1 with");
    text.check(words, "no plans");
}

#[test]
fn what_a_reader_of_a_plan_should_know_is_said() {
    let place = Place::new();
    let arguments = METHODS.replace("gpipe,auto", "pipemare,gpipe");
    let outcome = place.run(&format!("{arguments} --json")).succeeds();
    for (name, row) in rows(&outcome) {
        let told = row["notes"].to_string().contains("not clipped");
        // PipeDream's partition is a single stage here, which waits for nobody.
        outcome.check(told == (name == "pipemare"), &format!("other notes for {name}"));
    }
    let text = place.run(&arguments).succeeds();
    text.check(text.stdout.contains("- pipemare: gradients are not clipped to 1"), "no notes");
    let unclipped = place.run(&format!("{arguments} --no-clip")).succeeds();
    unclipped.check(!unclipped.stdout.contains("not clipped"), "a note on what nobody asked for");
}

#[test]
fn options_reach_the_methods_or_are_refused() {
    let place = Place::new();
    let compare = |rest: &str| place.run(&format!("{METHODS} --json {rest}"));
    let outcome = compare("--post-validation").succeeds();
    for (name, row) in rows(&outcome) {
        let refused = row["reason"].to_string().contains("post_validation");
        let expected = ["auto", "pipedream"].contains(&name.as_str());
        outcome.check(refused == expected, &format!("{name}: {row}"));
    }
    for option in [
        "--pp 2",
        "--dp 2",
        "--tp 2",
        "--sequence-parallel",
        "--zero 1",
        "--microbatches 2",
        "--recompute full",
        "--recompute-except-last",
        "--communication-thread",
    ] {
        let name = option.split(' ').next().unwrap_or_default();
        compare(option).refuses("usage", &format!("{name} cannot be given with --methods"));
    }
}

#[test]
fn methods_are_really_trained_and_lose_the_same_but_without_flush() {
    let place = Place::new();
    let arguments = format!("compare {TINY} --methods gpipe,auto,chimera,pipemare,dualpipe");
    let outcome =
        place.run(&format!("{arguments} --run --steps 3 --cluster h100-80g:2 --json")).succeeds();
    let rows = rows(&outcome);
    let loss = |name: &str| {
        let row = rows.iter().find(|(method, _)| method == name);
        row.and_then(|(_, row)| row["final_loss"].as_f64()).unwrap_or(f64::NAN)
    };
    for name in ["gpipe", "chimera", "dualpipe"] {
        let apart = (loss(name) / loss("auto") - 1.0).abs();
        outcome.check(apart < 1e-4, &format!("{name} loses otherwise than auto"));
    }
    outcome.check((loss("pipemare") / loss("auto") - 1.0).abs() > 1e-6, "pipemare is exact");
}

#[test]
fn what_is_wrong_with_all_of_them_is_an_error() {
    let place = Place::new();
    let model = "compare gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";
    for (arguments, kind, hint) in [
        ("", "usage", "--cluster"),
        ("--run", "usage", "--data"),
        ("--cluster h100-80g:2 --steps 3", "usage", "--run"),
        ("--cluster h100-80g:2 --schedules 1f1b,gpip", "usage", "did you mean gpipe?"),
        ("--cluster h100-80g:2 --schedules hanayo:x", "usage", "whole number"),
        ("--cluster h100-80g:2 --schedules hanayo:0", "usage", "at least 1"),
        ("--cluster h100-80g:2 --pp 0", "plan", "--pp 0"),
        ("--cluster h100-80g:2 --pp 4", "plan", "2 devices"),
        ("--cluster h100-80g:2 --pp 2 --schedules hanayo:4", "plan", "8 stages"),
        ("--cluster h100-80g:2 --pp 2 --microbatches 3", "plan", "divide"),
        ("--cluster nowhere:2", "cluster", "unknown machine"),
        ("--cluster h100-80g:2 --methods gpip", "usage", "did you mean"),
        ("--cluster h100-80g:2 --methods auto --pp 2", "usage", "--pp"),
        ("--cluster h100-80g:2 --methods all --schedules 1f1b", "usage", "--schedules"),
        ("--cluster h100-80g:2 --repeats 3", "usage", "--run"),
        ("--cluster h100-80g:2 --until-loss 3", "usage", "--run"),
        ("--run --data text.txt --repeats 0", "usage", "--repeats"),
        ("--run --data missing", "file", "missing"),
        ("--run --data text.txt --learning-rate -1", "usage", "--learning-rate"),
        ("--run --data text.txt --until-loss nan", "usage", "a finite number"),
    ] {
        place.run(&format!("{model} {arguments} --json")).refuses(kind, hint);
    }
}

#[test]
fn software_is_refused_where_nothing_is_predicted_for_machines() {
    let place = Place::new();
    place.write("text.txt", "some text to train on, which is never read");
    let run = "compare gpt:layers=2,hidden=32,heads=2 --seq 16 --pp 2 --data text.txt --run --json";
    for (more, why) in [
        ("--stack megatron", "there is no --cluster"),
        ("--stack megatron --cluster h100-80g:2", "this program's own trainer"),
    ] {
        place.run(&format!("{run} {more}")).refuses("usage", why);
    }
}

#[test]
fn what_has_too_many_instructions_is_a_row_with_the_reason() {
    let many = "compare --stack shardloom gpt:layers=4,hidden=64,heads=4,seq=32,vocab=64 --cluster \
                h100-80g:4 --pp 4 --global-batch 400000 --microbatches 400000 --schedules 1f1b --json";
    Place::new().run(many).refuses("simulation", "at most 30000000 are simulated");
}
