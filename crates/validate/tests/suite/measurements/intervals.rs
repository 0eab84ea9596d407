//! Intervals around predicted times, and the residuals that they are made of.

use std::time::Duration;

use super::files::shipped;
use shardloom_cluster::{Residuals, Stack, StepGroup, StepKind};
use shardloom_sim::StepShares;
use shardloom_validate::{
    Coverage, FileReport, HeldOut, Measurements, Outcome, Prediction, Row, predict, read, residuals,
};

/// A row of InternLM 7B with so many layers, predicted to take 2 s and measured to take so many times that, and
/// what became of it. The stack has `residuals` of such rows.
fn outcome(layers: usize, ratio: f64, residuals: Option<Residuals>) -> (Row, Outcome) {
    let mut row =
        read(&shipped("internevo.csv")).expect("it is part of the project").rows.remove(0);
    row.measured.step_seconds = Some(2.0 * ratio);
    row.case.as_mut().expect("it can be predicted").shape.layers = layers;
    let step_kind = StepKind { several_nodes: false, devices: ["a100-80g".to_owned()].into() };
    let prediction = Prediction {
        shares: StepShares::default(),
        step_seconds: 2.0,
        peak_bytes: 0,
        exceeds: false,
        micro_batch: 1,
        step_kind,
        residuals,
    };
    (row, Outcome { prediction: Ok(prediction), elapsed: Duration::ZERO })
}

fn file(outcomes: Vec<(Row, Outcome)>) -> (Measurements, Vec<Outcome>) {
    let (rows, outcomes) = outcomes.into_iter().unzip();
    (
        Measurements {
            path: "file.csv".into(),
            schema: "published",
            refused: None,
            rows,
            operators: vec![],
        },
        outcomes,
    )
}

fn between(low: f64, high: f64) -> Option<Residuals> {
    let devices = ["a100-80g".to_owned()].into();
    Some(Residuals { of: StepGroup::All, devices, rows: 20, low, high })
}

/// 21 rows of one model, with ratios from 1 to 1.2, and 16 of another from 1.095 to 1.17.
fn two_models() -> Vec<(Row, Outcome)> {
    let first = (0..21).map(|it| outcome(32, 1.0 + f64::from(it) / 100.0, None));
    let second = (0..16).map(|it| outcome(24, 1.095 + f64::from(it) / 200.0, None));
    first.chain(second).collect()
}

#[test]
fn rows_lie_in_the_interval_of_their_stack_or_not() {
    let narrow = between(0.95, 1.05);
    let rows = [0.9, 0.96, 1.0, 1.04, 1.06].map(|ratio| outcome(32, ratio, narrow.clone()));
    let mut rows = Vec::from(rows);
    rows.push(outcome(32, 1.25, between(0.8, 1.3)));
    // Neither of these has an interval, or a time to compare.
    rows.push(outcome(32, 1.0, None));
    let mut stalled = outcome(32, 1.0, narrow.clone());
    stalled.0.measured.uses.error = false;
    rows.push(stalled);
    let (measurements, outcomes) = file(rows);
    let report = FileReport::of(&measurements, &outcomes, true);
    let found = report.all.interval.expect("rows have intervals");
    assert_eq!((found.rows, found.inside), (6, 4));
    assert!((found.half_width - 0.05).abs() < 1e-12, "{found:?}");
    let lines = report.lines.expect("row by row");
    assert_eq!(lines[5].predicted_seconds_interval, Some([1.6, 2.6]));
    assert_eq!(lines[6].predicted_seconds_interval, None);
    // Over two files: 5 of 7 rows have a width of 0.5.
    let wide = file(
        vec![1.0, 1.1, 1.2, 2.0].into_iter().map(|it| outcome(32, it, between(0.8, 1.3))).collect(),
    );
    let few = file(vec![
        outcome(32, 1.0, narrow.clone()),
        outcome(32, 2.0, narrow),
        outcome(32, 0.7, between(0.8, 1.3)),
    ]);
    let both = Coverage::of_files(&[few, wide]).expect("rows have intervals");
    assert_eq!((both.rows, both.inside), (7, 4));
    assert!((both.half_width - 0.25).abs() < 1e-12, "{both:?}");
    assert_eq!(Coverage::of_files(&[file(vec![outcome(32, 1.0, None)])]), None);
}

#[test]
fn residuals_are_quantiles_by_stack_with_models_left_out() {
    let files = [file(two_models())];
    let found = residuals(&files, None);
    assert_eq!(found.len(), 1);
    let group = &found[0];
    assert_eq!((group.stack.as_str(), group.of, group.rows), ("internevo", StepGroup::All, 37));
    // Of 37 in order the places are 3.6 and 32.4.
    let mut ratios: Vec<f64> = (0..21).map(|it| 1.0 + f64::from(it) / 100.0).collect();
    ratios.extend((0..16).map(|it| 1.095 + f64::from(it) / 200.0));
    ratios.sort_by(f64::total_cmp);
    let low = 0.4 * ratios[3] + 0.6 * ratios[4];
    let high = 0.6 * ratios[32] + 0.4 * ratios[33];
    let found = group.quantiles.expect("there are enough rows");
    let close = |(found, right): (f64, f64)| (found - right).abs() < 1e-9;
    assert!(found.into_iter().zip([low, high]).all(close), "{group:?}, not {low} and {high}");
    assert_eq!(group.devices, ["a100-80g".to_owned()].into());
    // All of the second lie between 1.02 and 1.18 of the first. Of the first 1.11 to 1.16 lie between 1.1025 and
    // 1.1625 of the second.
    assert_eq!(group.held_out, Some(HeldOut { rows: 37, inside: 16 + 6 }));
    // One model leaves none when it is left out.
    let one = residuals(&[file(two_models().split_off(21))], None);
    assert_eq!((one[0].rows, one[0].held_out), (16, None));
}

