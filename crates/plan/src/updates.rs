//! Words for when stages update their weights.

use serde::{Deserialize, Serialize};

use crate::{Plan, PlanError, ScheduleKind, Weights};

/// When a stage updates its weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Updates {
    /// Once a step, with the mean gradient of the step.
    #[default]
    Step,
    /// When each of its replicas that take micro-batches in turn has had one, with the mean gradient of
    /// these: a stage of one replica after every micro-batch, a stage of `r` after every `r`-th
    /// (PipeDream, Narayanan et al. 2019, SOSP, section 3.3). Stages update at different times, and a
    /// step's learning rate is that of each of its updates.
    Round,
}

impl Updates {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Updates::Step => "step",
            Updates::Round => "round",
        }
    }

    /// Whether it need not be written down.
    pub(crate) fn is_default(&self) -> bool {
        *self == Updates::Step
    }

    /// Checks that it goes with the rest of `plan`.
    pub(crate) fn validate(self, plan: &Plan) -> Result<(), PlanError> {
        let rule = match self {
            Updates::Round if plan.schedule != ScheduleKind::PipeDream => {
                "\"round\" is for schedule = \"pipedream\", which has no flush at the end of a step"
            }
            Updates::Round if !matches!(plan.weights, Weights::Stash | Weights::VerticalSync) => {
                "\"round\" is for weights.rule = \"stash\" or \"vertical-sync\""
            }
            Updates::Round if plan.looks_at_norm() => {
                "with \"round\" there is no norm of all gradients to clip or look at, as stages update \
                 at different times: leave out clip_norm, skip_non_finite and loss_scale"
            }
            Updates::Step | Updates::Round => return Ok(()),
        };
        Err(PlanError::field("updates", self.name(), rule))
    }
}
