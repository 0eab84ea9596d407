//! By how much the loss is scaled, so that gradients in 16 bits do not vanish.

use serde::{Deserialize, Serialize};

use crate::{Number, Plan, PlanError, Updates};

/// The factor on the loss that gradients are computed with and divided by again before they are used
/// (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2): in fp16 numbers below 6e-8 are zero. A step whose
/// gradients are not all finite is left out on all ranks alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LossScale {
    /// The same all the time.
    Constant {
        /// The factor.
        scale: f64,
    },
    /// Halved after a step whose gradients were not finite, but not below 1, and doubled after so many steps in a
    /// row whose gradients were, as PyTorch's `GradScaler` does it.
    Dynamic {
        /// The factor in the first step.
        #[serde(default = "usual_initial")]
        initial: f64,
        /// After how many steps in a row it is doubled.
        #[serde(default = "usual_growth_interval")]
        growth_interval: u64,
    },
}

fn usual_initial() -> f64 {
    65_536.0
}

fn usual_growth_interval() -> u64 {
    2_000
}

/// The usual constant factor: well above 1, for gradients that fp16 would lose, and far below what makes those of
/// common losses overflow.
const USUAL_CONSTANT: f64 = 1024.0;

impl LossScale {
    /// PyTorch's: 65,536 at first, doubled after 2,000 steps.
    pub fn dynamic() -> LossScale {
        LossScale::Dynamic { initial: usual_initial(), growth_interval: usual_growth_interval() }
    }

    /// The factor in the first step.
    pub fn initial(self) -> f64 {
        match self {
            LossScale::Constant { scale } => scale,
            LossScale::Dynamic { initial, .. } => initial,
        }
    }

    /// What is usual for `plan` where it computes in fp16: the dynamic one, or a constant 1,024 where steps overlap so
    /// that the factor has to stay. None where neither goes with the rest, as where there is no norm of all gradients
    /// that could tell whether they are finite: such a plan is better in another format.
    pub fn usual(plan: &Plan) -> Option<LossScale> {
        let norm = plan.sync.averaging.is_none()
            && plan.sync.servers.is_none()
            && plan.updates == Updates::Step;
        if plan.precision.compute != Number::Fp16 || !norm {
            return None;
        }
        let usual = [LossScale::dynamic(), LossScale::Constant { scale: USUAL_CONSTANT }];
        usual.into_iter().find(|scale| scale.validate(plan).is_ok())
    }

    /// Checks that it goes with the rest of `plan`.
    pub(crate) fn validate(self, plan: &Plan) -> Result<(), PlanError> {
        let (key, first) = match self {
            LossScale::Constant { scale } => ("loss_scale.scale", scale),
            LossScale::Dynamic { initial, .. } => ("loss_scale.initial", initial),
        };
        // A gradient divided by more would be no ordinary fp32 number any more.
        if !(1.0..=MOST).contains(&first) {
            return Err(PlanError::field(key, first, "1 to 2^100"));
        }
        if plan.syncs().any(|sync| sync.compression.keeps_residual()) {
            let rule = "what compression leaves out is added to later gradients, which may have another scale: no \
                        compression with a residual";
            return Err(PlanError::field(key, first, rule));
        }
        let LossScale::Dynamic { growth_interval, .. } = self else { return Ok(()) };
        if growth_interval == 0 {
            let rule = "a number of steps, 1 or more";
            return Err(PlanError::field("loss_scale.growth_interval", growth_interval, rule));
        }
        let overlap = match (plan.flushes(), plan.post_validation) {
            (true, false) => return Ok(()),
            (true, true) => {
                "with post_validation a step begins before it is known whether the one before has \
                             overflowed: \"constant\", or no post_validation"
            }
            (false, _) => {
                "without a flush gradients of steps with another scale are still under way: \
                           \"constant\", or a schedule with a flush"
            }
        };
        Err(PlanError::field("loss_scale.rule", "dynamic", overlap))
    }

    /// The factor after a step that had `scale`, of which so many before in a row had finite gradients, and how many
    /// have then.
    pub fn after(self, scale: f64, finite: u64, is_finite: bool) -> (f64, u64) {
        match self {
            LossScale::Constant { .. } => (scale, 0),
            LossScale::Dynamic { .. } if !is_finite => ((scale / 2.0).max(1.0), 0),
            LossScale::Dynamic { growth_interval, .. } if finite + 1 < growth_interval => {
                (scale, finite + 1)
            }
            LossScale::Dynamic { .. } => ((scale * 2.0).min(MOST), 0),
        }
    }
}

/// The largest factor.
const MOST: f64 = (1_u128 << 100) as f64;
