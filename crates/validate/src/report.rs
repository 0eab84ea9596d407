//! A file's predictions beside its measurements, in figures.

use std::collections::BTreeMap;

use serde::Serialize;
use shardloom_cluster::Stack;
use shardloom_sim::StepShares;

use crate::interval::Coverage;
use crate::statistics::{Errors, Pair, Regret};
use crate::{Measurements, OperatorFigures, OperatorRow, Outcome, Prediction, Refusal, Row};

/// How many of the worst rows are listed.
const WORST: usize = 3;

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// The file.
    pub file: String,
    /// What its columns are called together.
    pub schema: &'static str,
    /// Why nothing of it can be compared, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<&'static str>,
    /// How long predictions took, summed over rows.
    pub prediction_seconds: f64,
    /// All of its rows.
    pub all: Figures,
    /// Its rows by source and hardware.
    pub parts: Vec<Part>,
    /// Its operators by device and kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<OperatorFigures>,
    /// Why rows are not predicted.
    pub refusals: Vec<RefusedRows>,
    /// Row by row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<Vec<LineReport>>,
}

/// The rows of one source on one kind of hardware.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The source.
    pub source: String,
    /// The hardware, as the source calls it.
    pub hardware: String,
    /// Its figures.
    pub figures: Figures,
}

/// How far predictions are from measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// How many measurements there are.
    pub rows: usize,
    /// How many of them are not predicted.
    pub refused: usize,
    /// Errors of the time of a step; none where none is compared.
    pub step: Option<Errors>,
    /// How many times of a step lie in the intervals around their predictions; none where there is no interval.
    pub interval: Option<Coverage>,
    /// What choosing by prediction costs; none where no two plans are of one group.
    pub regret: Option<Regret>,
    /// Errors of peak memory; none where none was measured.
    pub memory: Option<Errors>,
    /// Of rows that crashed or ran out of memory, which are predicted not to fit.
    pub crashed: Exceeding,
    /// Of rows that ran, which are predicted not to fit.
    pub ran: Exceeding,
    /// The rows whose times are predicted worst, worst first.
    pub worst: Vec<WorstRow>,
}

/// How many rows are predicted not to fit in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exceeding {
    /// Of so many.
    pub rows: usize,
    /// So many need more than a device has.
    pub exceeding: usize,
}

/// A row whose time is predicted badly.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstRow {
    /// Its line in the file.
    pub line: u64,
    /// What it is.
    pub what: String,
    /// Predicted over measured, less 1.
    pub error: f64,
}

/// Rows that are refused alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedRows {
    /// Why.
    pub reason: &'static str,
    /// How many.
    pub rows: usize,
    /// What it is in the first of them.
    pub first: String,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineReport {
    /// Its line in the file.
    pub line: u64,
    /// Its source.
    pub source: String,
    /// Its hardware, as the source calls it.
    pub hardware: String,
    /// What it is.
    pub what: String,
    /// Measured time of a step.
    pub measured_seconds: Option<f64>,
    /// Predicted time of a step.
    pub predicted_seconds: Option<f64>,
    /// The interval around the predicted time that its stack's residuals make.
    pub predicted_seconds_interval: Option<[f64; 2]>,
    /// Predicted over measured time, less 1, where that counts.
    pub error: Option<f64>,
    /// What devices do with the predicted time.
    pub shares: Option<StepShares>,
    /// Measured peak memory of a device.
    pub measured_peak_bytes: Option<f64>,
    /// Predicted peak memory of a device.
    pub predicted_peak_bytes: Option<u64>,
    /// Whether it crashed or ran out of memory.
    pub crashed: bool,
    /// Whether more memory is predicted than a device has.
    pub exceeds: Option<bool>,
    /// Why it is not predicted.
    pub refused: Option<String>,
    /// How long predicting it took.
    pub prediction_seconds: f64,
}

/// A row and what became of it.
pub(crate) struct Found<'f> {
    pub row: &'f Row,
    pub outcome: &'f Outcome,
}

impl FileReport {
    /// The figures of `measurements`, whose rows came to `outcomes`; row by row, too, if `with_lines`.
    pub fn of(measurements: &Measurements, outcomes: &[Outcome], with_lines: bool) -> FileReport {
        let found: Vec<Found<'_>> = measurements
            .rows
            .iter()
            .zip(outcomes)
            .map(|(row, outcome)| Found { row, outcome })
            .collect();
        let mut parts: BTreeMap<(&str, &str), Vec<&Found<'_>>> = BTreeMap::new();
        for it in &found {
            parts.entry((&it.row.source, &it.row.hardware)).or_default().push(it);
        }
        let part = |((source, hardware), rows): (&(&str, &str), &Vec<&Found<'_>>)| Part {
            source: (*source).to_owned(),
            hardware: (*hardware).to_owned(),
            figures: Figures::of(rows),
        };
        FileReport {
            file: measurements.path.display().to_string(),
            schema: measurements.schema,
            refused: measurements.refused,
            prediction_seconds: found.iter().map(|it| it.outcome.elapsed.as_secs_f64()).sum(),
            all: Figures::of(&found.iter().collect::<Vec<_>>()),
            parts: parts.iter().map(part).collect(),
            operators: vec![],
            refusals: refusals(&found),
            lines: with_lines.then(|| found.iter().map(Found::line).collect()),
        }
    }
}

