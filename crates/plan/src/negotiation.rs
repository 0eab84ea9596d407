//! Reductions whose order is agreed on while running.

use serde::{Deserialize, Serialize};

use crate::{Communication, Compression, Plan, PlanError, Updates};

/// Replicas agree while running in which order they reduce their gradients (Sergeev and Del Balso 2018, arXiv
/// 1802.05799, Horovod): every parameter's gradient is a request of its own, made as soon as it is whole. In
/// cycles all replicas tell the first of them which requests they have made; it answers with those that all
/// have made, in one order, and all carry these out, several at once in one buffer where they fit (tensor
/// fusion, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Negotiation {
    /// The least time from the begin of one cycle to that of the next, in seconds.
    #[serde(default = "cycle_seconds")]
    pub cycle_seconds: f64,
    /// Requests that follow each other in an answer are reduced as one up to so many bytes; with 0 each by
    /// itself.
    #[serde(default = "fusion_bytes")]
    pub fusion_bytes: usize,
}

/// Horovod's default since its version 0.21; before it was 5 ms.
fn cycle_seconds() -> f64 {
    1e-3
}

/// Horovod's default since its version 0.21, 128 MiB; before it was 64 MiB.
fn fusion_bytes() -> usize {
    128 << 20
}

impl Default for Negotiation {
    fn default() -> Negotiation {
        Negotiation { cycle_seconds: cycle_seconds(), fusion_bytes: fusion_bytes() }
    }
}

impl Negotiation {
    /// The longest cycle.
    pub const MOST_CYCLE_SECONDS: f64 = 60.0;

    /// Checks that it goes with the rest of `plan`.
    pub(crate) fn validate(self, plan: &Plan) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            Err(PlanError::field(key, value, format!("with sync.negotiation {rule}")))
        };
        if !(0.0..=Negotiation::MOST_CYCLE_SECONDS).contains(&self.cycle_seconds) {
            let rule = format!("from 0 to {} seconds", Negotiation::MOST_CYCLE_SECONDS);
            let key = "sync.negotiation.cycle_seconds";
            return Err(PlanError::field(key, self.cycle_seconds, rule));
        }
        if plan.communication != Communication::Thread {
            let rule = "ranks compute while others get ready: \"thread\"";
            return refuse("communication", "in-line".into(), rule);
        }
        if plan.sync.has_servers() {
            let held = plan.sync.servers.is_some();
            let key = if held { "sync.servers" } else { "sync.summation" };
            let rule = "replicas reduce among themselves: there are no servers";
            return refuse(key, "set".into(), rule);
        }
        if plan.sync.averaging.is_some() {
            let rule = "replicas are kept equal by their gradients";
            return refuse("sync.averaging", "set".into(), rule);
        }
        for (place, sync) in plan.syncs().enumerate() {
            let key = |word: &str| match place.checked_sub(1) {
                None => format!("sync.{word}"),
                Some(group) => format!("parameters[{group}].{word}"),
            };
            if sync.zero > 0 {
                let rule =
                    "replicas hold and update everything: zero = 0, in groups of parameters too";
                return refuse(&key("zero"), sync.zero.to_string(), rule);
            }
            if !matches!(sync.compression, Compression::None | Compression::Rounded { .. }) {
                let rule = "requests are all-reduces of gradients as they are or in 16 bits: none, fp16, bf16, \
                            fp16-feedback or bf16-feedback";
                return refuse(&key("compression"), sync.compression.to_string(), rule);
            }
        }
        if plan.pipeline.len() > 1 {
            let rule = "there is one pipeline: what several sum up has a fixed order";
            return refuse("pipeline", plan.pipeline.len().to_string(), rule);
        }
        if !plan.flushes() {
            let rule = "all requests of a step end with it: a schedule with a flush";
            return refuse("weights.rule", plan.weights.name().into(), rule);
        }
        if plan.updates != Updates::Step {
            let rule = "gradients are reduced once a step, so step";
            return refuse("updates", plan.updates.name().into(), rule);
        }
        let mut groups = plan.parameters.iter().enumerate();
        match groups.find_map(|(index, group)| Some((index, group.bucket_bytes?))) {
            Some((index, bytes)) => {
                let rule = "each parameter is a bucket of its own: leave it out";
                refuse(&format!("parameters[{index}].bucket_bytes"), bytes.to_string(), rule)
            }
            None => Ok(()),
        }
    }
}
