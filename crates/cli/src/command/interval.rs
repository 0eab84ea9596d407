//! The interval around a predicted step time, from the residuals of a stack's published rows.

use shardloom::cluster::{Cluster, Residuals};
use shardloom::plan::Plan;
use shardloom::program::quantity::seconds;
use shardloom::sim::step_kind;

/// The interval in which a step is measured with 80% confidence.
#[derive(Clone, Copy)]
pub struct Interval {
    /// From the least to the most seconds.
    pub ends: [f64; 2],
    residuals: Residuals,
}

impl Interval {
    /// Of a step of `plan` that is predicted to take `step_seconds`; none where the cluster's stack has no
    /// residuals of such steps.
    pub fn of(plan: &Plan, cluster: &Cluster, step_seconds: f64) -> Option<Interval> {
        let residuals = *cluster.stack().residuals_of(step_kind(plan, cluster))?;
        Some(Interval { ends: residuals.interval(step_seconds), residuals })
    }

    /// What stands behind a predicted time.
    pub fn described(&self) -> String {
        let [low, high] = self.ends.map(seconds);
        let Residuals { of, rows, .. } = self.residuals;
        format!(
            ", with 80% confidence between {low} and {high}, from {rows} published steps{}",
            of.described()
        )
    }
}
