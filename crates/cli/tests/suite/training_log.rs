//! `shardloom validate --log`: a run beside the prediction for its plan.

use crate::invocation::{Outcome, Place};
use serde_json::Value;

/// A place with a plan of 8 devices on two nodes, 32 samples of 256 tokens a step.
fn place() -> Place {
    let place = Place::new();
    let model = "gpt:layers=4,hidden=256,heads=4,seq=256,vocab=1024";
    let sizes = "--cluster h100-80g:2x4 --global-batch 32 --dp 8 --tp 1 --pp 1 --zero 0";
    place
        .run(&format!("plan {model} {sizes} --micro-batch 4 --recompute none -o plan.toml"))
        .succeeds();
    place
}

fn compare(place: &Place, options: &str) -> Outcome {
    place.run(&format!("validate --log run.log --plan plan.toml {options}"))
}

/// A Megatron-LM log of steps of these seconds.
fn megatron(seconds: &[f64], batch: usize) -> String {
    let line = |(index, seconds): (usize, &f64)| {
        let milliseconds = seconds * 1e3;
        let step = 10 * (index + 1);
        format!(
            " iteration {step:8}/     500 | consumed samples: {:12} | elapsed time per iteration (ms): \
             {milliseconds:.6} | learning rate: 1.000E-04 | global batch size: {batch:5} | lm loss: 1.0E+01 |\n",
            step * batch
        )
    };
    seconds.iter().enumerate().map(line).collect()
}

fn number(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {answer}"))
}

/// What is predicted under the stack megatron.
fn predicted(place: &Place) -> (f64, [f64; 2]) {
    place.write("run.log", megatron(&[1.0; 3], 32));
    let answer = compare(place, "--json").succeeds().object();
    let interval = &answer["predicted_seconds_interval"];
    let ends = [0, 1].map(|end| interval[end].as_f64().expect("an interval"));
    (number(&answer, "predicted_seconds"), ends)
}

#[test]
fn a_usual_time_is_inside_the_interval_and_needs_no_explanation() {
    let place = place();
    let (_, [low, high]) = predicted(&place);
    let usual = (low + high) / 2.0;
    let mut seconds = vec![20.0 * usual, 3.0 * usual];
    seconds.extend([usual; 20]);
    seconds[12] = 5.0 * usual;
    place.write("run.log", megatron(&seconds, 32));
    let outcome = compare(&place, "--json").succeeds();
    let answer = outcome.object();
    outcome.check(answer["format"] == "Megatron-LM", "another format");
    outcome.check(answer["steps"] == 22 && answer["warm_up_steps"] == 2, "other steps");
    outcome.check(answer["verdict"] == "inside", "not inside");
    outcome.check(answer["slow_steps"][0]["step"] == 130, "another slow step");
    outcome.check(answer["slow_steps"].as_array().map_or(0, Vec::len) == 1, "not one slow step");
    outcome.check(answer["parts"].as_array().is_some_and(Vec::is_empty), "something is explained");
    outcome.check(answer["stack"]["name"] == "megatron", "another stack");
    let outcome = compare(&place, "").succeeds();
    for said in
        ["inside the interval: usual", "the first 2 left out as warm-up", "Slow steps: 130 ("]
    {
        outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    }
}

#[test]
fn the_circumstance_that_a_run_had_comes_closest() {
    let place = place();
    // On a network on which most of a step is communication.
    let slow = "--cluster h100-80g:2x4,uplink=20Gbps";
    place.write("run.log", megatron(&[1.0; 3], 32));
    let answer = compare(&place, &format!("{slow} --json")).succeeds().object();
    let all = answer["circumstances"].as_array().expect("circumstances").clone();
    let quarter = all
        .iter()
        .find(|it| it["what"] == "a quarter of the bandwidth between nodes")
        .expect("it is simulated");
    // Run with a quarter of its bandwidth, as the simulator has it.
    place.write("run.log", megatron(&[number(quarter, "step_seconds"); 5], 32));
    let outcome = compare(&place, &format!("{slow} --json")).succeeds();
    let answer = outcome.object();
    outcome.check(answer["verdict"] == "slower", "not slower");
    let first = &answer["circumstances"][0];
    outcome.check(number(first, "error").abs() < 1e-4, "the first is not the run's");
    let parts = answer["parts"].as_array().expect("parts");
    let replicas = parts.iter().find(|it| it["name"] == "synchronising replicas");
    let times = number(replicas.expect("replicas communicate"), "times");
    outcome.check((1.0..=5.0).contains(&times), "a quarter of the bandwidth is not about 4 times");
    let outcome = compare(&place, slow).succeeds();
    outcome.check(outcome.stdout.contains("above the interval: slower than usual"), "no verdict");
    outcome.check(outcome.stdout.contains("times as long"), "no part");
}