impl FileReport {
    /// The same with what the model of devices says of the operators of `measurements` under `stack`.
    #[must_use]
    pub fn with_operators(self, measurements: &Measurements, stack: Option<&Stack>) -> FileReport {
        let refused = |row: &OperatorRow| row.compare(stack).err();
        FileReport {
            operators: OperatorFigures::of(&measurements.operators, stack),
            refusals: match measurements.operators.is_empty() {
                true => self.refusals,
                false => grouped(measurements.operators.iter().filter_map(refused)),
            },
            ..self
        }
    }
}

impl Found<'_> {
    pub(crate) fn prediction(&self) -> Option<&Prediction> {
        self.outcome.prediction.as_ref().ok()
    }

    /// Predicted and measured time.
    fn step(&self) -> Option<Pair> {
        let predicted = self.prediction()?.step_seconds;
        Some(Pair { predicted, measured: self.row.measured.step_seconds? })
    }

    /// Predicted and measured time, where that counts.
    pub(crate) fn compared_step(&self) -> Option<Pair> {
        self.step().filter(|_| self.row.measured.uses.error)
    }

    /// Predicted and measured peak memory, where that counts.
    fn memory(&self) -> Option<Pair> {
        let predicted = self.prediction()?.peak_bytes as f64;
        let measured = self.row.measured.peak_bytes.filter(|_| self.row.measured.uses.memory)?;
        Some(Pair { predicted, measured })
    }

    fn what(&self) -> String {
        let Ok(case) = &self.row.case else { return self.row.model.clone() };
        let micro = self.prediction().map(|it| it.micro_batch);
        format!("{}, {}", self.row.model, case.describe(micro))
    }

    fn line(&self) -> LineReport {
        let (row, prediction) = (self.row, self.prediction());
        LineReport {
            line: row.line,
            source: row.source.clone(),
            hardware: row.hardware.clone(),
            what: self.what(),
            measured_seconds: row.measured.step_seconds,
            predicted_seconds: prediction.map(|it| it.step_seconds),
            predicted_seconds_interval: prediction
                .and_then(|it| Some(it.residuals.as_ref()?.interval(it.step_seconds))),
            error: self.compared_step().map(|pair| pair.error()),
            shares: prediction.map(|it| it.shares),
            measured_peak_bytes: row.measured.peak_bytes,
            predicted_peak_bytes: prediction.map(|it| it.peak_bytes),
            crashed: row.measured.crashed,
            exceeds: prediction.map(|it| it.exceeds),
            refused: self.outcome.prediction.as_ref().err().map(ToString::to_string),
            prediction_seconds: self.outcome.elapsed.as_secs_f64(),
        }
    }
}

impl Figures {
    fn of(found: &[&Found<'_>]) -> Figures {
        let steps: Vec<(&Found<'_>, Pair)> =
            found.iter().filter_map(|it| Some((*it, it.compared_step()?))).collect();
        let pairs: Vec<Pair> = steps.iter().map(|(_, pair)| *pair).collect();
        let memory: Vec<Pair> = found.iter().filter_map(|it| it.memory()).collect();
        let grouped = found.iter().filter(|it| it.row.measured.uses.regret).filter_map(|it| {
            let case = it.row.case.as_ref().ok()?;
            let numbers = (case.hardware.gpus, case.shape.key(), case.global_batch);
            Some(((it.row.hardware.as_str(), numbers), it.step()?))
        });
        let mut worst = steps;
        worst.sort_by(|(_, a), (_, b)| b.error().abs().total_cmp(&a.error().abs()));
        worst.truncate(WORST);
        Figures {
            rows: found.len(),
            refused: found.iter().filter(|it| it.prediction().is_none()).count(),
            step: Errors::of(&pairs),
            interval: Coverage::of(found.iter().copied()),
            regret: Regret::of(grouped),
            memory: Errors::of(&memory),
            crashed: exceeding(found, true),
            ran: exceeding(found, false),
            worst: worst
                .into_iter()
                .map(|(it, pair)| WorstRow {
                    line: it.row.line,
                    what: it.what(),
                    error: pair.error(),
                })
                .collect(),
        }
    }
}

fn exceeding(found: &[&Found<'_>], crashed: bool) -> Exceeding {
    let mut count = Exceeding::default();
    for it in found {
        let counts = it.row.measured.crashed == crashed && it.row.measured.uses.memory;
        if let Some(prediction) = it.prediction().filter(|_| counts) {
            count.rows += 1;
            count.exceeding += usize::from(prediction.exceeds);
        }
    }
    count
}

fn refusals(found: &[Found<'_>]) -> Vec<RefusedRows> {
    grouped(found.iter().filter_map(|it| it.outcome.prediction.clone().err()))
}

/// The most frequent reason first.
fn grouped(refusals: impl Iterator<Item = Refusal>) -> Vec<RefusedRows> {
    let mut reasons: Vec<RefusedRows> = vec![];
    for refusal in refusals {
        let reason = refusal.reason();
        match reasons.iter_mut().find(|it| it.reason == reason) {
            Some(known) => known.rows += 1,
            None => reasons.push(RefusedRows { reason, rows: 1, first: refusal.to_string() }),
        }
    }
    reasons.sort_by_key(|it| std::cmp::Reverse(it.rows));
    reasons
}
