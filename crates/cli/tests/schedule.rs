//! `shardloom schedule`.

mod invocation;

use std::io::Read;
use std::process::Stdio;

use invocation::Place;
use serde_json::json;

#[test]
fn utilisation_is_m_over_m_and_p_minus_one() {
    let place = Place::new();
    for (microbatches, utilisation) in [(8, "72.7%"), (4, "57.1%")] {
        let arguments = format!("schedule 1f1b --stages 4 --microbatches {microbatches}");
        let outcome = place.run(&arguments).succeeds();
        outcome.check(outcome.stdout.contains(&format!("utilisation {utilisation}")), "another");
    }
}

#[test]
fn cells_are_those_of_the_published_figure() {
    let outcome = Place::new().run("schedule 1f1b --stages 2 --microbatches 3 --backward 1");
    insta::assert_snapshot!(outcome.stdout, @r"
    0 │ F0 F1 ·  B0 F2 B1 ·  B2
    1 │ ·  F0 B0 F1 B1 F2 B2 ·
    makespan 8, bubble 25.0%, utilisation 75.0%
    most micro-batches in flight, by stage: 2, 1
    ");
}

#[test]
fn json_has_a_cell_for_every_slot() {
    let outcome = Place::new().run("schedule afab --stages 2 --microbatches 2 --json").succeeds();
    let expected = json!({
        "kind": "afab",
        "stages": 2,
        "microbatches": 2,
        "makespan": 9.0,
        "bubble_fraction": 1.0 - 12.0 / 18.0,
        "utilisation": 12.0 / 18.0,
        "peak_in_flight": [2, 2],
        "rows": [
            ["F0", "F1", ".", ".", ".", "B1", "B1", "B0", "B0"],
            [".", "F0", "F1", "B1", "B1", "B0", "B0", ".", "."],
        ],
    });
    let mut found = outcome.object();
    for key in ["bubble_fraction", "utilisation"] {
        let near =
            (found[key].as_f64().unwrap_or(f64::NAN) - expected[key].as_f64().unwrap()).abs();
        outcome.check(near < 1e-12, key);
        found[key] = expected[key].clone();
    }
    outcome.check(found == expected, "another object");
}

#[test]
fn numbers_that_are_none_are_refused() {
    let place = Place::new();
    for (arguments, hint) in [
        ("1f1b --stages 0 --microbatches 4", "--stages 0"),
        ("1f1b --stages 4 --microbatches 0", "--microbatches 0"),
        ("1f1b --stages 4 --microbatches 4 --forward 0", "--forward 0"),
        ("1f1b --stages 4000000000 --microbatches 4000000000", "at most"),
        ("1f1b --stages 4 --microbatches -4", "-4"),
        ("1f1b --stages 4 --microbatches 99999999999999999999", "99999999999999999999"),
        ("2f2b --stages 4 --microbatches 4", "afab, 1f1b"),
        ("1f1b --stages 4", "--microbatches"),
    ] {
        place.run(&format!("schedule {arguments} --json")).refuses("usage", hint);
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let arguments = "schedule 1f1b --stages 64 --microbatches 2000";
    let place = Place::new();
    let mut command = place.command(arguments);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut first = [0; 16];
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut first).expect("some output");
    drop(stdout);
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    let outcome = place.outcome(arguments, output.status.code(), String::new(), stderr).succeeds();
    outcome.check(outcome.stderr.is_empty(), "it complained");
}
