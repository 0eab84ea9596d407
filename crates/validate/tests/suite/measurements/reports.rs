//! Reports of files, line by line and by source and hardware.

use super::files::row;
use shardloom_validate::{FileReport, Measurements, Outcome, Row, predict};

fn report(rows: &[Row], outcomes: &[Outcome], with_lines: bool) -> FileReport {
    let rows = rows.to_vec();
    let measurements = Measurements {
        path: "some/file.csv".into(),
        schema: "published",
        refused: None,
        rows,
        operators: vec![],
    };
    FileReport::of(&measurements, outcomes, with_lines)
}

#[test]
fn a_line_says_what_was_measured_and_what_was_predicted() {
    let rows = [
        row(&[("recompute", "full"), ("peak_mem_gib", "20")]),
        row(&[("recompute", "full"), ("leave_out", "error")]),
        row(&[("precision", "nvfp4")]),
    ];
    let outcomes = predict(&rows, None, &|| {});
    assert_eq!(report(&rows, &outcomes, false).lines, None);
    let found = report(&rows, &outcomes, true);
    let lines = found.lines.expect("they were asked for");
    let prediction = outcomes[0].prediction.as_ref().expect("it is predicted");
    let first = &lines[0];
    assert_eq!((first.line, first.source.as_str()), (2, "InternLM/InternEvo"));
    assert_eq!(first.hardware, "A100-80G-SXM4");
    assert_eq!(first.what, "internlm-7b, 8 devices: dp 8, ZeRO-1, micro-batch 2");
    assert_eq!(first.measured_seconds, Some(4.0335));
    assert_eq!(first.predicted_seconds, Some(prediction.step_seconds));
    assert_eq!(first.error, Some(prediction.step_seconds / 4.0335 - 1.0));
    assert_eq!(first.shares, Some(prediction.shares));
    assert_eq!(first.measured_peak_bytes, Some(20.0 * f64::from(1 << 30)));
    assert_eq!(first.predicted_peak_bytes, Some(prediction.peak_bytes));
    assert_eq!(
        (first.crashed, first.exceeds, first.refused.as_deref()),
        (false, Some(false), None)
    );
    let residuals = prediction.residuals.as_ref().expect("the stack has some");
    let interval = residuals.interval(prediction.step_seconds);
    assert_eq!(first.predicted_seconds_interval, Some(interval));
    assert!(interval[0] < interval[1]);
    // A time that is not compared has no error, but is there.
    assert_eq!((lines[1].error, lines[1].measured_seconds), (None, Some(4.0335)));
    assert_eq!(lines[1].measured_peak_bytes, None);
    let last = &lines[2];
    assert_eq!(
        (last.what.as_str(), last.predicted_seconds, last.exceeds),
        ("internlm-7b", None, None)
    );
    assert_eq!(last.refused.as_deref(), Some("precision \"nvfp4\""));
    let total: f64 = outcomes.iter().map(|it| it.elapsed.as_secs_f64()).sum();
    assert!((found.prediction_seconds - total).abs() < 1e-12);
}

#[test]
fn rows_are_told_apart_by_source_and_hardware() {
    let rows = [
        row(&[("recompute", "full"), ("source", "b")]),
        row(&[("recompute", "full"), ("source", "a"), ("hw", "H100")]),
        row(&[("recompute", "full"), ("source", "b")]),
        row(&[("precision", "nvfp4"), ("source", "a"), ("hw", "H100")]),
    ];
    let outcomes = predict(&rows, None, &|| {});
    let found = report(&rows, &outcomes, false);
    let parts: Vec<(&str, &str, usize, usize)> = found
        .parts
        .iter()
        .map(|it| (&it.source[..], &it.hardware[..], it.figures.rows, it.figures.refused))
        .collect();
    assert_eq!(parts, [("a", "H100", 2, 1), ("b", "A100-80G-SXM4", 2, 0)]);
    assert_eq!((found.all.rows, found.all.refused), (4, 1));
}

/// Plans of one model on as many devices, of which the wrong one is chosen; those of another batch are another
/// group, and what is left out of the choice does not count.
#[test]
fn choosing_by_prediction_costs_what_the_chosen_plan_takes_longer() {
    let rows = [
        row(&[("recompute", "full"), ("step_s", "3.0")]),
        // As the first but for what it takes: predicted to take longer.
        row(&[("recompute", "full"), ("mbs", "1"), ("step_s", "2.0")]),
        row(&[("recompute", "full"), ("gbs", "128"), ("step_s", "1.0")]),
        row(&[("recompute", "full"), ("step_s", "1.0"), ("leave_out", "regret")]),
        row(&[("recompute", "full"), ("hw", "H100"), ("step_s", "1.0")]),
        row(&[("recompute", "full"), ("gpus", "16"), ("dp", "16"), ("step_s", "1.0")]),
    ];
    let outcomes = predict(&rows, None, &|| {});
    let seconds =
        |index: usize| outcomes[index].prediction.as_ref().expect("it is predicted").step_seconds;
    assert!(seconds(0) < seconds(1));
    let regret = report(&rows, &outcomes, false).all.regret.expect("a group of two");
    assert_eq!((regret.groups, regret.mean, regret.max), (1, 0.5, 0.5));
}

