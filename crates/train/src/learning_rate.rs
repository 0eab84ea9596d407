//! The learning rate of every optimizer step.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A curve of learning rates over optimizer steps, as written in TOML:
///
/// ```
/// use shardloom_train::learning_rate::LearningRate;
///
/// let rate: LearningRate = toml::from_str(
///     r#"
///     kind = "cosine"
///     peak = 3e-4
///     warmup-steps = 100
///     total-steps = 1000
///     floor = 3e-5
///     "#,
/// )?;
/// assert_eq!(rate.at(99), 3e-4);
/// # Ok::<(), toml::de::Error>(())
/// ```
///
/// Steps count from 0. Where there is a warmup, step `s` of it has the rate
/// `peak * (s + 1) / warmup_steps`, so that the first step already learns and
/// the last one of the warmup has the peak. Decays run from the peak at step
/// `warmup_steps` to the floor at step `total_steps`, and stay there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[serde(deny_unknown_fields)]
pub enum Curve {
    /// The same rate at every step.
    Constant {
        /// The rate.
        peak: f64,
    },
    /// Linear warmup, then the peak for ever.
    Warmup {
        /// The highest rate.
        peak: f64,
        /// Steps until the peak; 0 for none.
        warmup_steps: u64,
    },
    /// Linear warmup, then half a cosine down to the floor (Loshchilov and
    /// Hutter, SGDR, 2017, equation 5, without restarts).
    Cosine {
        /// The highest rate.
        peak: f64,
        /// Steps until the peak; 0 for none.
        warmup_steps: u64,
        /// The step from which the rate is the floor.
        total_steps: u64,
        /// The lowest rate after the warmup.
        floor: f64,
    },
    /// Linear warmup, then a straight line down to the floor.
    Linear {
        /// The highest rate.
        peak: f64,
        /// Steps until the peak; 0 for none.
        warmup_steps: u64,
        /// The step from which the rate is the floor.
        total_steps: u64,
        /// The lowest rate after the warmup.
        floor: f64,
    },
    /// Linear warmup, then a decay with the inverse square root of the step
    /// number (Vaswani et al., Attention Is All You Need, 2017, equation 3,
    /// where `peak` is `(d_model * warmup_steps)^-0.5`).
    InverseSquareRoot {
        /// The highest rate, reached at the end of the warmup.
        peak: f64,
        /// Steps until the peak, at least 1.
        warmup_steps: u64,
    },
}

/// A [`Curve`] that was found to make sense.
///
/// Reading one with serde validates it too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Curve", into = "Curve")]
pub struct LearningRate(Curve);

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peak, warmup) = match *self {
            Curve::Constant { peak } => (peak, 0),
            Curve::Warmup { peak, warmup_steps }
            | Curve::Cosine { peak, warmup_steps, .. }
            | Curve::Linear { peak, warmup_steps, .. }
            | Curve::InverseSquareRoot { peak, warmup_steps } => (peak, warmup_steps),
        };
        write!(f, "{peak}")?;
        if warmup > 0 {
            write!(f, " after {warmup} steps of warmup")?;
        }
        match *self {
            Curve::Constant { .. } | Curve::Warmup { .. } => Ok(()),
            Curve::Cosine { total_steps, floor, .. } => {
                write!(f, ", by half a cosine to {floor} in step {total_steps}")
            }
            Curve::Linear { total_steps, floor, .. } => {
                write!(f, ", in a straight line to {floor} in step {total_steps}")
            }
            Curve::InverseSquareRoot { .. } => {
                write!(f, ", then with the inverse square root of the step")
            }
        }
    }
}

