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
        /// How many samples' mean gradient the momentum and the learning rate were chosen for; they are
        /// scaled to the samples that an update has ([`Optimizer::for_batch`]). Without, they are taken
        /// as they are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference_batch: Option<usize>,
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

/// How large a tensor is that an optimizer keeps of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// One number for each element that is updated.
    PerElement,
    /// So many numbers for the whole parameter, whatever part of it is updated.
    PerParameter(usize),
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

impl Optimizer {
    /// Stochastic gradient descent with momentum and nothing else.
    pub const fn sgd(momentum: f64) -> Optimizer {
        Optimizer::Sgd { momentum, weight_decay: 0.0, reference_batch: None }
    }

    /// The name of its kind in plans.
    pub const fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Adamw { .. } => "adamw",
            Optimizer::Lamb { .. } => "lamb",
            Optimizer::Adafactor { .. } => "adafactor",
        }
    }

    /// The optimizer of updates with the mean gradient of `samples` samples, and what the learning rate
    /// is multiplied by for them.
    ///
    /// Where momentum m and learning rate belong to a reference batch of R samples, they become
    /// m' = m^(samples / R) and (1 - m') samples / ((1 - m) R) times the rate (Kosson et al. 2021, MLSys,
    /// arXiv 2003.11666), with momenta as they are in 32 bits: after any number of samples the same share
    /// of a velocity is left, and a sample's gradient moves the weights in all as far as it did. Other
    /// optimizers stay as they are.
    pub fn for_batch(&self, samples: usize) -> (Optimizer, f64) {
        let Optimizer::Sgd { momentum, weight_decay, reference_batch: Some(reference) } = *self
        else {
            return (*self, 1.0);
        };
        let batches = samples as f64 / reference as f64;
        let lost = |momentum: f64| 1.0 - f64::from(momentum as f32);
        let scaled = momentum.powf(batches);
        let share = lost(scaled) * batches / lost(momentum);
        (Optimizer::Sgd { momentum: scaled, weight_decay, reference_batch: None }, share)
    }

    /// The tensors that it keeps of a parameter with so many rows and columns, in order; all in fp32.
    pub fn keeps(&self, rows: usize, columns: usize) -> Vec<Kept> {
        match *self {
            Optimizer::Sgd { momentum: 0.0, .. } => vec![],
            Optimizer::Sgd { .. } => vec![Kept::PerElement],
            Optimizer::Adamw { .. } | Optimizer::Lamb { .. } => vec![Kept::PerElement; 2],
            Optimizer::Adafactor { .. } if rows == 1 || columns == 1 => vec![Kept::PerElement],
            Optimizer::Adafactor { .. } => vec![Kept::PerParameter(rows + columns)],
        }
    }

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

    /// Whether state that a checkpoint lacks may begin at zero: momentum, of which a plan without it keeps
    /// none.
    pub fn begins_without_state(&self) -> bool {
        matches!(self, Optimizer::Sgd { .. })
    }

    /// Whether it adds up over rows and over columns of a matrix. Of such a parameter only the first axis
    /// of its rows and the first of its columns may be split, so that a part is a run of whole rows and
    /// of whole columns.
    pub fn factors_matrices(&self) -> bool {
        matches!(self, Optimizer::Adafactor { .. })
    }

    /// Whether what becomes of an element depends on no other, so that a parameter may be updated in parts without a
    /// word between their owners.
    pub fn updates_by_element(&self) -> bool {
        self.statistics_rounds() == 0
    }

    /// Whether an update changes anything of an element whose gradient is zero.
    pub fn changes_without_gradient(&self) -> bool {
        !matches!(self, Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0, .. })
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
            Optimizer::Sgd { momentum, weight_decay, reference_batch } => {
                share("momentum", momentum)?;
                if reference_batch == Some(0) {
                    return Err(PlanError::field("optimizer.reference_batch", 0, "at least 1"));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adafactor_factors_matrices_and_keeps_vectors_either_way_element_by_element() {
        let adafactor = Optimizer::Adafactor {
            decay_exponent: 0.8,
            clip: 1.0,
            least_parameter_rms: 1e-3,
            weight_decay: 0.0,
        };
        for (rows, columns) in [(1, 12), (12, 1), (1, 1)] {
            assert_eq!(adafactor.factored_elements(rows, columns, 5), 5);
            let rounds = [0, 1].map(|round| adafactor.statistics_elements(rows, columns, round));
            assert_eq!(rounds, [0, 2]);
        }
        assert_eq!(adafactor.factored_elements(3, 4, 5), 7);
        assert_eq!([0, 1].map(|round| adafactor.statistics_elements(3, 4, round)), [7, 2]);
        for other in [Optimizer::default(), Optimizer::sgd(0.9)] {
            assert_eq!(other.factored_elements(3, 4, 5), 0);
        }
    }

    /// What is left of a velocity, and how far a sample's gradient of one has moved a weight, after so
    /// many samples more.
    fn after(samples: usize, batch: usize, rate: f64, momentum: f64) -> (f64, f64) {
        let (mut velocity, mut moved) = (1.0 / batch as f64, 0.0);
        for _ in 0..samples / batch {
            moved += rate * velocity;
            velocity *= momentum;
        }
        (velocity * batch as f64, moved)
    }

    #[test]
    fn a_batch_of_another_size_moves_weights_as_the_reference_batch_does() {
        let (reference, rate) = (32, 0.1);
        for (momentum, batch) in [(0.9, 1), (0.9, 8), (0.9, 32), (0.5, 128), (0.99, 256), (0.0, 4)]
        {
            let optimizer =
                Optimizer::Sgd { momentum, weight_decay: 0.25, reference_batch: Some(reference) };
            let (scaled, share) = optimizer.for_batch(batch);
            let Optimizer::Sgd { momentum: scaled, weight_decay, reference_batch } = scaled else {
                panic!("{scaled:?}");
            };
            assert_eq!((weight_decay, reference_batch), (0.25, None));
            let [momentum, scaled] = [momentum, scaled].map(|it| f64::from(it as f32));
            let near = |found: f64, expected: f64, tolerance: f64| {
                let of = format!("{momentum}, {batch}: {found} and {expected}");
                assert!((found - expected).abs() < tolerance, "{of}");
            };
            let theirs = after(1 << 10, reference, rate, momentum);
            near(after(1 << 10, batch, rate * share, scaled).0, theirs.0, 1e-5);
            let theirs = after(1 << 16, reference, rate, momentum);
            near(after(1 << 16, batch, rate * share, scaled).1, theirs.1, 1e-9);
        }
    }

    #[test]
    fn the_reference_batch_itself_changes_nothing() {
        for momentum in [0.0, 0.9, 0.9999] {
            let optimizer =
                Optimizer::Sgd { momentum, weight_decay: 0.0, reference_batch: Some(7) };
            let (scaled, share) = optimizer.for_batch(7);
            assert_eq!(scaled, Optimizer::sgd(momentum));
            assert_eq!(share, 1.0);
        }
    }

    #[test]
    fn without_a_reference_batch_nothing_is_scaled() {
        for optimizer in [Optimizer::default(), Optimizer::sgd(0.9)] {
            assert_eq!(optimizer.for_batch(1), (optimizer, 1.0));
        }
    }
}
