//! Predictions of many rows at once.

use std::time::{Duration, Instant};

use shardloom_cluster::Stack;
use shardloom_sim::on_all_cores;

use crate::{Prediction, Refusal, Row};

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The prediction, or why there is none.
    pub prediction: Result<Prediction, Refusal>,
    /// How long predicting took.
    pub elapsed: Duration,
}

/// Predicts `rows` on all cores, each under the software stack that it ran under or all under `stack`; the outcomes are in the order of the rows. `hear` is called after each row,
/// from any thread.
pub fn predict(rows: &[Row], stack: Option<&Stack>, hear: &(dyn Fn() + Sync)) -> Vec<Outcome> {
    on_all_cores(rows.len(), |index| {
        let begin = Instant::now();
        let case = rows[index].case.as_ref().map_err(Clone::clone);
        let prediction = case.and_then(|case| case.predict(stack));
        hear();
        Outcome { prediction, elapsed: begin.elapsed() }
    })
}
