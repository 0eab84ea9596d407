//! Constants of a software stack, refitted to the rows that ran under it.

mod error;
mod search;
mod table;

use std::collections::BTreeMap;

use serde::Serialize;
use shardloom_cluster::Stack;

use crate::{Refusal, Row};
pub use error::FitError;
use search::{Point, RANGE, is_at_end, least};
use table::{FitRow, Predictions};

/// By how much a constant is changed to see which rows depend on it.
const NUDGE: f64 = 1.1;
/// By how much a row's prediction has to change then.
const MOVES: f64 = 1e-3;
/// The most groups that are left out one after the other; of more, several are left out together.
const MOST_GROUPS: usize = 20;

/// What a fit came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// The stack with its new constants.
    #[serde(skip)]
    pub stack: Stack,
    /// How many rows it was fitted to.
    pub rows: usize,
    /// Each constant was searched from its value over this to its value times this.
    pub range: f64,
    /// The constants, in the order in which they were asked for.
    pub constants: Vec<FittedConstant>,
    /// The mean of the rows' absolute errors with the old constants.
    pub error_before: f64,
    /// With the new.
    pub error_after: f64,
    /// Errors of rows that the constants were not fitted to; empty where all rows are of one group.
    pub held_out: Vec<HeldOutGroups>,
    /// How many simulations it took.
    pub simulations: usize,
}

/// A constant before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FittedConstant {
    /// Its name.
    pub name: String,
    /// Its value before.
    pub before: f64,
    /// Its value now; as before if it is not determined.
    pub after: f64,
    /// How many rows are predicted to take over 0.1% more or less time when it changes by 10%.
    pub rows: usize,
    /// Whether the new value is an end of the range in which it was searched.
    pub at_end_of_range: bool,
}

/// What fits without some rows come to on these rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldOutGroups {
    /// What rows of a group have in common: their source or their model.
    pub by: &'static str,
    /// The groups.
    pub groups: Vec<HeldOutGroup>,
    /// The mean absolute error of all of their rows with the old constants.
    pub error_before: f64,
    /// The same, each row predicted with constants that were fitted without its group.
    pub error_after: f64,
}

/// A group of rows that were left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldOutGroup {
    /// Its source or model, or several.
    pub name: String,
    /// How many rows it has.
    pub rows: usize,
    /// The mean of their absolute errors with the old constants.
    pub error_before: f64,
    /// With constants that were fitted to all other rows.
    pub error_after: f64,
}

/// The constant that `name` means: a whole name, or the end of just one.
///
/// # Errors
/// With all names, if it is none or several, or is 0, from which no factor leads away.
pub fn constant_named(stack: &Stack, name: &str) -> Result<(String, f64), FitError> {
    let all = stack.constants()?;
    let ending = format!(".{name}");
    let exact: Vec<&(String, f64)> = all.iter().filter(|(it, _)| it == name).collect();
    let ends: Vec<&(String, f64)> = all.iter().filter(|(it, _)| it.ends_with(&ending)).collect();
    let known = || all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    match (&exact[..], &ends[..]) {
        ([found], _) | ([], [found]) if found.1 == 0.0 => {
            Err(FitError::Zero { name: found.0.clone(), stack: stack.name.clone() })
        }
        ([found], _) | ([], [found]) => Ok((*found).clone()),
        _ => Err(FitError::Unknown {
            name: name.to_owned(),
            stack: stack.name.clone(),
            known: known(),
        }),
    }
}

/// Fits constants of `stack`, by their whole names, to those of `rows` whose time is compared; `hear` is told
/// how many simulations have been made, from any thread.
///
/// # Errors
/// If there is no such constant, or no row can be predicted.
pub fn fit(
    rows: &[&Row],
    stack: &Stack,
    constants: &[(String, f64)],
    hear: &(dyn Fn(usize) + Sync),
) -> Result<Fitted, FitError> {
    let timed = rows.iter().filter_map(|row| {
        let measured = row.measured.step_seconds.filter(|_| row.measured.uses.error)?;
        Some((*row, FitRow::new(row.case.as_ref().ok()?, measured)))
    });
    let (rows, timed): (Vec<&Row>, Vec<FitRow<'_>>) = timed.unzip();
    let mut predictions = Predictions::new(timed, stack, hear);
    // Rows that cannot be predicted are left out, as in errors.
    let (all, present) = predictable(&mut predictions, stack);
    if all.is_empty() {
        return Err(FitError::NoRows { stack: stack.name.clone() });
    }
    let mut moved = vec![];
    for (name, value) in constants {
        moved.push(moving(&mut predictions, &all, &present, stack, (name, *value))?);
    }
    let determined = constants.iter().zip(&moved).filter(|(_, rows)| **rows > 0);
    let varied: Vec<(String, f64)> = determined.map(|(constant, _)| constant.clone()).collect();
    predictions.vary(varied.clone());
    let start: Point = vec![0; varied.len()];
    predictions.remember(&start, &all, &present);
    let refit = |predictions: &mut Predictions<'_>, rows: &[usize]| {
        least(varied.len(), |point| predictions.value(point, rows))
    };
    let error_before = predictions.value(&start, &all)?.error;
    let (best, error_after) = refit(&mut predictions, &all)?;
    let fitted = predictions.stack_at(&best).unwrap_or_else(|| stack.clone());
    let values: BTreeMap<String, f64> = fitted.constants()?.into_iter().collect();
    let of_constant = |((name, before), rows): (&(String, f64), &usize)| FittedConstant {
        name: name.clone(),
        before: *before,
        after: values.get(name).copied().unwrap_or(*before),
        rows: *rows,
        at_end_of_range: varied
            .iter()
            .position(|(it, _)| it == name)
            .is_some_and(|index| is_at_end(best[index])),
    };
    let constants = constants.iter().zip(&moved).map(of_constant).collect();
    let mut held_out = vec![];
    type Name = fn(&Row) -> &str;
    let kinds: [(&str, Name); 2] = [("source", |row| &row.source), ("model", |row| &row.model)];
    for (by, name) in kinds {
        let groups = groups(&rows, &all, name);
        if groups.len() < 2 || varied.is_empty() {
            continue;
        }
        let mut found = vec![];
        for (name, own) in groups {
            let others: Vec<usize> = all.iter().copied().filter(|it| !own.contains(it)).collect();
            let (point, _) = refit(&mut predictions, &others)?;
            found.push(HeldOutGroup {
                name,
                rows: own.len(),
                error_before: predictions.value(&start, &own)?.error,
                error_after: predictions.value(&point, &own)?.error,
            });
        }
        held_out.push(HeldOutGroups::of(by, found));
    }
    Ok(Fitted {
        stack: fitted,
        rows: all.len(),
        range: RANGE,
        constants,
        error_before,
        error_after,
        held_out,
        simulations: predictions.simulations(),
    })
}

