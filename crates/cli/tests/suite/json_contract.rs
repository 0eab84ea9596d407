//! The keys that programs rely on.

use crate::invocation::{Outcome, Place, TINY};
use serde_json::Value;

/// Checks that `value` has these keys.
#[track_caller]
fn has(outcome: &Outcome, value: &Value, keys: &[&str]) {
    for key in keys {
        outcome.check(value.get(key).is_some(), &format!("no key {key} in {value}"));
    }
}

#[test]
fn plan_simulate_and_explain() {
    let place = Place::new();
    let outcome = place
        .run("plan gpt-2 --cluster a100-80g:2x8 --global-batch 64 --tokens 3e9 -o p.toml --json")
        .succeeds();
    let answer = outcome.object();
    has(&outcome, &answer, &["plan", "predicted", "baselines", "search"]);
    has(&outcome, &answer["predicted"], &["step_seconds", "tokens_per_second", "mfu"]);
    let peaks = answer["predicted"]["peak_bytes_per_rank"].as_array().map_or(0, Vec::len);
    let devices = shardloom::read_plan(&place.path("p.toml")).expect("a plan").device_count();
    outcome.check(peaks == devices, "not one peak for each rank");
    let baselines = answer["baselines"].as_array().cloned().unwrap_or_default();
    outcome.check(baselines.len() == 3, "not three baselines");
    for baseline in &baselines {
        has(&outcome, baseline, &["name", "fits", "step_seconds"]);
        let slower =
            baseline["step_seconds"].as_f64() >= answer["predicted"]["step_seconds"].as_f64();
        outcome.check(baseline["fits"] == false || slower, "a baseline is faster");
    }
    let search = &answer["search"];
    has(&outcome, search, &["method", "space", "evaluated", "bounded_away", "seconds"]);
    let count = |key: &str| search[key].as_u64().unwrap_or(0);
    outcome.check(count("space") == count("evaluated") + count("bounded_away"), "space differs");
    has(&outcome, &answer["budget"], &["tokens", "days", "price"]);

    let outcome = place.run("simulate p.toml --json").succeeds();
    let simulated = outcome.object();
    has(&outcome, &simulated, &["step_seconds", "bubble_fraction", "ranks"]);
    let keys = ["rank", "busy_seconds", "communication_seconds", "idle_seconds", "peak_bytes"];
    has(&outcome, &simulated["ranks"][0], &keys);
    has(&outcome, &simulated["ranks"][0], &["sent_bytes", "multiplicity"]);
    let same = simulated["step_seconds"] == answer["predicted"]["step_seconds"];
    outcome.check(same, "plan and simulate predict different times");
    let unfolded = place.run("simulate p.toml --unfolded --json").succeeds().object();
    let ranks = unfolded["ranks"].as_array().map_or(0, Vec::len);
    outcome.check(ranks == devices, "not every rank by itself");

    let outcome = place.run("simulate p.toml --buffers --json").succeeds();
    let buffers = &outcome.object()["buffers"];
    has(&outcome, buffers, &["ranks", "message_bytes"]);
    let ranks = buffers["ranks"].as_array().cloned().unwrap_or_default();
    let number = |rank: &Value, key: &str| rank[key].as_u64().unwrap_or(0);
    let all: u64 = ranks.iter().map(|rank| number(rank, "multiplicity")).sum();
    outcome.check(all == devices as u64, "not the buffers of every rank");
    for rank in &ranks {
        let used = number(rank, "used_bytes");
        outcome.check(used > 0, "nothing is ever in use");
        outcome.check(used <= number(rank, "arena_bytes"), "more is in use than there is");
    }

    let outcome = place.run("explain p.toml --json").succeeds();
    let explained = outcome.object();
    has(&outcome, &explained, &["step_seconds", "facts"]);
    has(&outcome, &explained["facts"][0], &["topic", "sentence", "number"]);
}

