//! The interval around a predicted step time, from the residuals of a stack's published rows.

use shardloom::cluster::{Cluster, Residuals};
use shardloom::plan::Plan;
use shardloom::program::quantity::seconds;
use shardloom::sim::step_kind;

/// The interval in which four of five published steps like this one were measured.
#[derive(Clone)]
pub struct Interval {
    /// From the least to the most seconds.
    pub ends: [f64; 2],
    residuals: Residuals,
}

impl Interval {
    /// Of a step of `plan` that is predicted to take `step_seconds`; none where the cluster's stack has no
    /// residuals of such steps. All published steps train all parameters.
    pub fn of(plan: &Plan, cluster: &Cluster, step_seconds: f64) -> Option<Interval> {
        if plan.parameters.iter().any(|group| group.frozen) {
            return None;
        }
        let residuals = cluster.stack().residuals_of(&step_kind(plan, cluster))?.clone();
        Some(Interval { ends: residuals.interval(step_seconds), residuals })
    }

    /// What stands behind a predicted time.
    pub fn described(&self) -> String {
        let [low, high] = self.ends.map(seconds);
        let Residuals { of, rows, low: least, .. } = &self.residuals;
        let slower = if *least > 1.0 { ", which were slower than predicted" } else { "" };
        format!(
            " ({low} to {high} by four of five of {rows} published steps{}{slower})",
            of.described()
        )
    }
}
