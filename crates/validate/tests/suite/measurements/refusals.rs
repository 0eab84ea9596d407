//! Rows that are not predicted, and files that cannot be used.

use super::files::{changed, read_text, row, shipped};
use shardloom_validate::{FileReport, Measurements, Refusal, Uses, predict, preset_of, read};

/// Why the row with these changes is not predicted.
#[track_caller]
fn refusal(changes: &[(&str, &str)]) -> Refusal {
    predict(&[row(changes)], None, &|| {}).remove(0).prediction.expect_err("it is refused")
}

/// What is said of a bad file, from its line on.
#[track_caller]
fn error(text: &str) -> String {
    let error = read_text(text).expect_err("a bad file");
    assert!(error.path().ends_with("file.csv"), "{error}");
    let said = error.to_string();
    said.split_once("file.csv:").map(|(_, what)| what.to_owned()).unwrap_or(said)
}

#[test]
fn rows_that_are_no_plan_are_refused_by_reason() {
    for (changes, refused) in [
        (&[("experts", "8")][..], Refusal::Experts(8)),
        (&[("precision", "nvfp4")], Refusal::Precision("nvfp4".into())),
        (&[("hw", "B300")], Refusal::Hardware("B300".into())),
        (&[("complete", "0")], Refusal::Incomplete),
        (&[("ffn", "")], Refusal::NotGiven("ffn")),
        (&[("sharding", "zero1:3")], Refusal::Sharding("zero1:3".into())),
        (&[("recompute", "some")], Refusal::Recompute("some".into())),
        (&[("step_s", "")], Refusal::NothingMeasured),
        (
            &[("tp", "3"), ("dp", "1"), ("gpus", "3")],
            Refusal::Split { tp: 3, what: "heads", value: 32 },
        ),
        (
            &[("pp", "3"), ("dp", "1"), ("gpus", "3")],
            Refusal::Cut("32 layers are not the same on 3 stages".into()),
        ),
        (&[("cp", "2")], Refusal::Numbers("tp 1 x pp 1 x dp 8 x cp 2 is not 8 devices".into())),
        (&[("gpus", "4")], Refusal::Numbers("tp 1 x pp 1 x dp 8 is not 4 devices".into())),
        (
            &[("gpus", "12"), ("dp", "12")],
            Refusal::Numbers("12 devices do not fill nodes of 8 of a100-80g".into()),
        ),
        (
            &[("gbs", "8000000000000000"), ("mbs", "1000000000000000")],
            Refusal::Numbers("a batch of 8000000000000000 has values of over 2^60 bytes".into()),
        ),
        (
            &[("mbs", "5")],
            Refusal::Numbers("micro-batches of [5] on 8 replicas do not divide 64".into()),
        ),
    ] {
        assert_eq!(refusal(changes), refused, "{changes:?}");
    }
}

#[test]
fn what_a_file_leaves_out_is_not_compared() {
    let uses = |left_out| row(&[("leave_out", left_out)]).measured.uses;
    assert_eq!(uses("error"), Uses { error: false, ..Uses::ALL });
    assert_eq!(uses("memory"), Uses { memory: false, ..Uses::ALL });
    assert_eq!(uses("error (or set recompute=full)"), Uses { error: false, ..Uses::ALL });
    // A stalled step says nothing of time; of its memory there is nothing here.
    let all = [("leave_out", "\"error, regret\""), ("leave_out_why", "stalled")];
    assert_eq!(refusal(&all), Refusal::LeftOut("stalled".into()));
    let with_memory = [all[0], all[1], ("peak_mem_gib", "40")];
    assert!(row(&with_memory).case.is_ok());
    // Crashed rows are for memory only.
    let crashed = row(&[("step_s", ""), ("step_kind", "crashed_or_oom")]);
    assert!(crashed.measured.crashed && crashed.case.is_ok());
    let what = error(&changed(&[("leave_out", "loss")]));
    let right = "2: column leave_out: \"loss\" is none of error, regret and memory";
    assert_eq!(what, right);
}

#[test]
fn hardware_is_found_as_sources_write_it() {
    for (name, preset) in [
        ("A100-80G-SXM4", "a100-80g"),
        ("A100_40GB", "a100-40g"),
        ("H100_80GB", "h100-80g"),
        ("H100", "h100-80g"),
        ("B200", "b200"),
        ("GB200", "gb200"),
        ("GH-96", "gh200"),
        ("MI300X", "mi300x"),
        ("TPU-v6e", "tpu-v6e"),
        ("RTX-3090", "rtx-3090"),
        ("Titan-RTX", "titan-rtx"),
    ] {
        assert_eq!(preset_of(name), Ok(preset.to_owned()), "{name}");
    }
    for none in ["B300", "GB300", "RTX-3090+Titan-RTX"] {
        assert_eq!(preset_of(none), Err(Refusal::Hardware(none.into())));
    }
}

#[test]
fn rows_on_every_accelerator_with_a_preset_are_predicted() {
    // Of the row that is changed every GPU holds all weights.
    for hardware in ["GH-96", "GB200", "MI300X", "MI355X", "TPU-v5p"] {
        let prediction = predict(&[row(&[("hw", hardware)])], None, &|| {}).remove(0).prediction;
        let seconds = prediction.expect("a prediction").step_seconds;
        assert!(seconds > 0.1 && seconds < 10.0, "{hardware}: {seconds}");
    }
}

