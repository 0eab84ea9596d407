//! A row of measurements, whatever its schema.

use crate::{Case, Refusal};

/// What one measurement is of, and what was measured. A line of a file may hold several.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Line of the file, counted from 1.
    pub line: u64,
    /// Who published it.
    pub source: String,
    /// The devices, as the source calls them.
    pub hardware: String,
    /// The model, as the source calls it.
    pub model: String,
    /// What was measured.
    pub measured: Measured,
    /// What is to be predicted, or why nothing is.
    pub case: Result<Case, Refusal>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Time of a step.
    pub step_seconds: Option<f64>,
    /// Most memory that a device held.
    pub peak_bytes: Option<f64>,
    /// Whether there was no step, as it crashed or ran out of memory.
    pub crashed: bool,
    /// What it may be compared for.
    pub uses: Uses,
}

/// What a measurement may be compared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// The error of the predicted time.
    pub error: bool,
    /// The choice of the fastest plan of a group.
    pub regret: bool,
    /// Peak memory, and whether it fits.
    pub memory: bool,
}

impl Uses {
    /// For everything.
    pub const ALL: Uses = Uses { error: true, regret: true, memory: true };
    /// For nothing.
    pub const NONE: Uses = Uses { error: false, regret: false, memory: false };
}

impl Measured {
    /// A time of a step, good for everything.
    pub fn step(seconds: f64) -> Measured {
        Measured { step_seconds: Some(seconds), peak_bytes: None, crashed: false, uses: Uses::ALL }
    }

    /// Whether a prediction can be compared with anything of it.
    pub fn is_of_use(&self) -> bool {
        let timed = self.step_seconds.is_some() && (self.uses.error || self.uses.regret);
        let remembered = self.crashed || self.peak_bytes.is_some();
        timed || (remembered && self.uses.memory)
    }
}
