//! The simulator's verdict on a plan.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::lower;
use shardloom_sim::{MemoryFit, Options, RankSummary, require_few_in, simulate_figures};

use crate::SearchError;

/// What a plan takes and needs, simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// A step, once steps follow each other.
    pub step_seconds: f64,
    /// Share of all devices' time in which they do not compute.
    pub bubble_fraction: f64,
    /// Share of it in which they neither compute nor communicate, as they wait for others.
    pub dependency_idle_fraction: f64,
    /// How often a device does neither in a step, on average over all devices.
    pub waits: f64,
    /// What all devices together send in a step.
    pub sent_bytes: u64,
    /// What the devices of each stage need and have.
    pub memory: Vec<MemoryFit>,
}

impl Judgement {
    /// Share of all devices' time in which they communicate and do not compute.
    pub fn exposed_communication_fraction(&self) -> f64 {
        self.bubble_fraction - self.dependency_idle_fraction
    }

    /// Whether all stages fill at most this share of their devices' memory.
    pub fn fits(&self, memory_share: f64) -> bool {
        self.memory.iter().all(|it| it.peak_bytes as f64 <= memory_share * it.memory_bytes as f64)
    }

    /// The stage whose devices are fullest.
    pub fn fullest(&self) -> Option<&MemoryFit> {
        MemoryFit::fullest(&self.memory)
    }
}

/// Lowers `plan` and simulates two steps of it.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn judge(graph: &Graph, cluster: &Cluster, plan: &Plan) -> Result<Judgement, SearchError> {
    let graph = &*plan.graph_of(graph);
    require_few_in(graph, plan, Options::default())?;
    let program = lower(graph, plan, cluster.device_count() as usize)?;
    let simulation = simulate_figures(graph, cluster, &program, Options::default())?;
    let summary = simulation.summary();
    let devices: f64 = summary.ranks.iter().map(RankSummary::devices).sum();
    let sum = |what: fn(&RankSummary) -> f64| -> f64 {
        summary.ranks.iter().map(|rank| rank.devices() * what(rank)).sum()
    };
    Ok(Judgement {
        step_seconds: summary.step_seconds,
        bubble_fraction: summary.bubble_fraction,
        dependency_idle_fraction: summary.dependency_idle_fraction,
        waits: sum(|rank| rank.waits) / devices,
        sent_bytes: summary.ranks.iter().map(|rank| rank.sent_bytes_by_all).sum(),
        memory: simulation.memory_fits(&program, cluster)?,
    })
}

/// What came of simulating; none if a plan has more instructions than are simulated, where others of the same model may
/// have fewer.
pub(crate) fn unless_too_large<T>(
    outcome: Result<T, SearchError>,
) -> Result<Option<T>, SearchError> {
    match outcome {
        Err(error) if error.is_too_large() => Ok(None),
        outcome => outcome.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Uniform};

    use super::*;

    #[test]
    fn a_plan_that_the_cluster_has_no_devices_for_is_wrong_and_not_too_large() {
        let text = "mlp:inputs=2,hidden=2,layers=2,classes=2";
        let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
        let cluster = Cluster::parse("h100-80g:2").expect("a preset");
        let on = |devices: u32| {
            let mesh = Mesh::of(devices, 1, 1);
            let uniform = Uniform { mesh, global_batch: 4, ..Uniform::default() };
            unless_too_large(judge(&graph, &cluster, &uniform.plan(&graph, text, "c")))
        };
        assert!(on(2).expect("a plan for two devices").is_some());
        on(4).expect_err("there are two devices");
    }
}
