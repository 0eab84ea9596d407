//! Words for which version of the weights a pass runs with, where steps follow each other without a
//! flush.

use serde::{Deserialize, Serialize};

use crate::{Optimizer, Plan, PlanError, ScheduleKind};

/// Which version of the weights a pass runs with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Weights {
    /// The only one: every step begins when the one before has updated them.
    #[default]
    Flush,
    /// A forward pass takes the newest, and the backward pass of the same micro-batch the same
    /// (PipeDream, Narayanan et al. 2019, arXiv 1806.03377, section 3.3).
    Stash,
    /// All stages take, for a micro-batch, the version that the first stage took (section 3.3,
    /// "vertical sync").
    VerticalSync,
    /// All micro-batches of a step take the version before the newest, so that two suffice
    /// (PipeDream-2BW, Narayanan et al. 2021, arXiv 2006.09503, section 3.1).
    DoubleBuffer,
    /// Every pass takes the newest, so that backward may run with another than forward did.
    Newest {
        /// What makes up for it.
        corrections: Corrections,
    },
}

/// What makes up for delayed gradients. A stage's delay is the number of updates that its weights get
/// between a forward pass and the update with that micro-batch's gradient. Weights that several stages
/// hold are updated alike in all, for the longest of their delays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Corrections {
    /// PipeMare's T1 (Yang et al. 2021, arXiv 1910.05124): for so many steps, counted from the end of
    /// the synchronous ones, the learning rate is divided by `delay^(1 - step / anneal_steps)`; of stages
    /// whose delay is below 1, which would raise it, it stays as it is.
    pub anneal_steps: Option<u64>,
    /// PipeMare's T2: backward passes run with the weights moved back along their mean velocity, which
    /// decays to this share over the delay (the paper has 0.135).
    pub discrepancy: Option<f64>,
    /// PipeMare's T3: so many first steps are synchronous.
    pub synchronous_steps: u64,
    /// Spike compensation (Kosson et al. 2021, arXiv 2003.11666) for this many times the delay; 1 is
    /// exact without weight prediction, 2 overcompensates.
    pub spike: Option<f64>,
    /// Linear weight prediction (ibid.): passes run with the weights as they are expected to be after
    /// the delay.
    pub prediction: Option<Prediction>,
}

impl Corrections {
    /// Whether some passes run with weights that are moved along a velocity. They are trained in fp32 only.
    pub fn move_weights(&self) -> bool {
        self.discrepancy.is_some() || self.prediction.is_some()
    }
}

/// How weights are extrapolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prediction {
    /// Along the optimizer's momentum.
    Velocity,
    /// Along the last update.
    Weights,
}

/// The TOML form: corrections stand beside the rule.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    rule: Rule,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anneal_steps: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    discrepancy: Option<f64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    synchronous_steps: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spike: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prediction: Option<Prediction>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rule {
    Flush,
    Stash,
    VerticalSync,
    DoubleBuffer,
    Newest,
}

fn is_zero(steps: &u64) -> bool {
    *steps == 0
}

impl TryFrom<Written> for Weights {
    type Error = PlanError;

    fn try_from(written: Written) -> Result<Weights, PlanError> {
        let Written { rule, anneal_steps, discrepancy, synchronous_steps, spike, prediction } =
            written;
        let corrections =
            Corrections { anneal_steps, discrepancy, synchronous_steps, spike, prediction };
        let weights = match rule {
            Rule::Flush => Weights::Flush,
            Rule::Stash => Weights::Stash,
            Rule::VerticalSync => Weights::VerticalSync,
            Rule::DoubleBuffer => Weights::DoubleBuffer,
            Rule::Newest => return Ok(Weights::Newest { corrections }),
        };
        match corrections == Corrections::default() {
            true => Ok(weights),
            false => {
                let rule = "only \"newest\" has corrections";
                Err(PlanError::field("weights.rule", weights.name(), rule))
            }
        }
    }
}