#[test]
fn memory_that_is_left_out_counts_neither_for_errors_nor_for_what_fits() {
    let of = |leave_out, step_kind| {
        let changes = [("recompute", "full"), ("peak_mem_gib", "20"), ("step_kind", step_kind)];
        let rows = [row(&[&changes[..], &[("leave_out", leave_out)]].concat())];
        let all = report(&rows, &predict(&rows, None, &|| {}), false).all;
        (all.memory.map(|it| it.rows), all.ran.rows, all.crashed.rows)
    };
    let crashed = "crashed_or_oom";
    assert_eq!([of("", "step"), of("", crashed)], [(Some(1), 1, 0), (Some(1), 0, 1)]);
    assert_eq!(of("memory", "step"), (None, 0, 0));
    // A time of a step is compared all the same, so that this row is predicted.
    assert_eq!(of("memory", crashed), (None, 0, 0));
}

#[test]
fn the_worst_rows_are_three_and_the_most_frequent_refusal_comes_first() {
    let mut rows: Vec<Row> =
        ["1", "8", "2", "4"].map(|step| row(&[("recompute", "full"), ("step_s", step)])).into();
    for (line, it) in (10..).zip(&mut rows) {
        it.line = line;
    }
    rows.push(row(&[("hw", "B300")]));
    rows.push(row(&[("precision", "nvfp4")]));
    rows.push(row(&[("precision", "nvfp4")]));
    let outcomes = predict(&rows, None, &|| {});
    let found = report(&rows, &outcomes, false);
    let predicted = outcomes[0].prediction.as_ref().expect("it is predicted").step_seconds;
    let mut errors: Vec<(u64, f64)> =
        (10..).zip([1.0, 8.0, 2.0, 4.0].map(|it: f64| predicted / it - 1.0)).collect();
    errors.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
    let worst: Vec<(u64, f64)> = found.all.worst.iter().map(|it| (it.line, it.error)).collect();
    assert_eq!(worst, errors[..3]);
    let refused: Vec<(usize, &str)> =
        found.refusals.iter().map(|it| (it.rows, it.first.as_str())).collect();
    assert_eq!(refused.len(), 2);
    assert_eq!(refused[0], (2, "precision \"nvfp4\""));
    assert_eq!(refused[1].0, 1);
}

/// Whether the row, its plan or the simulation is the reason.
#[test]
fn every_row_without_a_prediction_is_counted_as_refused_with_its_reason() {
    let rows = [
        row(&[("recompute", "full")]),
        row(&[("precision", "nvfp4")]),
        row(&[("mbs", "5")]),
        row(&[("cp", "2")]),
        row(&[("pp", "3"), ("dp", "1"), ("gpus", "3")]),
        row(&[("gpus", "12"), ("dp", "12")]),
        row(&[("tp", "3"), ("dp", "1"), ("gpus", "3")]),
    ];
    let outcomes = predict(&rows, None, &|| {});
    let without = outcomes.iter().filter(|it| it.prediction.is_err()).count();
    assert_eq!(without, 6);
    let found = report(&rows, &outcomes, true);
    assert_eq!((found.all.rows, found.all.refused), (7, 6));
    assert_eq!(found.parts.iter().map(|it| it.figures.refused).sum::<usize>(), 6);
    assert_eq!(found.refusals.iter().map(|it| it.rows).sum::<usize>(), 6);
    let lines = found.lines.expect("they were asked for");
    assert_eq!(lines.iter().filter(|it| it.refused.is_some()).count(), 6);
    assert_eq!(lines.iter().filter(|it| it.predicted_seconds.is_some()).count(), 1);
}

#[test]
fn what_is_not_compared_is_listed_with_what_was_predicted_all_the_same() {
    for leave_out in ["", "memory", "error", "regret"] {
        let rows =
            [row(&[("recompute", "full"), ("peak_mem_gib", "20"), ("leave_out", leave_out)])];
        let outcomes = predict(&rows, None, &|| {});
        let prediction = outcomes[0].prediction.as_ref().expect("it is predicted");
        let line = report(&rows, &outcomes, true).lines.expect("they were asked for").remove(0);
        let measured = (line.measured_seconds, line.measured_peak_bytes);
        assert_eq!(measured, (Some(4.0335), Some(20.0 * f64::from(1 << 30))), "{leave_out}");
        let predicted = (line.predicted_seconds, line.predicted_peak_bytes);
        let expected = (Some(prediction.step_seconds), Some(prediction.peak_bytes));
        assert_eq!(predicted, expected, "{leave_out}");
    }
}