impl LearningRate {
    /// Validates a curve.
    ///
    /// # Errors
    ///
    /// [`Error::LearningRate`] if a rate is negative or not finite, the floor
    /// is above the peak, the warmup is longer than the whole, or an inverse
    /// square root has no warmup.
    pub fn new(curve: Curve) -> Result<Self> {
        match curve {
            Curve::Constant { peak } | Curve::Warmup { peak, .. } => check_rate("peak", peak)?,
            Curve::Cosine { peak, warmup_steps, total_steps, floor }
            | Curve::Linear { peak, warmup_steps, total_steps, floor } => {
                check_rate("peak", peak)?;
                check_rate("floor", floor)?;
                if floor > peak {
                    return Err(invalid(format!(
                        "floor is {floor}, but must not exceed the peak {peak}"
                    )));
                }
                if warmup_steps > total_steps {
                    return Err(invalid(format!(
                        "warmup-steps is {warmup_steps}, but must not exceed the {total_steps} \
                         total-steps"
                    )));
                }
            }
            Curve::InverseSquareRoot { peak, warmup_steps } => {
                check_rate("peak", peak)?;
                if warmup_steps == 0 {
                    return Err(invalid(
                        "warmup-steps is 0, but an inverse square root needs at least 1".to_owned(),
                    ));
                }
            }
        }
        Ok(Self(curve))
    }

    /// The curve.
    #[must_use]
    pub fn curve(&self) -> &Curve {
        &self.0
    }

    /// The rate of optimizer step `step`, counted from 0.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        match self.0 {
            Curve::Constant { peak } => peak,
            Curve::Warmup { peak, warmup_steps } => {
                warmup(peak, warmup_steps, step).unwrap_or(peak)
            }
            Curve::Cosine { peak, warmup_steps, total_steps, floor } => {
                warmup(peak, warmup_steps, step).unwrap_or_else(|| {
                    let done = progress(step, warmup_steps, total_steps);
                    floor + (peak - floor) * 0.5 * (1.0 + (PI * done).cos())
                })
            }
            Curve::Linear { peak, warmup_steps, total_steps, floor } => {
                warmup(peak, warmup_steps, step).unwrap_or_else(|| {
                    floor + (peak - floor) * (1.0 - progress(step, warmup_steps, total_steps))
                })
            }
            Curve::InverseSquareRoot { peak, warmup_steps } => warmup(peak, warmup_steps, step)
                .unwrap_or_else(|| peak * (warmup_steps as f64 / (step as f64 + 1.0)).sqrt()),
        }
    }
}

impl TryFrom<Curve> for LearningRate {
    type Error = Error;

    fn try_from(curve: Curve) -> Result<Self> {
        Self::new(curve)
    }
}

impl From<LearningRate> for Curve {
    fn from(rate: LearningRate) -> Self {
        rate.0
    }
}

/// The rate during the warmup, nothing after it.
fn warmup(peak: f64, warmup_steps: u64, step: u64) -> Option<f64> {
    (step < warmup_steps).then(|| peak * ((step + 1) as f64 / warmup_steps as f64))
}

/// How far the decay is at `step`, from 0 to 1.
fn progress(step: u64, warmup_steps: u64, total_steps: u64) -> f64 {
    if step >= total_steps {
        return 1.0;
    }
    (step - warmup_steps) as f64 / (total_steps - warmup_steps) as f64
}

fn check_rate(field: &str, rate: f64) -> Result<()> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    Err(invalid(format!("{field} is {rate}, but must be finite and not negative")))
}

