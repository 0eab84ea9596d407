//! `shardloom validate` on a small file.

mod invocation;

use std::fs;

use invocation::Place;

/// Two plans of one group, and one with more micro-batches than its batch has samples.
const SMALL: &str = "\
gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,iteration_ms
4,8,2,256,4,2,128,1,4,1,20
4,8,4,256,4,2,128,2,2,1,30
4,8,16,256,4,2,128,1,4,1,30
";

fn place(text: &str) -> Place {
    let place = Place::new();
    fs::write(place.path("small.csv"), text).expect("the place can be written");
    place
}

#[test]
fn errors_and_refusals_are_printed() {
    let place = place(SMALL);
    let outcome = place.run("validate small.csv --rows").succeeds();
    let said = |text: &str| outcome.check(outcome.stdout.contains(text), &format!("no {text:?}"));
    said("gpt-2x256, 4 devices: dp 2, tp 2, micro-batch 4");
    said("1 not predicted: numbers do not fit together");
    said("small.csv          3         2");
    said("worst regret");
    let outcome = place.run("validate small.csv --rows --json").succeeds();
    let answer = outcome.object();
    let file = &answer["files"][0];
    outcome.check(file["all"]["rows"] == 3 && file["all"]["refused"] == 1, "not one of three");
    outcome.check(file["all"]["regret"]["groups"] == 1, "not one group");
    outcome.check(file["lines"].as_array().map_or(0, Vec::len) == 3, "not a line for each row");
    outcome.check(file["lines"][0]["measured_seconds"] == 0.02, "another time was measured");
}

#[test]
fn bad_files_and_texts_are_refused() {
    let place = place(&SMALL.replace("4,8,4,256,4,2", "4,8,4,256,-4,2"));
    let outcome = place.run("validate small.csv");
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    let what = "small.csv, line 3, column heads: invalid digit found in string";
    outcome.check(outcome.stderr.contains(what), "not the line and the column");
    let place = self::place(SMALL);
    let outcome = place.run("validate small.csv --only llama");
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stderr.contains("--only llama: no row has that"), "not what is wrong");
}
