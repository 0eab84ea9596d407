//! Predicted times of rows at points of the grid, each simulated once.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use shardloom_cluster::Stack;
use shardloom_sim::on_all_cores;

use super::search::{Point, Value, factor};
use crate::prepared::Prepared;
use crate::{Case, Pair, Refusal};

/// A row whose time is to be predicted.
pub(crate) struct FitRow<'r> {
    pub case: &'r Case,
    pub measured_seconds: f64,
    prepared: OnceLock<Result<Prepared, Refusal>>,
}

impl<'r> FitRow<'r> {
    pub fn new(case: &'r Case, measured_seconds: f64) -> FitRow<'r> {
        FitRow { case, measured_seconds, prepared: OnceLock::new() }
    }
}

/// The rows, and what was found out about them.
pub(crate) struct Predictions<'r> {
    rows: Vec<FitRow<'r>>,
    stack: &'r Stack,
    /// Names and present values.
    constants: Vec<(String, f64)>,
    /// By point and row; none where that has not been asked.
    known: HashMap<Point, Vec<Option<f64>>>,
    simulations: usize,
    hear: &'r (dyn Fn(usize) + Sync),
}

impl<'r> Predictions<'r> {
    /// Nothing yet. `hear` is told how many simulations have been made.
    pub fn new(
        rows: Vec<FitRow<'r>>,
        stack: &'r Stack,
        hear: &'r (dyn Fn(usize) + Sync),
    ) -> Predictions<'r> {
        Predictions { rows, stack, constants: vec![], known: HashMap::new(), simulations: 0, hear }
    }

    /// Has points be of these constants from now on.
    pub fn vary(&mut self, constants: Vec<(String, f64)>) {
        self.constants = constants;
        self.known.clear();
    }

    pub fn rows(&self) -> &[FitRow<'r>] {
        &self.rows
    }

    /// How many simulations were made so far.
    pub fn simulations(&self) -> usize {
        self.simulations
    }

    /// The stack at a point; none where one of its constants would be out of its range.
    pub fn stack_at(&self, point: &Point) -> Option<Stack> {
        let values = self.constants.iter().zip(point);
        // What stays as it is, stays so to the last digit.
        let moved = values.filter(|(_, steps)| **steps != 0);
        let values = moved.map(|((name, value), steps)| (name.as_str(), value * factor(*steps)));
        self.stack.with_constants(values).ok()
    }

    /// Predicted seconds of these rows at a point.
    ///
    /// # Errors
    /// The first row that cannot be predicted, and why. Rows are given that could be at first.
    pub fn at(
        &mut self,
        point: &Point,
        stack: &Stack,
        rows: &[usize],
    ) -> Result<Vec<f64>, Refusal> {
        let mut known = self.known.remove(point).unwrap_or_else(|| vec![None; self.rows.len()]);
        let missing: Vec<usize> =
            rows.iter().copied().filter(|&row| known[row].is_none()).collect();
        let found = self.simulate(stack, &missing);
        for (row, seconds) in missing.into_iter().zip(found) {
            known[row] = Some(seconds?);
        }
        let seconds = rows.iter().filter_map(|&row| known[row]).collect();
        self.known.insert(point.clone(), known);
        Ok(seconds)
    }

    /// Predicted seconds of the first `count` rows under `stack`, or why there is none.
    pub fn outcomes(&mut self, stack: &Stack, count: usize) -> Vec<Result<f64, Refusal>> {
        let rows: Vec<usize> = (0..count).collect();
        self.simulate(stack, &rows)
    }

    /// Predicted seconds of these rows under `stack`, which differs in constants only.
    ///
    /// # Errors
    /// As [`Predictions::at`].
    pub fn under(&mut self, stack: &Stack, rows: &[usize]) -> Result<Vec<f64>, Refusal> {
        self.simulate(stack, rows).into_iter().collect()
    }

    /// Takes these times as those of rows at a point.
    pub fn remember(&mut self, point: &Point, rows: &[usize], seconds: &[f64]) {
        let mut known = vec![None; self.rows.len()];
        for (&row, &seconds) in rows.iter().zip(seconds) {
            known[row] = Some(seconds);
        }
        self.known.insert(point.clone(), known);
    }

    fn simulate(&mut self, stack: &Stack, rows: &[usize]) -> Vec<Result<f64, Refusal>> {
        let (all, hear, before) = (&self.rows, self.hear, AtomicUsize::new(self.simulations));
        let found = on_all_cores(rows.len(), |index| {
            let row = &all[rows[index]];
            let prepared = row.prepared.get_or_init(|| Prepared::new(row.case, Some(stack)));
            let prediction = prepared.as_ref().map_err(Clone::clone)?.predict(Some(stack));
            hear(before.fetch_add(1, Ordering::Relaxed) + 1);
            Ok(prediction?.step_seconds)
        });
        self.simulations += rows.len();
        found
    }

    /// The errors of these rows at a point.
    ///
    /// # Errors
    /// As [`Predictions::at`].
    pub fn value(&mut self, point: &Point, rows: &[usize]) -> Result<Value, Refusal> {
        let Some(stack) = self.stack_at(point) else { return Ok(Value::IMPOSSIBLE) };
        let predicted = self.at(point, &stack, rows)?;
        let error = |(predicted, row): (f64, &usize)| {
            Pair { predicted, measured: self.rows[*row].measured_seconds }.error()
        };
        Ok(Value::of(predicted.into_iter().zip(rows).map(error).collect()))
    }
}