impl From<Weights> for Written {
    fn from(weights: Weights) -> Written {
        let Corrections { anneal_steps, discrepancy, synchronous_steps, spike, prediction } =
            weights.corrections();
        let rule = match weights {
            Weights::Flush => Rule::Flush,
            Weights::Stash => Rule::Stash,
            Weights::VerticalSync => Rule::VerticalSync,
            Weights::DoubleBuffer => Rule::DoubleBuffer,
            Weights::Newest { .. } => Rule::Newest,
        };
        Written { rule, anneal_steps, discrepancy, synchronous_steps, spike, prediction }
    }
}

impl ScheduleKind {
    /// Whether every step begins when the one before is done. [`ScheduleKind::Table`] counts among those
    /// where it does, and yet its order may run ahead: of a plan, [`Plan::flushes`] knows.
    pub fn flushes(self) -> bool {
        !matches!(self, ScheduleKind::PipeDream | ScheduleKind::PipeMare)
    }

    /// The rule that is meant when only the schedule is named.
    pub fn usual_weights(self) -> Weights {
        match self {
            ScheduleKind::PipeDream => Weights::Stash,
            ScheduleKind::PipeMare => Weights::Newest { corrections: Corrections::default() },
            _ => Weights::Flush,
        }
    }
}

impl Plan {
    /// Whether every step begins when the one before is done, which its rule for weights says.
    pub fn flushes(&self) -> bool {
        self.weights == Weights::Flush
    }
}

impl Weights {
    /// Whether it need not be written down.
    pub(crate) fn is_default(&self) -> bool {
        *self == Weights::Flush
    }

    /// What makes up for delayed gradients: nothing where they are not delayed or old weights are kept.
    pub fn corrections(self) -> Corrections {
        match self {
            Weights::Newest { corrections } => corrections,
            _ => Corrections::default(),
        }
    }

    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Weights::Flush => "flush",
            Weights::Stash => "stash",
            Weights::VerticalSync => "vertical-sync",
            Weights::DoubleBuffer => "double-buffer",
            Weights::Newest { .. } => "newest",
        }
    }

    /// Checks that the rule goes with the schedule and its numbers make sense.
    pub(crate) fn validate(
        self,
        schedule: ScheduleKind,
        optimizer: &Optimizer,
        zero: u8,
    ) -> Result<(), PlanError> {
        let flushes = schedule.flushes();
        // Whether a table has a flush is its order's to say.
        if schedule != ScheduleKind::Table && flushes != (self == Weights::Flush) {
            let rule = match flushes {
                true => format!("{} has a flush, so \"flush\"", schedule.name()),
                false => format!(
                    "{} has no flush, so \"stash\", \"vertical-sync\", \"double-buffer\" or \"newest\"",
                    schedule.name()
                ),
            };
            return Err(PlanError::field("weights.rule", self.name(), rule));
        }
        let Weights::Newest { corrections } = self else { return Ok(()) };
        let refuse = |key: &str, value: f64, rule: &str| {
            Err(PlanError::field(format!("weights.{key}"), value, rule))
        };
        let momentum = match optimizer {
            Optimizer::Sgd { momentum, .. } => *momentum > 0.0,
            _ => false,
        };
        let velocity = corrections.prediction == Some(Prediction::Velocity);
        if (velocity || corrections.spike.is_some()) && !momentum {
            let key = if velocity { "weights.prediction" } else { "weights.spike" };
            let rule = "it is defined for optimizer.kind = \"sgd\" with momentum";
            return Err(PlanError::field(key, if velocity { "velocity" } else { "set" }, rule));
        }
        if (corrections.prediction.is_some() || corrections.discrepancy.is_some()) && zero > 0 {
            let key = if corrections.prediction.is_some() { "prediction" } else { "discrepancy" };
            let rule = format!(
                "weights.{key} moves weights for the passes that read them, which takes whole ones: zero = 0"
            );
            return Err(PlanError::field("sync.zero", zero, rule));
        }
        match corrections {
            Corrections { anneal_steps: Some(0), .. } => {
                refuse("anneal_steps", 0.0, "at least 1 step")
            }
            Corrections { discrepancy: Some(share), .. } if !(share > 0.0 && share < 1.0) => {
                refuse("discrepancy", share, "a share is above 0 and below 1")
            }
            Corrections { spike: Some(times), .. } if !(times.is_finite() && times > 0.0) => {
                refuse("spike", times, "finite and above 0")
            }
            _ => Ok(()),
        }
    }
}
