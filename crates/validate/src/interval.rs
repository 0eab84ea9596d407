//! Intervals around predicted times: how many measurements lie in them, and the quantiles they are made of.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shardloom_cluster::{Residuals, Stack, StepGroup};

use crate::report::Found;
use crate::statistics::quantile;
use crate::{Measurements, Outcome};

/// Which shares of rows are below the ends of an interval that four of five rows are in.
const SHARES: [f64; 2] = [0.1, 0.9];

/// How many measured times lie in the intervals around their predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Coverage {
    /// Rows that have an interval.
    pub rows: usize,
    /// How many of them lie in it.
    pub inside: usize,
    /// Half of the interval's width over the predicted time, the median over rows.
    pub half_width: f64,
    /// Rows that are compared and have none: their software was calibrated on no such device or step.
    pub without: usize,
}

impl Coverage {
    pub(crate) fn of<'f>(found: impl IntoIterator<Item = &'f Found<'f>>) -> Option<Coverage> {
        let (mut inside, mut without) = (0, 0);
        let mut half_widths = vec![];
        for it in found {
            let Some(pair) = it.compared_step() else { continue };
            let residuals = it.prediction().and_then(|prediction| prediction.residuals.as_ref());
            let Some(residuals) = residuals else {
                without += 1;
                continue;
            };
            let [low, high] = residuals.interval(pair.predicted);
            inside += usize::from((low..=high).contains(&pair.measured));
            half_widths.push((residuals.high - residuals.low) / 2.0);
        }
        half_widths.sort_by(f64::total_cmp);
        let half_width = quantile(&half_widths, 0.5)?;
        Some(Coverage { rows: half_widths.len(), inside, half_width, without })
    }

    /// Over all files; none where no row has an interval.
    pub fn of_files(files: &[(Measurements, Vec<Outcome>)]) -> Option<Coverage> {
        Coverage::of(&found(files))
    }
}

fn found(files: &[(Measurements, Vec<Outcome>)]) -> Vec<Found<'_>> {
    let rows = files.iter().flat_map(|(file, outcomes)| file.rows.iter().zip(outcomes));
    rows.map(|(row, outcome)| Found { row, outcome }).collect()
}

/// The residuals of a stack's group of rows: measured over predicted times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupResiduals {
    /// The stack.
    pub stack: String,
    /// The group.
    pub of: StepGroup,
    /// The kinds of device of its rows.
    pub devices: BTreeSet<String>,
    /// How many rows are in it.
    pub rows: usize,
    /// The 10th and the 90th percentile; none of fewer rows than [`Residuals::LEAST_ROWS`].
    pub quantiles: Option<[f64; 2]>,
    /// How many rows lie between the percentiles of other models' rows; none where no model has enough
    /// others beside it.
    pub held_out: Option<HeldOut>,
}

/// Rows, and how many of them lie between the percentiles of the rows of other models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldOut {
    /// Rows whose model has enough rows of others beside it.
    pub rows: usize,
    /// How many of them lie in between.
    pub inside: usize,
}

/// The sizes of a model but for its sequence length.
type Model = [usize; 6];

/// Of a row, its model and measured over predicted time.
type Residual = (Model, f64);

/// The residuals of every stack that rows were predicted under, which is `stack` if one was given: by the
/// groups that the stack has now, or of all its rows where it has none.
pub fn residuals(
    files: &[(Measurements, Vec<Outcome>)],
    stack: Option<&Stack>,
) -> Vec<GroupResiduals> {
    let found = found(files);
    let mut by_stack: BTreeMap<&str, Vec<&Found<'_>>> = BTreeMap::new();
    for it in &found {
        if let Ok(case) = &it.row.case {
            by_stack.entry(stack.map_or(case.stack, |it| &it.name)).or_default().push(it);
        }
    }
    let of_stack = |(name, rows): (&str, Vec<&Found<'_>>)| -> Vec<GroupResiduals> {
        let known = stack.cloned().or_else(|| Stack::parse(name).ok());
        let groups = groups(known.as_ref());
        groups.into_iter().map(|of| GroupResiduals::of_rows(name, of, &rows)).collect()
    };
    let all = by_stack.into_iter().flat_map(of_stack);
    all.filter(|group| group.rows > 0).collect()
}

fn groups(stack: Option<&Stack>) -> Vec<StepGroup> {
    match stack.map(|stack| &stack.residuals[..]) {
        None | Some([]) => vec![StepGroup::All],
        Some(residuals) => residuals.iter().map(|group| group.of).collect(),
    }
}

impl GroupResiduals {
    fn of_rows(stack: &str, of: StepGroup, rows: &[&Found<'_>]) -> GroupResiduals {
        let in_group =
            |it: &&&Found<'_>| it.prediction().is_some_and(|it| of.includes(&it.step_kind));
        let rows = rows.iter().filter(in_group);
        let found =
            rows.filter_map(|it| Some((residual(it)?, &it.prediction()?.step_kind.devices)));
        let (residuals, devices): (Vec<Residual>, Vec<&BTreeSet<String>>) = found.unzip();
        GroupResiduals {
            stack: stack.to_owned(),
            of,
            devices: devices.into_iter().flatten().cloned().collect(),
            rows: residuals.len(),
            quantiles: quantiles(residuals.iter().map(|(_, ratio)| *ratio)),
            held_out: held_out(&residuals),
        }
    }
}

/// What a row adds to its group; none if it is not to be compared.
fn residual(found: &Found<'_>) -> Option<Residual> {
    let pair = found.compared_step().filter(|pair| pair.predicted > 0.0)?;
    let [model @ .., _] = found.row.case.as_ref().ok()?.shape.key();
    Some((model, pair.measured / pair.predicted))
}

/// The outer tenths of these numbers, where they are enough.
fn quantiles(numbers: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let mut sorted: Vec<f64> = numbers.collect();
    if sorted.len() < Residuals::LEAST_ROWS as usize {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let [low, high] = SHARES.map(|share| quantile(&sorted, share));
    Some([low?, high?])
}

fn held_out(residuals: &[Residual]) -> Option<HeldOut> {
    let models: BTreeSet<Model> = residuals.iter().map(|(model, _)| *model).collect();
    let mut sum = HeldOut::default();
    for model in models {
        let (own, others): (Vec<Residual>, Vec<Residual>) =
            residuals.iter().partition(|(it, _)| *it == model);
        let Some([low, high]) = quantiles(others.iter().map(|(_, ratio)| *ratio)) else { continue };
        sum.rows += own.len();
        sum.inside += own.iter().filter(|(_, ratio)| (low..=high).contains(ratio)).count();
    }
    (sum.rows > 0).then_some(sum)
}
