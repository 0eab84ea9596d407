//! `shardloom schedule`.

use std::io::Read;
use std::process::Stdio;

use crate::invocation::Place;
use serde_json::{Value, json};
use shardloom::plan::ScheduleKind;

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
fn passes_are_those_of_the_published_figure() {
    let outcome = Place::new().run("schedule 1f1b --stages 2 --microbatches 3 --backward 1");
    insta::assert_snapshot!(outcome.stdout, @r"
    0 │ F0 F1 ·  B0 F2 B1 ·  B2
    1 │ ·  F0 B0 F1 B1 F2 B2 ·
    F forward  B backward  · idle
    makespan 8, bubble 25.0%, utilisation 75.0%
    largest bubble between a device's own first and last pass: 25.0%
    most micro-batches in flight, by device: 2, 1
    ");
}

#[test]
fn json_has_a_cell_for_every_slot() {
    let outcome = Place::new().run("schedule afab --stages 2 --microbatches 2 --json").succeeds();
    let expected = json!({
        "kind": "afab",
        "stages": 2,
        "replicas": null,
        "microbatches": 2,
        "chunks": 1,
        "steps": 1,
        "makespan": 9.0,
        "bubble_fraction": 1.0 - 12.0 / 18.0,
        "span_bubble_fraction": 1.0 - 6.0 / 9.0,
        "utilisation": 12.0 / 18.0,
        "steady_utilisation": null,
        "peak_in_flight": [2, 2],
        "slot": 1.0,
        "exact_slots": true,
        "rows": [
            ["F0", "F1", ".", ".", ".", "B1", "B1", "B0", "B0"],
            [".", "F0", "F1", "B1", "B1", "B0", "B0", ".", "."],
        ],
        "order": ["F0 F1 B1 B0", "F0 F1 B1 B0"],
    });
    let mut found = outcome.object();
    for key in ["bubble_fraction", "span_bubble_fraction", "utilisation"] {
        let near =
            (found[key].as_f64().unwrap_or(f64::NAN) - expected[key].as_f64().unwrap()).abs();
        outcome.check(near < 1e-12, key);
        found[key] = expected[key].clone();
    }
    let actions = found.as_object_mut().and_then(|object| object.remove("actions"));
    let last = json!({ "action": "B0", "start": 7.0, "end": 9.0 });
    outcome.check(actions.is_some_and(|actions| actions[0][3] == last), "another last action");
    outcome.check(found == expected, "another object");
}

/// Zero bubble is a device's own: the first device begins early and the last ends late.
#[test]
fn zero_bubble_schedules_have_none_between_a_device_s_own_first_and_last_pass() {
    for (kind, own) in [("zb-h2", 0.0), ("zb-v", 0.0), ("zb-h1", 1.0 / 9.0), ("1f1b", 3.0 / 11.0)] {
        let times = "--forward 1 --input 1 --weight 1";
        let answer = drawn(&format!("{kind} --stages 4 --microbatches 8 {times}"));
        let found = answer["span_bubble_fraction"].as_f64().expect("a number");
        assert!((found - own).abs() < 1e-9, "{kind}: {found}");
        assert!(answer["bubble_fraction"].as_f64() > Some(0.05), "{kind} has one over all devices");
    }
}

/// What a schedule of these arguments is, as JSON.
fn drawn(arguments: &str) -> Value {
    Place::new().run(&format!("schedule {arguments} --json")).succeeds().object()
}

#[test]
fn chunks_have_their_share_of_the_time() {
    let outcome = Place::new()
        .run("schedule interleaved --stages 2 --microbatches 2 --chunks 2 --backward 1")
        .succeeds();
    insta::assert_snapshot!(outcome.stdout, @r"
    0 │ F0@0 F1@0 F0@1 F1@1 ·    B0@1 ·    B1@1 B0@0 B1@0
    1 │ ·    F0@0 F1@0 F0@1 B0@1 F1@1 B1@1 B0@0 B1@0 ·
    F forward  B backward  · idle
    @0 chunk 0  @1 chunk 1
    makespan 5, bubble 20.0%, utilisation 80.0%
    largest bubble between a device's own first and last pass: 20.0%
    most micro-batches in flight, each stage's counted, by device: 4, 3
    ");
    // Bubble over ideal time (p - 1) / (v m), whatever the number of chunks.
    for chunks in [2, 3, 4] {
        let arguments = format!("interleaved --stages 4 --microbatches 8 --chunks {chunks}");
        let answer = drawn(&arguments);
        let makespan = answer["makespan"].as_f64().expect("a number");
        let ideal = 8.0 * 3.0;
        let expected = ideal * (1.0 + 3.0 / (f64::from(chunks) * 8.0));
        assert!((makespan - expected).abs() < 1e-9, "{chunks} chunks: {makespan}");
        assert_eq!(answer["exact_slots"], true);
        let row = answer["rows"][0].as_array().expect("cells");
        let slot = answer["slot"].as_f64().expect("a number");
        let idle = row.iter().filter(|cell| *cell == ".").count() as f64 * slot;
        assert!((idle - (makespan - ideal)).abs() < 1e-9, "{chunks} chunks: {idle} idle");
    }
}

#[test]
fn pipelines_both_ways_mark_the_reverse_one() {
    let outcome = Place::new().run("schedule chimera --stages 2 --microbatches 2 --backward 1");
    insta::assert_snapshot!(outcome.succeeds().stdout, @r"
    0 │ F0  F1< B1< B0
    1 │ F1< F0  B0  B1<
    F forward  B backward  · idle
    < pipeline the reverse way
    makespan 4, bubble 0.0%, utilisation 100.0%
    largest bubble between a device's own first and last pass: 0.0%
    most micro-batches in flight, each stage's counted, by device: 2, 2
    ");
}

#[test]
fn without_flush_steps_follow_each_other_until_no_device_waits() {
    let outcome = Place::new().run("schedule 2bw --stages 2 --microbatches 2 --steps 2");
    insta::assert_snapshot!(outcome.succeeds().stdout, @r"
    0 │ F0 F1 ·  ·  B0 B0 F2 B1 B1 F3 B2 B2 ·  B3 B3
    1 │ ·  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 ·  ·
    F forward  B backward  · idle
    2 steps: makespan 15, bubble 20.0%, utilisation 80.0%
    utilisation once steps follow each other: 100.0%
    most micro-batches in flight, by device: 2, 1
    ");
    for kind in ["pipedream", "pipemare"] {
        for (stages, microbatches) in [(4, 4), (4, 1), (5, 2)] {
            let numbers = format!("{kind} --stages {stages} --microbatches {microbatches}");
            let answer = drawn(&format!("{numbers} --backward 1"));
            let steady = answer["steady_utilisation"].as_f64().expect("a number");
            assert!((steady - 1.0).abs() < 1e-9, "{numbers}: {steady}");
            // Enough steps that some device works without a pause for a while.
            let row = answer["rows"][0].as_array().expect("cells");
            let runs = row.split(|cell| *cell == ".").map(<[Value]>::len).max();
            assert!(runs >= Some(2 * stages), "{numbers}: {row:?}");
        }
    }
}

#[test]
fn slow_messages_lower_the_steady_utilisation() {
    // A message each way between two devices takes as long as the passes between.
    let answer = drawn("pipedream --stages 2 --microbatches 2 --backward 1 --message 1");
    let steady = answer["steady_utilisation"].as_f64().expect("a number");
    assert!(steady < 0.9, "{steady}");
    let whole = answer["utilisation"].as_f64().expect("a number");
    assert!(whole <= steady + 1e-9, "filling and draining only add idle time: {whole} > {steady}");
}

#[test]
fn messages_are_said_not_to_queue() {
    let place = Place::new();
    let arguments = "schedule afab --stages 2 --microbatches 4 --backward 1";
    // The last forward pass ends at 4 and its message arrives at 7; were it the fourth in a queue, at 13.
    let outcome = place.run(&format!("{arguments} --message 3"));
    insta::assert_snapshot!(outcome.succeeds().stdout, @r"
    0 │ F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  ·  ·  B3 B2 B1 B0
    1 │ ·  ·  ·  ·  F0 F1 F2 F3 B3 B2 B1 B0 ·  ·  ·  ·
    F forward  B backward  · idle
    messages take 3 each and do not queue, however many are under way
    makespan 16, bubble 50.0%, utilisation 50.0%
    largest bubble between a device's own first and last pass: 50.0%
    most micro-batches in flight, by device: 4, 4
    ");
    let outcome = place.run(arguments).succeeds();
    outcome.check(!outcome.stdout.contains("messages"), "there are none");
}

#[test]
fn halves_of_backward_passes_have_their_own_times() {
    let answer = drawn("1f1b --stages 2 --microbatches 2 --input 1.5 --weight 0.25");
    assert_eq!(answer["makespan"], 3.0 * 2.75);
    assert_eq!((&answer["slot"], &answer["exact_slots"]), (&json!(0.25), &json!(true)));
}

#[test]
fn times_without_a_common_divisor_are_drawn_in_rounded_columns_and_said_so() {
    let arguments = "1f1b --stages 2 --microbatches 2 --backward 2.0001";
    let answer = drawn(arguments);
    assert_eq!((&answer["slot"], &answer["exact_slots"]), (&json!(1.0), &json!(false)));
    assert_eq!(answer["makespan"], 9.0003);
    let text = Place::new().run(&format!("schedule {arguments}")).succeeds().stdout;
    assert!(text.contains("rounded"), "{text}");
}

#[test]
fn schedules_are_found_under_the_names_that_people_look_for() {
    for (name, kind) in [
        ("gpipe", "afab"),
        ("GPipe", "afab"),
        ("pipedream-flush", "1f1b"),
        ("megatron", "interleaved"),
        ("pipedream-2bw", "pipedream"),
        ("pipelined-backpropagation", "pipemare"),
    ] {
        assert_eq!(drawn(&format!("{name} --stages 2 --microbatches 2"))["kind"], kind);
    }
}

#[test]
fn every_kind_is_drawn_or_says_what_it_wants() {
    let place = Place::new();
    for kind in ScheduleKind::ALL {
        let arguments = format!("schedule {} --stages 4 --microbatches 8 --json", kind.name());
        let outcome = place.run(&arguments);
        if kind == ScheduleKind::Table {
            outcome.refuses("plan", kind.name());
            continue;
        }
        let outcome = outcome.succeeds();
        let answer = outcome.object();
        let rows = answer["rows"].as_array().expect("rows");
        let lengths: Vec<usize> =
            rows.iter().map(|row| row.as_array().map_or(0, Vec::len)).collect();
        outcome.check(lengths.len() == 4 && lengths.iter().all(|it| *it == lengths[0]), "no table");
        let slot = answer["slot"].as_f64().unwrap_or(f64::NAN);
        let makespan = answer["makespan"].as_f64().unwrap_or(f64::NAN);
        outcome.check(
            (lengths[0] as f64 * slot - makespan).abs() < 1e-6,
            "not the makespan's columns",
        );
    }
}

#[test]
fn zero_bubble_is_drawn_for_any_memory() {
    let idle = |arguments: &str| {
        let answer = drawn(&format!("{arguments} --stages 4 --microbatches 12 --backward 2"));
        let peaks = answer["peak_in_flight"].as_array().expect("peaks").iter();
        let most = peaks.filter_map(Value::as_u64).max().unwrap_or(0);
        (most, answer["bubble_fraction"].as_f64().unwrap_or(f64::NAN))
    };
    let (least, tight) = idle("zb-h1 --in-flight 2");
    let (usual, between) = (idle("zb-h1"), idle("zb-h2 --in-flight 5"));
    assert_eq!((least, usual.0, between.0), (2, 4, 5));
    assert!(tight > usual.1 && usual.1 >= between.1 && between.1 >= idle("zb-h2").1);
    assert_eq!(idle("zb-h2 --in-flight 4"), usual);
}

/// The published bubbles of one setting: 8.37% for ZB-H2 and 0.39% for ZB-2p.
#[test]
fn zb_2p_fills_what_h2_leaves_where_input_gradients_free_memory() {
    let rate = |arguments: &str| {
        let times = "--forward 18.513 --input 18.086 --weight 9.331 --message 0.626";
        let answer = drawn(&format!("{arguments} --stages 8 --microbatches 32 {times}"));
        (answer["span_bubble_fraction"].as_f64().expect("a number") * 1e4).round()
    };
    assert_eq!([rate("zb-h2"), rate("zb-2p --kept 0.3664")], [837.0, 39.0]);
}

/// All forwards, then all backwards of equal micro-batches: each half takes one through all stages, and
/// the other micro-batches through the slowest.
#[test]
fn a_stage_twice_as_long_is_drawn_before_and_after_two_devices_share_it() {
    let arguments = "gpipe --stages 4 --microbatches 8 --forward 1,2,1,1";
    let (before, after) = (5.0 + 7.0 * 2.0, 5.0 + 7.0 * 1.0);
    let alone = drawn(arguments);
    assert_eq!(alone["makespan"], 3.0 * before);
    assert!(alone.get("without_replicas").is_none());
    let shared = drawn(&format!("{arguments} --replicas 1,2,1,1"));
    assert_eq!(shared["makespan"], 3.0 * after);
    assert_eq!(shared["replicas"], json!([1, 2, 1, 1]));
    assert_eq!(shared["without_replicas"], alone);
    let arguments = "gpipe --stages 2 --microbatches 2 --forward 1,2 --replicas 1,2";
    let outcome = Place::new().run(&format!("schedule {arguments}")).succeeds();
    insta::assert_snapshot!(outcome.stdout, @r"
    one device for each stage:
    0 │ F0 F1 ·  ·  ·  ·  ·  ·  ·  B1 B1 ·  ·  B0 B0
    1 │ ·  F0 F0 F1 F1 B1 B1 B1 B1 B0 B0 B0 B0 ·  ·
    F forward  B backward  · idle
    makespan 15, bubble 40.0%, utilisation 60.0%
    largest bubble between a device's own first and last pass: 60.0%
    most micro-batches in flight, by device: 2, 2

    with 1, 2 devices for the stages:
    0 │ F0 F1 ·  ·  ·  ·  ·  ·  B1 B1 B0 B0
    1 │ ·  F0 F0 B0 B0 B0 B0 ·  ·  ·  ·  ·
    2 │ ·  ·  F1 F1 B1 B1 B1 B1 ·  ·  ·  ·
    F forward  B backward  · idle
    makespan 12, bubble 50.0%, utilisation 50.0%
    largest bubble between a device's own first and last pass: 50.0%
    most micro-batches in flight, by device: 2, 1, 1
    ");
}

#[test]
fn times_of_stages_are_a_stage_s_own_and_times_of_devices_are_shared_by_its_stages() {
    let makespan = |arguments: &str| drawn(arguments)["makespan"].as_f64().expect("a number");
    let chunks = "interleaved --stages 2 --chunks 2 --microbatches 4";
    let whole = makespan(&format!("{chunks} --forward 1 --backward 2"));
    assert_eq!(makespan(&format!("{chunks} --forward 0.5,0.5,0.5,0.5 --backward 2")), whole);
    let mixed = format!("{chunks} --forward 0.5,0.5,0.5,0.5 --input 0.5,0.5,0.5,0.5 --weight 1");
    assert_eq!(makespan(&mixed), whole);
    // The order is made for the same times, too.
    let order = |forward: &str| {
        let passes = format!("--forward {forward} --input 1 --weight 1");
        drawn(&format!("zb-v --stages 4 --microbatches 8 {passes}"))["order"].clone()
    };
    assert_eq!(order("1,1,1,1,1,1,1,1"), order("2"));
}

#[test]
fn steps_that_wait_for_each_other_have_orders_of_their_own() {
    let times = "--forward 4 --input 1 --weight 9 --message 3";
    let makespan = |more: &str| {
        let answer = drawn(&format!("zb-h1 --stages 4 --microbatches 18 {times} {more}"));
        answer["makespan"].as_f64().expect("a number")
    };
    assert_eq!([makespan(""), makespan("--wait")], [291.0, 282.0]);
}

#[test]
fn a_drawn_order_can_be_trained_as_a_table() {
    let place = Place::new();
    let drawn = place.run("schedule zb-h1 --stages 2 --microbatches 4 --in-flight 3 --json");
    let order = drawn.succeeds().object()["order"].clone();
    let model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";
    let arguments =
        format!("plan {model} --cluster h100-80g:2 --global-batch 8 --method torchgpipe");
    place.run(&format!("{arguments} --precision fp32 -o plan.toml")).succeeds();
    let path = place.path("plan.toml");
    let plan = std::fs::read_to_string(&path).expect("a plan");
    let lines = plan.lines().map(|line| match line.split_once(" = ") {
        Some(("schedule", _)) => format!("schedule = \"table\"\norder = {order}"),
        Some(("microbatches", _)) => "microbatches = 4".to_owned(),
        _ => line.to_owned(),
    });
    place.write("table.toml", lines.collect::<Vec<_>>().join("\n"));
    let losses = |plan: &str| {
        place.run(&format!("train {plan} --data text.txt --steps 3 --json")).succeeds().losses()
    };
    let (table, plain) = (losses("table.toml"), losses("plan.toml"));
    assert_eq!(table.len(), 3);
    for ((step, table), (_, plain)) in table.iter().zip(&plain) {
        let [table, plain] = [table, plain].map(|loss| loss.parse::<f64>().expect("a number"));
        assert!((table / plain - 1.0).abs() < 1e-4, "step {step}: {table} and {plain}");
    }
}

#[test]
fn replicas_take_micro_batches_in_turn() {
    let place = Place::new();
    let arguments = "schedule pipedream --replicas 2,1 --microbatches 2 --backward 1 --steps 3";
    insta::assert_snapshot!(place.run(arguments).succeeds().stdout);
    let found = place.run(&format!("{arguments} --json")).succeeds().object();
    assert_eq!(found["replicas"], json!([2, 1]));
    assert_eq!((&found["stages"], &found["steady_utilisation"]), (&json!(2), &json!(1.0)));
    let flushed = place.run("schedule 1f1b --replicas 1,3 --microbatches 6 --json").succeeds();
    assert_eq!(flushed.object()["peak_in_flight"], json!([4, 1, 1, 1]));
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
        ("1f1b --stages 4 --microbatches 4 --chunks 0", "--chunks 0"),
        ("pipedream --stages 4 --microbatches 4 --steps 0", "--steps 0"),
        ("pipedream --replicas 2,0 --microbatches 4", "--replicas 0"),
        ("pipedream --replicas 2;1 --microbatches 4", "--replicas"),
        ("pipedream --replicas 2,1 --stages 3 --microbatches 4", "--stages 3"),
        ("gpipe --stages 4 --microbatches 4 --forward 1,2,1", "3 times for 4 stages"),
        ("gpipe --stages 4 --microbatches 4 --backward 1,2,1,1,1", "5 times for 4 stages"),
        ("zb-h1 --stages 3 --microbatches 4 --input 1 --weight 1,2", "--weight 1,2: 2 times"),
        ("interleaved --stages 2 --chunks 2 --microbatches 4 --forward 1,2", "for 4 stages"),
        ("gpipe --stages 4 --microbatches 4 --forward 1,0,1,1", "--forward 0"),
        ("gpipe --stages 4 --microbatches 4 --forward 1,,1,1", "--forward"),
        ("pipedream --stages 4 --microbatches 4 --steps 4000000000", "at most"),
        ("interleaved --stages 4 --microbatches 4 --chunks 4000000000", "at most"),
        ("1f1b --stages 4 --microbatches 4 --forward nan", "--forward NaN"),
        ("1f1b --stages 4 --microbatches 4 --in-flight 3", "only zb-h1 and zb-h2"),
        ("zb-h1 --stages 4 --microbatches 4 --in-flight 0", "--in-flight 0"),
        ("zb-h2 --stages 4 --microbatches 4 --kept 0.5", "only zb-1p and zb-2p"),
        ("zb-2p --stages 4 --microbatches 4 --kept 1.5", "from 0 to 1"),
        ("zb-2p --stages 4 --microbatches 4 --kept half", "--kept"),
        ("zb-1p --stages 4 --microbatches 4 --in-flight 3", "only zb-h1 and zb-h2"),
        ("chimera --replicas 2,1 --microbatches 4", "afab, 1f1b and pipedream"),
        ("zb-h1 --replicas 2,1 --microbatches 4", "not in zb-h1"),
        ("1f1b --stages 4 --microbatches 4 --backward 1e300", "1000000"),
        ("1f1b --stages 4 --microbatches 4 --message -1", "--message -1"),
        ("1f1b --stages 4 --microbatches 4 --input 1", "--weight"),
        ("1f1b --stages 4 --microbatches 4 --input 1 --weight 1 --backward 2", "--backward"),
        ("hanyao --stages 4 --microbatches 4", "did you mean hanayo?"),
        // Known before the order is made: `at least`, where a table that was timed has `over`.
        ("1f1b --stages 1000 --microbatches 1000", "at least 5997000 cells; at most 4000000"),
        ("v-half --stages 1000 --microbatches 30", "at least 4058000 cells; at most 4000000"),
    ] {
        place.run(&format!("schedule {arguments} --json")).refuses("usage", hint);
    }
}

#[test]
fn schedules_that_do_not_exist_say_what_would_be_right() {
    let place = Place::new();
    for (arguments, hint) in [
        ("interleaved --stages 4 --microbatches 3", "as many micro-batches as the 4 devices"),
        ("interleaved --stages 4 --microbatches 8 --chunks 1", "at least two stages"),
        ("1f1b --stages 4 --microbatches 8 --chunks 2", "one stage on each device"),
        (
            "chimera --stages 5 --microbatches 8",
            "--stages 5: pipelines in both directions need an even number of devices",
        ),
        ("chimera --stages 6 --microbatches 8 --chunks 4", "--chunks 4: "),
        ("pipedream --replicas 2,1 --microbatches 3", "evenly to 2 pipelines"),
        ("pipedream --replicas 1021,1023 --microbatches 4", "at most 1024"),
        ("chimera --stages 4 --microbatches 1", "each of 2 pipelines"),
        ("chimera-doubling --stages 4 --microbatches 3", "evenly to 2 pipelines"),
        ("hanayo --stages 4 --microbatches 4 --chunks 3", "even number of stages"),
    ] {
        place.run(&format!("schedule {arguments} --json")).refuses("plan", hint);
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

/// Also where few micro-batches are under way and messages are slow, so that a step or two more make a
/// difference.
#[test]
fn the_steady_utilisation_is_what_very_many_steps_come_to() {
    for arguments in [
        "2bw --stages 2 --microbatches 1 --forward 3,5 --backward 4,2 --message 2",
        "2bw --stages 4 --microbatches 3 --forward 1,3,3,2 --backward 4,4,4,4 --message 4",
    ] {
        let answer = drawn(&format!("{arguments} --steps 400"));
        let number = |key: &str| answer[key].as_f64().expect("a number");
        let (all, steady) = (number("utilisation"), number("steady_utilisation"));
        // Filling and draining are about a hundredth of so many steps.
        assert!((all - steady).abs() < 0.006, "{arguments}: {steady}, and {all} of 400 steps");
    }
}

/// One step of a schedule without flush, too, of which more are drawn where nobody says how many.
#[test]
fn as_many_steps_are_drawn_as_were_asked_for() {
    for kind in ["pipedream", "pipemare", "1f1b", "zb-h1"] {
        for steps in [1, 2, 5] {
            let answer = drawn(&format!("{kind} --stages 3 --microbatches 2 --steps {steps}"));
            assert_eq!(answer["steps"], steps, "{kind}");
            for actions in answer["actions"].as_array().expect("devices") {
                let names = actions.as_array().expect("actions").iter();
                let names = names.filter_map(|it| it["action"].as_str());
                assert_eq!(names.filter(|it| it.starts_with('F')).count(), 2 * steps, "{kind}");
            }
        }
    }
}
