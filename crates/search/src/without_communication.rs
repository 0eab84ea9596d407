//! What devices do in a step where nothing is communicated and hosts launch in no time.

use shardloom_cluster::Cluster;
use shardloom_plan::Plan;
use shardloom_program::Rank;
use shardloom_sim::Simulation;

use crate::SearchError;
use crate::experiment::{Bench, Traffic};

/// How such a step divides, in seconds of an average device; communication and hosts add to it what
/// computing does not hide.
pub(crate) struct WithoutCommunication {
    /// Computing, as long as in the whole step.
    pub computing: f64,
    /// Computing nothing where there is a stage of the model, as something has to come from others first.
    pub waiting: f64,
    /// Computing nothing where there is none, on devices of servers.
    pub idle_servers: f64,
}

impl WithoutCommunication {
    /// What the devices of the program that `measured` shows do, if `hostless` is its cluster with hosts that take no
    /// time.
    ///
    /// # Errors
    /// As [`shardloom_sim::simulate`].
    pub fn of(
        bench: &Bench<'_>,
        hostless: &Cluster,
        measured: &Simulation,
    ) -> Result<WithoutCommunication, SearchError> {
        let seconds = bench.on(hostless, &Traffic::ALL)?.step_time().seconds();
        let [mut devices, mut servers] = [0.0; 2];
        let [mut computing, mut computing_servers] = [0.0; 2];
        for rank in measured.summary().ranks {
            let (class, _) = bench.program.locate(Rank(rank.rank));
            let weight = rank.devices();
            devices += weight;
            computing += weight * rank.busy_seconds;
            if bench.program.class(class).stages.is_empty() {
                servers += weight;
                computing_servers += weight * rank.busy_seconds;
            }
        }
        let idle = |devices_of: f64, computing: f64| {
            ((devices_of * seconds - computing) / devices).max(0.0)
        };
        Ok(WithoutCommunication {
            computing: computing / devices,
            waiting: idle(devices - servers, computing - computing_servers),
            idle_servers: idle(servers, computing_servers),
        })
    }
}

/// What [`WithoutCommunication::idle_servers`] is called.
pub(crate) const IDLE_SERVERS: &str = "servers that compute nothing";

/// What [`WithoutCommunication::waiting`] of `plan` is called.
pub(crate) fn waiting_for(plan: &Plan) -> &'static str {
    match has_stages(plan) {
        true => "waiting for other stages",
        false => "waiting for other replicas",
    }
}

/// What makes [`WithoutCommunication::waiting`] of `plan` shorter; more micro-batches only where these are of use.
pub(crate) fn shortens_waiting(plan: &Plan, more_microbatches_help: bool) -> &'static str {
    match has_stages(plan) {
        true if more_microbatches_help => "more micro-batches, or fewer stages",
        true => "fewer stages",
        false => "replicas that take as long as each other",
    }
}

fn has_stages(plan: &Plan) -> bool {
    plan.pipeline.iter().any(|pipeline| pipeline.stage.len() > 1)
}
