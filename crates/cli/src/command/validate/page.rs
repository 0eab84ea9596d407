//! What predictions of measurements came to, as a web page.

use shardloom::program::quantity::{bytes, percent, seconds, signed_percent};
use shardloom::sim::StepShares;
use shardloom_report::{Compared, ComparedRow, Property, Table, ValidationPage};
use shardloom_validate::{
    Coverage, Errors, FeatureValue, Figures, FileReport, Measurements, Outcome, Pair, Row, features,
};

use super::figures::{
    MEMORY, OPERATORS, TIMES, has_memory, memory_row, named, operators, time_row,
};

const COLUMNS: [&str; 12] = [
    "File",
    "Line",
    "Model, devices and plan",
    "Measured",
    "Predicted",
    "Error",
    "Predicted time goes to",
    "80% interval",
    "Peak memory measured",
    "Peak memory predicted",
    "Source",
    "Hardware",
];

/// Of a step's time, parts below this share are not told.
const LEAST_SHARE: f64 = 0.005;

/// The page of these files.
pub fn page(
    files: &[(Measurements, Vec<Outcome>)],
    reports: &[FileReport],
    interval: Option<Coverage>,
) -> ValidationPage {
    let mut rows = vec![];
    for (file, outcomes) in files {
        let found = file.rows.iter().zip(outcomes);
        rows.extend(
            found.filter_map(|(row, outcome)| compared_row(&short_name(file), row, outcome)),
        );
    }
    ValidationPage {
        title: "Predictions beside measurements".into(),
        summary: summary(&rows, reports, interval),
        columns: COLUMNS.map(str::to_owned).into(),
        rows,
        tables: tables(reports),
    }
}

fn short_name(file: &Measurements) -> String {
    file.path.file_name().unwrap_or(file.path.as_os_str()).display().to_string()
}

/// A row that is predicted, and whose time or memory counts.
fn compared_row(file: &str, row: &Row, outcome: &Outcome) -> Option<ComparedRow> {
    let (case, prediction) = (row.case.as_ref().ok()?, outcome.prediction.as_ref().ok()?);
    let measured = &row.measured;
    let step = measured
        .step_seconds
        .filter(|_| measured.uses.error)
        .map(|measured| Compared { measured, predicted: prediction.step_seconds });
    let memory = measured
        .peak_bytes
        .filter(|_| measured.uses.memory)
        .map(|measured| Compared { measured, predicted: prediction.peak_bytes as f64 });
    if step.is_none() && memory.is_none() {
        return None;
    }
    let interval = prediction.residuals.as_ref().map(|it| it.interval(prediction.step_seconds));
    let time = |value: Option<f64>| value.map_or(String::new(), seconds);
    let size = |value: Option<f64>| value.map_or(String::new(), |value| bytes(value as u64));
    let property = |value| match value {
        FeatureValue::Number(number) => Property::Number(number),
        FeatureValue::Word(word) => Property::Word(word),
    };
    Some(ComparedRow {
        series: format!("{}, {}", row.source, row.hardware),
        cells: vec![
            file.to_owned(),
            row.line.to_string(),
            format!("{}, {}", row.model, case.describe(Some(prediction.micro_batch))),
            time(step.map(|it| it.measured)),
            seconds(prediction.step_seconds),
            step.map_or(String::new(), |it| signed_percent(it.error())),
            shares(&prediction.shares),
            interval.map_or(String::new(), |[low, high]| {
                format!("{} to {}", seconds(low), seconds(high))
            }),
            size(memory.map(|it| it.measured)),
            size(memory.map(|it| it.predicted)),
            row.source.clone(),
            row.hardware.clone(),
        ],
        step,
        memory,
        properties: features(case, prediction)
            .into_iter()
            .map(|feature| (feature.name, property(feature.value)))
            .collect(),
    })
}

/// What a step's time goes to, the most first: `computing 71.0%, waiting 29.0%`.
pub fn shares(shares: &StepShares) -> String {
    let parts = shares.parts().into_iter().filter(|(_, share)| *share >= LEAST_SHARE);
    let told: Vec<String> =
        parts.map(|(name, share)| format!("{name} {}", percent(share))).collect();
    told.join(", ")
}

fn summary(
    rows: &[ComparedRow],
    reports: &[FileReport],
    interval: Option<Coverage>,
) -> Vec<(String, String)> {
    let errors = |of: fn(&ComparedRow) -> Option<Compared>| {
        let pair = |it: Compared| Pair { predicted: it.predicted, measured: it.measured };
        let pairs: Vec<Pair> = rows.iter().filter_map(of).map(pair).collect();
        Errors::of(&pairs)
    };
    let mut summary = vec![("Files".to_owned(), reports.len().to_string())];
    if let Some(step) = errors(|it| it.step) {
        summary.push(("Step times compared".into(), step.rows.to_string()));
        summary.push(("Mean error".into(), percent(step.mean_absolute)));
        summary.push(("Median error".into(), percent(step.median_absolute)));
        summary.push(("Bias".into(), signed_percent(step.bias)));
    }
    if let Some(it) = interval {
        summary.push(("In the 80% interval".into(), percent(it.inside as f64 / it.rows as f64)));
    }
    if let Some(memory) = errors(|it| it.memory) {
        summary.push(("Mean error of peak memory".into(), percent(memory.mean_absolute)));
    }
    summary
}

fn tables(reports: &[FileReport]) -> Vec<Table> {
    let named: Vec<(String, &Figures)> = named(reports)
        .into_iter()
        .map(|(name, figures)| match name.strip_prefix("  ") {
            Some(part) => (format!("of it {part}"), figures),
            None => (name, figures),
        })
        .collect();
    let table = |title: &str, columns: &[&str], rows: Vec<Vec<String>>| Table {
        title: title.to_owned(),
        columns: columns.iter().map(|it| (*it).to_owned()).collect(),
        rows,
    };
    let mut tables = vec![];
    if !named.is_empty() {
        let rows = named.iter().map(|(name, figures)| time_row(name, figures)).collect();
        tables.push(table("Errors by file and source", &TIMES, rows));
    }
    let operators = operators(reports);
    if !operators.is_empty() {
        tables.push(table("Errors of single operators", &OPERATORS, operators));
    }
    let memory = named.iter().filter(|(_, figures)| has_memory(figures));
    let memory: Vec<Vec<String>> = memory.map(|(name, it)| memory_row(name, it)).collect();
    if !memory.is_empty() {
        tables.push(table("Peak memory by file and source", &MEMORY, memory));
    }
    let refusals = reports.iter().flat_map(|report| {
        let file = report.file.rsplit('/').next().unwrap_or(&report.file);
        report.refusals.iter().map(move |it| {
            vec![file.to_owned(), it.rows.to_string(), it.reason.to_owned(), it.first.clone()]
        })
    });
    let refusals: Vec<Vec<String>> = refusals.collect();
    if !refusals.is_empty() {
        let columns = ["File", "Rows", "Why", "The first of them"];
        tables.push(table("Rows that are not predicted", &columns, refusals));
    }
    tables
}