#[test]
fn train() {
    let place = Place::new();
    let outcome = place.run(&format!("train {TINY} --steps 5 --pp 2 --dp 2 --json")).succeeds();
    let objects = outcome.objects();
    outcome.check(objects.len() == 6, "not a line for each step and a summary");
    for (step, object) in objects[..5].iter().enumerate() {
        has(&outcome, object, &["step", "loss", "step_seconds", "tokens"]);
        outcome.check(object["step"] == step, "steps out of order");
        outcome.check(object["tokens"] == 32, "not 4 samples of 8 tokens");
    }
    let summary = outcome.summary();
    let keys = ["steps", "final_loss", "median_step_seconds", "predicted_step_seconds"];
    has(&outcome, &summary, &keys);
    has(&outcome, &summary, &["bubble_fraction", "weights_digest"]);
    outcome.check(summary["steps"] == 5, "another number of steps");
    outcome.check(summary["final_loss"] == objects[4]["loss"], "another loss");
    outcome.check(summary["predicted_step_seconds"].is_null(), "predicted without a profile");
    for key in ["peak_bytes_per_rank", "sent_bytes_per_rank"] {
        let ranks = summary[key].as_array().map_or(0, Vec::len);
        outcome.check(ranks == 4, &format!("not a number for each rank in {key}"));
    }
}

#[test]
fn training_is_the_same_however_it_is_split() {
    let place = Place::new();
    let train =
        |options: &str| place.run(&format!("train {TINY} --steps 6 {options} --json")).succeeds();
    let serial = train("").losses();
    for options in [
        "--dp 2",
        "--pp 2",
        "--tp 2 --sequence-parallel",
        "--cp 2",
        "--dp 2 --cp 2 --zero 3",
        "--dp 4 --zero 2 --shard-within 2",
        "--cp 2 --tp 2 --sequence-parallel",
        "--dp 2 --zero 3",
        "--pp 2 --dp 2",
        "--pp 2 --schedule gpipe",
        "--pp 2 --schedule megatron --chunks 2",
        "--pp 2 --schedule chimera",
        "--pp 2 --schedule chimera-doubling",
        "--pp 2 --schedule hanayo",
    ] {
        let split = train(options);
        for ((_, serial), (_, loss)) in serial.iter().zip(split.losses()) {
            let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
            let apart = (number(&loss) / number(serial) - 1.0).abs();
            split.check(apart < 1e-4, &format!("{loss} instead of {serial}"));
        }
    }
}

#[test]
fn a_profile_gives_a_prediction_and_a_plan_for_ranks() {
    let place = Place::new();
    place.pretend_measured();
    let outcome = place.run(&format!("train {TINY} --steps 3 --ranks 2 --json")).succeeds();
    let predicted = outcome.summary()["predicted_step_seconds"].as_f64();
    outcome.check(predicted.is_some_and(|seconds| seconds > 0.0), "no prediction");
    // Two devices of the profile cannot say how three ranks do.
    let outcome = place.run(&format!("train {TINY} --steps 3 --pp 3 --json")).succeeds();
    let predicted = &outcome.summary()["predicted_step_seconds"];
    outcome.check(predicted.is_null(), "a prediction for more ranks than devices");
}

/// Two ranks that compute in bf16 and update fp32 masters.
const BF16: &str = r#"
format = 1
model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256"
cluster = "local:2"
global_batch = 4
microbatches = 2
schedule = "1f1b"
recompute = "none"
layout = "batch:dp, seq:cp, heads:tp, ffn:tp, vocab:tp"
sync = { algorithm = "ring", zero = 1, bucket_bytes = 25000000 }
precision = { compute = "bf16", gradients = "bf16", master = true }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }

[[pipeline]]
[[pipeline.stage]]
blocks = [0, 4]
devices = "0..2"
mesh = { dp = 2, cp = 1, tp = 1 }
"#;