/// The rows that can be predicted, and what they are with the present constants.
fn predictable(predictions: &mut Predictions<'_>, stack: &Stack) -> (Vec<usize>, Vec<f64>) {
    let count = predictions.rows().len();
    let found = predictions.outcomes(stack, count);
    let rows = found.into_iter().enumerate();
    rows.filter_map(|(row, seconds)| Some((row, seconds.ok()?))).unzip()
}

/// How many rows depend on a constant.
fn moving(
    predictions: &mut Predictions<'_>,
    rows: &[usize],
    present: &[f64],
    stack: &Stack,
    (name, value): (&str, f64),
) -> Result<usize, FitError> {
    let nudged = stack.with_constants([(name, value * NUDGE)]);
    // What cannot be more can be less.
    let nudged = nudged.or_else(|_| stack.with_constants([(name, value / NUDGE)]))?;
    let found = predictions.under(&nudged, rows)?;
    let moves = |(now, before): (&f64, &f64)| (now / before - 1.0).abs() > MOVES;
    Ok(found.iter().zip(present).filter(|it| moves(*it)).count())
}

/// The rows of each group, by the groups' names; of too many groups several together.
fn groups(rows: &[&Row], all: &[usize], name: impl Fn(&Row) -> &str) -> Vec<(String, Vec<usize>)> {
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &row in all {
        by_name.entry(name(rows[row])).or_default().push(row);
    }
    if by_name.len() <= MOST_GROUPS {
        return by_name.into_iter().map(|(name, rows)| (name.to_owned(), rows)).collect();
    }
    let mut together: Vec<(Vec<&str>, Vec<usize>)> = vec![(vec![], vec![]); MOST_GROUPS];
    for (index, (name, rows)) in by_name.into_iter().enumerate() {
        let (names, members) = &mut together[index % MOST_GROUPS];
        names.push(name);
        members.extend(rows);
    }
    together.into_iter().map(|(names, rows)| (names.join(", "), rows)).collect()
}

impl HeldOutGroups {
    fn of(by: &'static str, groups: Vec<HeldOutGroup>) -> HeldOutGroups {
        let rows: usize = groups.iter().map(|it| it.rows).sum();
        let mean = |error: fn(&HeldOutGroup) -> f64| {
            groups.iter().map(|it| it.rows as f64 * error(it)).sum::<f64>() / rows.max(1) as f64
        };
        let (error_before, error_after) = (mean(|it| it.error_before), mean(|it| it.error_after));
        HeldOutGroups { by, groups, error_before, error_after }
    }
}

impl From<Refusal> for FitError {
    fn from(refusal: Refusal) -> FitError {
        FitError::Prediction(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measured;

    #[test]
    fn too_many_groups_are_left_out_several_at_a_time_as_evenly_as_possible() {
        // Two rows of each model.
        let rows: Vec<Row> = (0..2 * (2 * MOST_GROUPS + 1))
            .map(|number| Row {
                line: number as u64,
                source: String::new(),
                hardware: String::new(),
                model: format!("model {:02}", number / 2),
                measured: Measured::step(1.0),
                case: Err(Refusal::NothingMeasured),
            })
            .collect();
        let rows: Vec<&Row> = rows.iter().collect();
        let sizes = |models: usize| -> Vec<usize> {
            let all: Vec<usize> = (0..2 * models).collect();
            let groups = groups(&rows, &all, |row| &row.model);
            let mut members: Vec<usize> = groups.iter().flat_map(|it| it.1.clone()).collect();
            members.sort_unstable();
            assert_eq!(members, all, "each row is left out once");
            groups.iter().map(|(_, rows)| rows.len()).collect()
        };
        assert_eq!(sizes(MOST_GROUPS), [2; MOST_GROUPS]);
        // Of 41 models two together, and once three.
        let mut uneven = sizes(2 * MOST_GROUPS + 1);
        uneven.sort_unstable();
        assert_eq!((uneven.len(), uneven[0], uneven[18], uneven[19]), (MOST_GROUPS, 4, 4, 6));
    }
}