fn invalid(reason: String) -> Error {
    Error::LearningRate { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(curve: Curve, steps: impl IntoIterator<Item = u64>) -> Vec<f64> {
        let rate = LearningRate::new(curve).expect("valid");
        steps.into_iter().map(|step| rate.at(step)).collect()
    }

    fn refusal(curve: Curve) -> String {
        LearningRate::new(curve).expect_err("invalid").to_string()
    }

    #[test]
    fn curves_are_said_in_words() {
        let (peak, warmup_steps, total_steps, floor) = (0.5, 10, 100, 0.25);
        for (curve, said) in [
            (Curve::Constant { peak }, "0.5"),
            (Curve::Warmup { peak, warmup_steps }, "0.5 after 10 steps of warmup"),
            (
                Curve::Cosine { peak, warmup_steps, total_steps, floor },
                "0.5 after 10 steps of warmup, by half a cosine to 0.25 in step 100",
            ),
            (
                Curve::Linear { peak, warmup_steps: 0, total_steps, floor },
                "0.5, in a straight line to 0.25 in step 100",
            ),
            (
                Curve::InverseSquareRoot { peak, warmup_steps },
                "0.5 after 10 steps of warmup, then with the inverse square root of the step",
            ),
        ] {
            assert_eq!(curve.to_string(), said);
        }
    }

    #[test]
    fn constant_never_changes() {
        assert_eq!(rates(Curve::Constant { peak: 0.5 }, [0, 1, u64::MAX]), [0.5; 3]);
    }

    #[test]
    fn warmup_rises_by_equal_steps_to_the_peak_and_stays() {
        let curve = Curve::Warmup { peak: 1.0, warmup_steps: 4 };
        assert_eq!(rates(curve, 0..6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn no_warmup_starts_at_the_peak() {
        let curve = Curve::Linear { peak: 1.0, warmup_steps: 0, total_steps: 4, floor: 0.0 };
        assert_eq!(rates(curve, 0..6), [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn linear_falls_by_equal_steps_to_the_floor() {
        let curve = Curve::Linear { peak: 1.0, warmup_steps: 2, total_steps: 6, floor: 0.5 };
        assert_eq!(rates(curve, 0..8), [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]);
    }

    #[test]
    fn cosine_has_its_peak_middle_and_floor_where_they_belong() {
        let curve = Curve::Cosine { peak: 1.0, warmup_steps: 2, total_steps: 10, floor: 0.2 };
        let found = rates(curve, [0, 2, 4, 6, 8, 10, 11]);
        let quarter = 0.5_f64.sqrt();
        let wanted = [0.5, 1.0, 0.6 + 0.4 * quarter, 0.6, 0.6 - 0.4 * quarter, 0.2, 0.2];
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-15, "{found} is not {wanted}");
        }
    }

    #[test]
    fn inverse_square_root_halves_when_the_steps_quadruple() {
        let curve = Curve::InverseSquareRoot { peak: 1.0, warmup_steps: 4 };
        assert_eq!(rates(curve, [0, 1, 3, 15, 63]), [0.25, 0.5, 1.0, 0.5, 0.25]);
    }

    #[test]
    fn inverse_square_root_is_the_transformer_papers_formula() {
        let (model, warmup_steps) = (512.0_f64, 4000_u64);
        let peak = (model * warmup_steps as f64).powf(-0.5);
        let rate =
            LearningRate::new(Curve::InverseSquareRoot { peak, warmup_steps }).expect("valid");
        for step in [1_u64, 100, 3999, 4000, 4001, 100_000] {
            let number = step as f64;
            let paper =
                model.powf(-0.5) * number.powf(-0.5).min(number * (warmup_steps as f64).powf(-1.5));
            assert!((rate.at(step - 1) / paper - 1.0).abs() < 1e-12, "step {step}");
        }
    }

    #[test]
    fn a_warmup_of_the_whole_run_drops_to_the_floor_after_it() {
        let curve = Curve::Cosine { peak: 1.0, warmup_steps: 2, total_steps: 2, floor: 0.125 };
        assert_eq!(rates(curve, 0..4), [0.5, 1.0, 0.125, 0.125]);
    }

    #[test]
    fn nonsense_is_refused_with_the_setting_and_its_value() {
        assert_eq!(
            refusal(Curve::Constant { peak: -1.0 }),
            "learning rate: peak is -1, but must be finite and not negative"
        );
        assert_eq!(
            refusal(Curve::Warmup { peak: f64::NAN, warmup_steps: 1 }),
            "learning rate: peak is NaN, but must be finite and not negative"
        );
        assert_eq!(
            refusal(Curve::Linear { peak: 0.1, warmup_steps: 0, total_steps: 9, floor: 0.2 }),
            "learning rate: floor is 0.2, but must not exceed the peak 0.1"
        );
        assert_eq!(
            refusal(Curve::Cosine { peak: 0.1, warmup_steps: 0, total_steps: 9, floor: -0.1 }),
            "learning rate: floor is -0.1, but must be finite and not negative"
        );
        assert_eq!(
            refusal(Curve::Cosine { peak: 0.1, warmup_steps: 10, total_steps: 9, floor: 0.0 }),
            "learning rate: warmup-steps is 10, but must not exceed the 9 total-steps"
        );
        assert_eq!(
            refusal(Curve::InverseSquareRoot { peak: 0.1, warmup_steps: 0 }),
            "learning rate: warmup-steps is 0, but an inverse square root needs at least 1"
        );
    }

    /// Curves of all kinds with this peak, and this floor where they have one.
    fn kinds(peak: f64, floor: f64) -> [Curve; 5] {
        let (warmup_steps, total_steps) = (3, 9);
        [
            Curve::Constant { peak },
            Curve::Warmup { peak, warmup_steps },
            Curve::Cosine { peak, warmup_steps, total_steps, floor },
            Curve::Linear { peak, warmup_steps, total_steps, floor },
            Curve::InverseSquareRoot { peak, warmup_steps },
        ]
    }

    #[test]
    fn every_kind_takes_rates_from_zero_on_that_are_finite_and_refuses_others() {
        let no_rates = [-f64::MIN_POSITIVE, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for rate in [0.0, -0.0, f64::MIN_POSITIVE, 1.0, f64::MAX] {
            for curve in kinds(rate, 0.0).into_iter().chain(kinds(rate, rate)) {
                assert_eq!(rates(curve, [0, 4, 20]).len(), 3, "{curve:?}");
            }
        }
        for no_rate in no_rates {
            for curve in kinds(no_rate, 0.0) {
                let refused = refusal(curve);
                let begin = format!("learning rate: peak is {no_rate}, ");
                assert!(refused.starts_with(&begin), "{curve:?}: {refused}");
            }
            let with_floor = kinds(1.0, no_rate).into_iter().skip(2).take(2);
            for curve in with_floor {
                let refused = refusal(curve);
                let begin = format!("learning rate: floor is {no_rate}, ");
                assert!(refused.starts_with(&begin), "{curve:?}: {refused}");
            }
        }
    }

    #[test]
    fn floors_up_to_the_peak_and_warmups_up_to_the_whole_are_taken_and_no_more() {
        for (peak, floor, is_taken) in [(0.5, 0.5, true), (0.5, 0.50001, false), (0.0, 0.0, true)] {
            for curve in kinds(peak, floor).into_iter().skip(2).take(2) {
                assert_eq!(LearningRate::new(curve).is_ok(), is_taken, "{curve:?}");
            }
        }
        let (peak, floor) = (0.5, 0.25);
        for (warmup_steps, total_steps, is_taken) in
            [(0, 0, true), (5, 5, true), (6, 5, false), (0, 1, true), (1, 0, false)]
        {
            for curve in [
                Curve::Cosine { peak, warmup_steps, total_steps, floor },
                Curve::Linear { peak, warmup_steps, total_steps, floor },
            ] {
                assert_eq!(LearningRate::new(curve).is_ok(), is_taken, "{curve:?}");
            }
        }
        for warmup_steps in [0, 1, u64::MAX] {
            let taken = LearningRate::new(Curve::InverseSquareRoot { peak, warmup_steps });
            assert_eq!(taken.is_ok(), warmup_steps > 0, "{warmup_steps}");
            assert!(LearningRate::new(Curve::Warmup { peak, warmup_steps }).is_ok());
        }
    }

    #[test]
    fn toml_round_trips_and_is_validated() {
        let rate = LearningRate::new(Curve::InverseSquareRoot { peak: 0.5, warmup_steps: 7 })
            .expect("valid");
        let text = toml::to_string(&rate).expect("serializes");
        assert_eq!(text, "kind = \"inverse-square-root\"\npeak = 0.5\nwarmup-steps = 7\n");
        assert_eq!(toml::from_str::<LearningRate>(&text).expect("parses"), rate);

        let negative = toml::from_str::<LearningRate>("kind = \"constant\"\npeak = -2.0");
        assert!(negative.expect_err("negative").to_string().contains("peak is -2"));
        let misspelt = "kind = \"warmup\"\npeak = 1.0\nwarmup-steps = 1\nflor = 0.0";
        let unknown = toml::from_str::<LearningRate>(misspelt);
        assert!(unknown.expect_err("unknown key").to_string().contains("flor"));
    }
}