#[test]
fn memory_and_tokens_of_devices_are_compared_where_the_log_has_them() {
    let place = place();
    // 32 x 256 tokens on 8 devices at 1,024 a second each: a second.
    let line = |step: u32| {
        format!(
            "[titan] root - INFO - step: {step:2}  loss: 9.1  memory:  2.00GiB(2.5%)  tps: 1,024  tflops: 1.0  mfu: 1.0%\n"
        )
    };
    place.write("run.log", (1..5).map(line).collect::<String>());
    let outcome = compare(&place, "--json").succeeds();
    let answer = outcome.object();
    outcome.check((number(&answer["measured"], "median_seconds") - 1.0).abs() < 1e-9, "no second");
    outcome.check(answer["memory"]["reserved"] == true, "not reserved");
    outcome.check(number(&answer["memory"], "measured_bytes") == 2f64.powi(31), "another size");
    outcome.check(number(&answer["memory"], "predicted_bytes") > 0.0, "nothing predicted");
    outcome.check(answer["stack"]["name"] == "fsdp-eager", "another stack");
}

#[test]
fn another_step_than_the_plan_s_is_refused() {
    let place = place();
    place.write("run.log", format!("training ...\n{}", megatron(&[1.0; 3], 64)));
    compare(&place, "--json")
        .refuses("file", "run.log:2: its steps have 64 samples, and the plan's 32 samples");
    place.write("run.csv", "# of a table\n\nstep,seconds,global_batch\n\n# here too\n1,2.5,64\n");
    place
        .run("validate --log run.csv --plan plan.toml --json")
        .refuses("file", "run.csv:6: its steps have 64 samples, and the plan's 32 samples");
    // While the batch ramps up, the steps that have the plan's count.
    place.write("run.log", megatron(&[1.0; 3], 16) + &megatron(&[2.0; 3], 32));
    let answer = compare(&place, "--json").succeeds().object();
    assert_eq!(answer["other_batch_steps"], 3);
    assert_eq!(number(&answer["measured"], "median_seconds"), 2.0);
    let argument = "  seq_length ...................................... 512\n";
    place.write("run.log", argument.to_owned() + &megatron(&[1.0; 3], 32));
    compare(&place, "--json")
        .refuses("file", "run.log:1: the sequence length is 512 in the log and 256 in the plan");
    let argument = "  tensor_model_parallel_size ...................... 2\n";
    place.write("run.log", argument.to_owned() + &megatron(&[1.0; 3], 32));
    let answer = compare(&place, "--json").succeeds().object();
    let note = answer["notes"][0].as_str().expect("a note").to_owned();
    assert!(
        note.contains("line 1: the tensor-parallel degree is 2 in the log and 1 in the plan"),
        "{note}"
    );
}

/// Of stages that share devices a log counts the devices.
#[test]
fn a_pipeline_is_as_long_as_it_has_devices() {
    let place = Place::new();
    let model = "gpt:layers=4,hidden=256,heads=4,seq=256,vocab=1024";
    let sizes = "--cluster h100-80g:2x4 --global-batch 32 --dp 4 --tp 1 --pp 2 --zero 0";
    let order = "--schedule interleaved --micro-batch 1 --recompute none";
    place.run(&format!("plan {model} {sizes} {order} -o plan.toml")).succeeds();
    for (pipeline, differs) in [(2, false), (4, true)] {
        let argument = format!("  pipeline_model_parallel_size .................... {pipeline}\n");
        place.write("run.log", argument + &megatron(&[1.0; 3], 32));
        let outcome = compare(&place, "--json").succeeds();
        let notes = outcome.object()["notes"].to_string();
        let said = "the number of devices of a pipeline is 4 in the log and 2 in the plan";
        outcome.check(notes.contains(said) == differs, "another length of the pipeline");
    }
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    let place = place();
    place.write("run.log", "no steps\n");
    compare(&place, "--json").refuses("file", "no line tells of a step");
    place.write("run.log", megatron(&[1.0; 3], 32));
    compare(&place, "--warm-up 3 --json")
        .refuses("usage", "has 3 steps of this batch, of which one");
    compare(&place, "--stack megatro --json").refuses("usage", "did you mean `megatron`?");
    for arguments in
        ["--log run.log", "--plan plan.toml", "--log run.log --plan plan.toml x.csv", ""]
    {
        let outcome = place.run(&format!("validate {arguments}"));
        outcome.check(outcome.status == Some(2), "exit status is not 2");
        outcome.check(outcome.stderr.contains("Usage:"), "no usage");
    }
}
