//! Scaling of rotary frequencies, as configurations write it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::op::RotaryScaling;

/// Scaling of rotary frequencies, by how many numbers there are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RopeScaling {
    /// `[factor]`: all frequencies are divided by it.
    Linear([f32; 1]),
    /// `[factor, low frequency factor, high frequency factor, original positions]`, as published with Llama 3.1.
    ByWavelength(f32, f32, f32, u32),
}

impl From<RopeScaling> for RotaryScaling {
    fn from(scaling: RopeScaling) -> RotaryScaling {
        match scaling {
            RopeScaling::Linear([factor]) => RotaryScaling::Linear { factor },
            RopeScaling::ByWavelength(factor, low, high, original_positions) => {
                RotaryScaling::ByWavelength {
                    factor,
                    low_frequency_factor: low,
                    high_frequency_factor: high,
                    original_positions,
                }
            }
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopeScaling::Linear([factor]) => write!(f, "[{factor}]"),
            RopeScaling::ByWavelength(factor, low, high, original) => {
                write!(f, "[{factor}, {low}, {high}, {original}]")
            }
        }
    }
}