#[test]
fn bad_files_are_refused_with_file_and_line() {
    let missing = "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp";
    let right = "1: column \"iteration_ms\" of the schema vtrain-single-node is missing";
    assert_eq!(error(&format!("{missing}\n")), right);
    let unknown = format!("{missing},iteration_ms,price\n");
    assert_eq!(error(&unknown), "1: column \"price\" is not one of the schema vtrain-single-node");
    let strange = error("name,value\na,1\n");
    assert!(strange.starts_with("1: the columns from \"name\" on are"), "{strange}");
    let rows =
        |row: &str| format!("{missing},iteration_ms\n4,32,2,2048,16,16,1024,1,4,1,406\n{row}\n");
    for (row, what) in [
        (
            "4,32,2,2048,16,,1024,1,4,1,406",
            "column layers: a whole number from 0 up is needed, not \"\"",
        ),
        (
            "4,32,2,2048,-16,16,1024,1,4,1,406",
            "column heads: a whole number from 0 up is needed, not \"-16\"",
        ),
        (
            "4,32,2,2048,16,16,1024,1,4,1,-406",
            "column iteration_ms: -406 is there, and a number above 0 is needed",
        ),
        (
            "4,32,2,2048,16,16,1024,0,4,1,406",
            "column tp: 0 is there, and a number above 0 is needed",
        ),
        (
            "4,32,2,2048,16,16,1024,1,4,1,nan",
            "column iteration_ms: NaN is there, and a number above 0 is needed",
        ),
    ] {
        assert_eq!(error(&rows(row)), format!("3: {what}"));
    }
    assert_eq!(error(&rows("4,32")), "3: there are 2 cells, and 11 columns");
    let gone = read("no/such.csv".as_ref()).expect_err("there is none").to_string();
    assert!(gone.starts_with("cannot read no/such.csv: "), "{gone}");
}

#[test]
fn files_without_steps_are_refused_with_a_reason() {
    for name in
        ["zero_bubble_table4_1p5b.csv", "primus_schedules.csv", "simumax_kernel_efficiency.csv"]
    {
        let measurements = read(&shipped(name)).expect("it is part of the project");
        let why = measurements.refused.expect("it has no steps");
        assert!(why.ends_with("not steps") && measurements.rows.is_empty(), "{name}: {why}");
    }
}

#[test]
fn a_report_counts_what_fits_and_what_is_refused() {
    let with = |changes: &[(&str, &str)]| row(changes);
    // Micro-batches of 8 samples do not fit, those of 2 do with everything computed twice.
    let crashed = with(&[
        ("mbs", "8"),
        ("step_s", ""),
        ("step_kind", "crashed_or_oom"),
        ("recompute", "none"),
    ]);
    let ran = with(&[("recompute", "full"), ("peak_mem_gib", "20")]);
    let fp8 = with(&[("precision", "nvfp4")]);
    let rows = vec![crashed, ran, fp8.clone(), fp8];
    let outcomes = predict(&rows, None, &|| {});
    let measurements = Measurements {
        path: "some/file.csv".into(),
        schema: "published",
        refused: None,
        rows,
        operators: vec![],
    };
    let report = FileReport::of(&measurements, &outcomes, true);
    let all = &report.all;
    assert_eq!((all.rows, all.refused), (4, 2));
    assert_eq!((all.crashed.rows, all.crashed.exceeding), (1, 1));
    assert_eq!((all.ran.rows, all.ran.exceeding), (1, 0));
    assert_eq!(all.memory.map(|it| it.rows), Some(1));
    assert_eq!(all.regret, None);
    let predicted = outcomes[1].prediction.as_ref().expect("it is predicted");
    let error = predicted.step_seconds / 4.0335 - 1.0;
    assert_eq!(all.step.map(|it| it.bias), Some(error));
    assert_eq!(all.worst.iter().map(|it| it.error).collect::<Vec<_>>(), [error]);
    assert_eq!(report.refusals.len(), 1);
    assert_eq!(
        (report.refusals[0].rows, report.refusals[0].first.as_str()),
        (2, "precision \"nvfp4\"")
    );
    assert_eq!(report.lines.map(|it| it.len()), Some(4));
}

#[test]
fn tensor_parallelism_divides_key_value_heads_and_widths() {
    let refused = |column: &str, value: &str, tp: &str, dp: &str| {
        let changes =
            [("model", "llama"), ("kv_heads", "8"), ("tp", tp), ("dp", dp), (column, value)];
        match row(&changes).case.expect("the row says all").spec() {
            Ok(_) => None,
            Err(Refusal::Split { what, value, .. }) => Some((what, value)),
            Err(other) => panic!("{other}"),
        }
    };
    for (column, divided, undivided, what) in
        [("kv_heads", "16", "4", "key-value heads"), ("ffn", "11008", "11004", "ffn")]
    {
        assert_eq!(refused(column, divided, "8", "1"), None, "{column}");
        let value = undivided.parse().expect("a number");
        assert_eq!(refused(column, undivided, "8", "1"), Some((what, value)), "{column}");
        // A half of them is enough for four.
        assert_eq!(refused(column, undivided, "4", "2"), None, "{column}");
    }
}