#[test]
fn a_format_that_was_not_measured_is_trained_without_a_prediction() {
    let place = Place::new();
    place.pretend_measured();
    place.write("bf16.toml", BF16);
    let train = "train bf16.toml --data text.txt --steps 3";
    let outcome = place.run(&format!("{train} --json")).succeeds();
    let predicted = &outcome.summary()["predicted_step_seconds"];
    outcome.check(predicted.is_null(), "a prediction in a format that has no rate");
    outcome.check(outcome.losses().len() == 3, "not three steps");
    let outcome = place.run(train).succeeds();
    let reason = "not known, as nothing was measured in bf16 (`shardloom profile` does)";
    outcome.check(outcome.stdout.contains(reason), "no reason");
    place.write(
        "fp32.toml",
        BF16.replace("bf16", "fp32").replace("master = true", "master = false"),
    );
    let outcome = place.run("train fp32.toml --data text.txt --steps 3 --json").succeeds();
    let predicted = outcome.summary()["predicted_step_seconds"].as_f64();
    outcome.check(predicted.is_some(), "no prediction in a format that has one");
}

#[test]
fn asking_for_validation_keeps_data_for_it() {
    let place = Place::new();
    let outcome = place.run(&format!("train {TINY} --steps 4 --validate-every 2 --json"));
    let outcome = outcome.succeeds();
    let validated = |step: &Value| step["validation_loss"].is_number();
    let steps: Vec<bool> = outcome.objects()[..4].iter().map(validated).collect();
    outcome.check(steps == [false, true, false, true], "validated after other steps");
}

#[test]
fn stages_are_cut_by_their_arithmetic() {
    let place = Place::new();
    // The head of 4096 tokens outweighs both layers, so it is a stage of its own.
    let model = "gpt:layers=2,hidden=16,heads=2,vocab=4096 --seq 8 --data text.txt";
    let options = "--global-batch 4 --steps 1 --pp 2 --html report.html";
    place.run(&format!("train {model} {options}")).succeeds();
    let page = std::fs::read_to_string(place.path("report.html")).expect("a report");
    assert!(page.contains("blocks = [0, 3]") && page.contains("blocks = [3, 4]"), "another cut");
}

#[test]
fn the_virtual_clock_has_the_same_losses() {
    let place = Place::new();
    let wall = place.run(&format!("train {TINY} --steps 4 --pp 2 --json")).succeeds();
    let options = "--pp 2 --clock virtual --cluster h100-80g:2";
    let modelled = place.run(&format!("train {TINY} --steps 4 {options} --json")).succeeds();
    modelled.check(modelled.losses() == wall.losses(), "other losses");
    let predicted = &modelled.summary()["predicted_step_seconds"];
    modelled.check(predicted.is_number(), "the cluster gives no prediction");
}

#[test]
fn generate_goes_on_with_the_prompt() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 3 --checkpoint run")).succeeds();
    let arguments = "generate run --prompt 16 --tokens 5 --temperature 0 --json";
    let outcome = place.run(arguments).succeeds();
    let answer = outcome.object();
    has(&outcome, &answer, &["text", "tokens"]);
    outcome.check(answer["text"].as_str().is_some_and(|text| text.starts_with("16")), "no prompt");
    outcome.check(place.run(arguments).object() == answer, "drawn otherwise a second time");
    let text = place.run("generate run --prompt 16 --tokens 5 --temperature 0").succeeds().stdout;
    outcome.check(text.trim_end_matches('\n') == answer["text"], "another text for people");
}

#[test]
fn a_classifier_learns_from_a_table_but_writes_no_text() {
    let place = Place::new();
    let rows = (0..40).map(|row| format!("{},{},{}\n", row % 7, row % 5, row % 2));
    place.write("rows.csv", rows.collect::<String>());
    let model = "mlp:inputs=2,hidden=8,layers=1,classes=2";
    let arguments =
        format!("train {model} --data rows.csv --steps 3 --dp 2 --checkpoint run --json");
    let outcome = place.run(&arguments).succeeds();
    outcome.check(outcome.objects()[0]["tokens"] == 8, "not one target for each sample");
    place.run("generate run --prompt a --json").refuses("model", "shardloom predict");
}