#[test]
fn residuals_are_of_the_groups_that_the_stack_has_and_of_enough_rows() {
    let mut rows = two_models();
    for (_, outcome) in &mut rows[..7] {
        outcome.prediction.as_mut().expect("it is predicted").step_kind.several_nodes = true;
    }
    let text = |of: &str| {
        format!(
            "[[residuals]]\nof = \"{of}\"\ndevices = [\"a100-80g\"]\nrows = 20\nlow = 1\nhigh = 1\n"
        )
    };
    let stack =
        format!("name = \"mine\"\nsource = \"\"\n{}{}", text("several-nodes"), text("one-node"));
    let stack = Stack::from_toml(&stack).expect("a stack");
    let found = residuals(&[file(rows)], Some(&stack));
    let said: Vec<_> = found.iter().map(|it| (it.stack.as_str(), it.of, it.rows)).collect();
    assert_eq!(said, [("mine", StepGroup::SeveralNodes, 7), ("mine", StepGroup::OneNode, 30)]);
    assert_eq!((found[0].quantiles, found[0].held_out), (None, None));
    let [low, high] = found[1].quantiles.expect("there are enough rows");
    assert!(low > 1.07 && high < 1.2, "{found:?}");
}

/// The residuals of stacks are those of their rows now.
fn check_presets(names: &[&str], files: &[&str]) {
    let files = files.iter().map(|file| {
        let measurements = read(&shipped(file)).expect("it is part of the project");
        let outcomes = predict(&measurements.rows, None, &|| {});
        (measurements, outcomes)
    });
    let found = residuals(&files.collect::<Vec<_>>(), None);
    for name in names {
        let stack = Stack::parse(name).expect("a preset");
        let of_stack: Vec<_> = found.iter().filter(|it| it.stack == *name).collect();
        assert_eq!(of_stack.len(), stack.residuals.len(), "{name}: {of_stack:?}");
        for (shipped, found) in stack.residuals.iter().zip(of_stack) {
            assert_eq!((shipped.of, shipped.rows as usize), (found.of, found.rows), "{name}");
            assert_eq!(shipped.devices, found.devices, "{name}");
            let ends = found.quantiles.expect("there are enough rows");
            let close = |(new, old): (f64, f64)| (new - old).abs() < 0.0015;
            assert!(
                ends.into_iter().zip([shipped.low, shipped.high]).all(close),
                "{found:?}, where {name} has {shipped:?}; validate --residuals makes them again"
            );
        }
    }
}

#[test]
fn presets_have_the_quantiles_of_their_rows() {
    check_presets(&["fsdp-eager", "internevo"], &["internevo.csv", "mosaic_llm_foundry.csv"]);
    check_presets(
        &["megatron"],
        &["mlperf_training.csv", "nemo_performance_tables.csv", "nvidia_dgxc_benchmarking.csv"],
    );
}

#[test]
fn presets_of_many_rows_have_their_quantiles() {
    check_presets(
        &["megatron-2021"],
        &[
            "a100_multinode.csv",
            "a100_singlenode.csv",
            "korthikanti22_table5.csv",
            "megatron_sc21_weak_scaling.csv",
        ],
    );
    check_presets(&["nanotron"], &["nanotron_ultrascale_h100.csv"]);
}

/// The stack has two groups of steps, and all rows are of one of them, or of none as nothing was predicted.
#[test]
fn groups_without_rows_have_no_residuals() {
    let text = |of: &str| {
        format!(
            "[[residuals]]\nof = \"{of}\"\ndevices = [\"a100-80g\"]\nrows = 20\nlow = 1\nhigh = 1\n"
        )
    };
    let stack =
        format!("name = \"mine\"\nsource = \"\"\n{}{}", text("several-nodes"), text("one-node"));
    let stack = Stack::from_toml(&stack).expect("a stack");
    let found = residuals(&[file(two_models())], Some(&stack));
    let said: Vec<_> = found.iter().map(|it| (it.of, it.rows)).collect();
    assert_eq!(said, [(StepGroup::OneNode, 37)]);
    let mut left_out = two_models();
    left_out.iter_mut().for_each(|(row, _)| row.measured.uses.error = false);
    assert_eq!(residuals(&[file(left_out)], Some(&stack)), []);
    assert_eq!(residuals(&[file(vec![])], Some(&stack)), []);
}

/// Of two seconds that were predicted.
#[test]
fn the_ends_of_an_interval_are_within_it() {
    for (low, high) in [(0.5, 1.5), (0.875, 0.875), (1.25, 2.0)] {
        let of = |ratio: f64| {
            let (measurements, outcomes) = file(vec![outcome(32, ratio, between(low, high))]);
            let report = FileReport::of(&measurements, &outcomes, false);
            let found = report.all.interval.expect("it has an interval");
            assert_eq!((found.rows, found.half_width), (1, (high - low) / 2.0));
            found.inside
        };
        assert_eq!([low, high].map(of), [1, 1], "{low} to {high}");
        assert_eq!([low - 1e-9, high + 1e-9].map(of), [0, 0], "beside {low} to {high}");
    }
}
