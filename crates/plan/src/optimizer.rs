//! The optimizer: what it keeps decides memory, how it normalises decides communication.

use serde::{Deserialize, Serialize};

use crate::PlanError;

/// An optimizer with its settings; the learning rate is a setting of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// Share of the velocity kept each step.
        momentum: f64,
        /// Decay of the weights.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101).
    Adamw {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Decay of the weights.
        weight_decay: f64,
    },
    /// Layer-wise adaptive moments (You et al. 2020, arXiv 1904.00962).
    Lamb {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// Decay of the weights.
        weight_decay: f64,
    },
    /// Factored second moments (Shazeer & Stern 2018, arXiv 1804.04235).
    Adafactor {
        /// Exponent of the second moments' decay 1 - step^-exponent.
        decay_exponent: f64,
        /// Root-mean-square above which an update is scaled down.
        clip: f64,
        /// Least root-mean-square of a parameter that its relative step counts with.
        least_parameter_rms: f64,
        /// Decay of the weights.
        weight_decay: f64,
    },
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

impl Optimizer {
    /// Bytes of state for each parameter, without a master copy. Adafactor's row and column vectors are
    /// not proportional to the parameters and are counted where shapes are known.
    pub fn state_bytes_per_parameter(&self) -> usize {
        match *self {
            Optimizer::Sgd { momentum: 0.0, .. } => 0,
            Optimizer::Sgd { .. } => 4,
            Optimizer::Adamw { .. } | Optimizer::Lamb { .. } => 8,
            Optimizer::Adafactor { .. } => 0,
        }
    }

    /// State elements that are not one per parameter, where `owned` elements of a parameter seen as a
    /// `rows x columns` matrix are updated: Adafactor's row and column sums, or second moments of a
    /// vector.
    pub fn factored_elements(&self, rows: usize, columns: usize, owned: usize) -> usize {
        match self {
            Optimizer::Adafactor { .. } if rows == 1 || columns == 1 => owned,
            Optimizer::Adafactor { .. } => rows + columns,
            _ => 0,
        }
    }

    /// Rounds of statistics over whole parameters that owners of parts must add up before an update:
    /// LAMB's norms; Adafactor's row and column sums, then its update's root mean square.
    pub fn statistics_rounds(&self) -> usize {
        match self {
            Optimizer::Sgd { .. } | Optimizer::Adamw { .. } => 0,
            Optimizer::Lamb { .. } => 1,
            Optimizer::Adafactor { .. } => 2,
        }
    }

    /// Elements of the statistics of one round for a parameter seen as a `rows x columns` matrix.
    pub fn statistics_elements(&self, rows: usize, columns: usize, round: usize) -> usize {
        match self {
            Optimizer::Sgd { .. } | Optimizer::Adamw { .. } => 0,
            Optimizer::Lamb { .. } => 2,
            Optimizer::Adafactor { .. } => match round {
                0 if rows == 1 || columns == 1 => 0,
                0 => rows + columns,
                _ => 2,
            },
        }
    }

    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        let share = |key: &str, value: f64| {
            let rule = "at least 0 and below 1";
            (0.0..1.0)
                .contains(&value)
                .then_some(())
                .ok_or_else(|| PlanError::field(format!("optimizer.{key}"), value, rule))
        };
        let positive = |key: &str, value: f64, zero: bool| {
            let rule = if zero { "finite and at least 0" } else { "finite and above 0" };
            (value.is_finite() && (value > 0.0 || (zero && value == 0.0)))
                .then_some(())
                .ok_or_else(|| PlanError::field(format!("optimizer.{key}"), value, rule))
        };
        match *self {
            Optimizer::Sgd { momentum, weight_decay } => {
                share("momentum", momentum)?;
                positive("weight_decay", weight_decay, true)
            }
            Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }
            | Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                positive("epsilon", epsilon, false)?;
                positive("weight_decay", weight_decay, true)
            }
            Optimizer::Adafactor { decay_exponent, clip, least_parameter_rms, weight_decay } => {
                positive("decay_exponent", decay_exponent, false)?;
                positive("clip", clip, false)?;
                positive("least_parameter_rms", least_parameter_rms, false)?;
                positive("weight_decay", weight_decay, true)
            }
        }
    }
}