#[test]
fn the_demo_trains_on_its_own_source_text() {
    let place = Place::new();
    place.pretend_measured();
    let outcome = place.run("demo --steps 2 --output shown --json").succeeds();
    outcome.check(outcome.objects().len() == 3, "not two steps and a summary");
    let summary = outcome.summary();
    has(&outcome, &summary, &["final_validation_loss", "checkpoint"]);
    outcome.check(summary["predicted_step_seconds"].is_number(), "no prediction");
    // What it has left is replaced, and what another has is not.
    place.run("demo --steps 2 --output shown --json").succeeds();
    std::fs::create_dir(place.path("mine")).expect("a folder");
    place.write("mine/report.html", "my own");
    let refused = place.run("demo --steps 2 --output mine --json");
    refused.refuses("file", "mine has report.html, which is of no demo");
    assert_eq!(std::fs::read_to_string(place.path("mine/report.html")).expect("kept"), "my own");
}

#[test]
fn reports_and_traces_are_written_once() {
    let place = Place::new();
    let train = format!("train {TINY} --steps 3 --html r.html --trace t.perfetto");
    let outcome = place.run(&train).succeeds();
    let page = std::fs::read_to_string(place.path("r.html")).expect("a report");
    outcome.check(page.starts_with("<!DOCTYPE html>"), "no page");
    let trace = std::fs::metadata(place.path("t.perfetto")).expect("a trace").len();
    outcome.check(trace > 0, "an empty trace");
    place.run(&format!("{train} --json")).refuses("file", "--force");
    place.run(&format!("{train} --force")).succeeds();
}

/// A full disk is no mistake in the arguments.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_a_failed_run_and_not_refused_input() {
    let place = Place::new();
    let commands = [
        "methods --json",
        "schedule 1f1b --stages 2 --microbatches 2 --json",
        "--help --json",
        "plan --help --json",
        "--version --json",
    ];
    for arguments in commands {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let output = place.command(arguments).stdout(full).output().expect("the program starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        let outcome = place.outcome(arguments, output.status.code(), String::new(), stderr);
        outcome.check(outcome.status == Some(1), "exit status is not 1");
        let error: Value = serde_json::from_str(&outcome.stderr).unwrap_or_default();
        outcome.check(error["error"]["kind"] == "file", "another kind of error");
        outcome.check(error["error"]["where"] == "standard output", "another place");
    }
}

#[test]
fn validate() {
    let place = Place::new();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../validate/data/korthikanti22_table5.csv");
    let outcome = place.run(&format!("validate {data} --only gpt-22b --rows --json")).succeeds();
    let file = &outcome.object()["files"][0];
    let keys = ["file", "schema", "prediction_seconds", "all", "parts", "refusals", "lines"];
    has(&outcome, file, &keys);
    let keys = ["rows", "refused", "step", "regret", "memory", "crashed", "ran", "worst"];
    has(&outcome, &file["all"], &keys);
    let keys = ["rows", "mean_absolute", "bias", "median_absolute", "rank_correlation"];
    has(&outcome, &file["all"]["step"], &keys);
    has(&outcome, &file["all"]["regret"], &["groups", "mean", "max"]);
    has(&outcome, &file["all"]["crashed"], &["rows", "exceeding"]);
    has(&outcome, &file["all"]["worst"][0], &["line", "what", "error"]);
    has(&outcome, &file["parts"][0], &["source", "hardware", "figures"]);
    let keys =
        ["line", "source", "hardware", "what", "measured_seconds", "predicted_seconds", "error"];
    has(&outcome, &file["lines"][0], &keys);
    let keys = ["measured_peak_bytes", "predicted_peak_bytes", "crashed", "exceeds", "refused"];
    has(&outcome, &file["lines"][0], &keys);
    has(&outcome, &file["lines"][0], &["prediction_seconds"]);
    outcome.check(file["all"]["step"]["rows"] == 2, "not both measurements of the line");
}
