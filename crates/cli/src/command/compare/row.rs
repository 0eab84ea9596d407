//! What comes of one contender.

use serde::Serialize;

use shardloom::search::Judgement;
use shardloom::sim::Fit;

/// What came of a schedule or a method.
#[derive(Serialize)]
pub struct Row {
    pub method: String,
    /// The plan that a method chose, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// What else a reader of it should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(flatten)]
    pub numbers: Numbers,
    /// Why there are no numbers.
    pub reason: Option<String>,
}

/// How well it does.
#[derive(Default, Serialize)]
pub struct Numbers {
    pub step_seconds: Option<f64>,
    pub utilisation: Option<f64>,
    pub wait_fraction: Option<f64>,
    pub peak_bytes: Option<u64>,
    pub final_loss: Option<f64>,
    /// Whether it fits in memory; null where it was not simulated.
    pub fit: Option<Fit>,
}

impl Row {
    /// Of what is called so, as long as nothing more is known.
    pub fn of(method: String) -> Row {
        let numbers = Numbers::default();
        Row { method, plan: None, notes: vec![], numbers, reason: None }
    }

    /// Whether it can be trained with on these devices.
    pub fn usable(&self) -> bool {
        self.numbers.step_seconds.is_some() && self.numbers.fit != Some(Fit::Exceeds)
    }

    /// Seconds of a step; infinitely many if that is not known.
    fn seconds(&self) -> f64 {
        self.numbers.step_seconds.unwrap_or(f64::INFINITY)
    }
}

/// Fastest first; those that cannot be trained with come last.
pub fn sort(rows: &mut [Row]) {
    rows.sort_by(|one, other| {
        let by_use = other.usable().cmp(&one.usable());
        by_use.then(one.seconds().total_cmp(&other.seconds()))
    });
}

impl Numbers {
    /// What the simulator says.
    pub fn simulated(judgement: &Judgement) -> Numbers {
        Numbers {
            step_seconds: Some(judgement.step_seconds),
            utilisation: Some(1.0 - judgement.bubble_fraction),
            wait_fraction: Some(judgement.dependency_idle_fraction),
            peak_bytes: judgement.memory.iter().map(|it| it.peak_bytes).max(),
            final_loss: None,
            fit: judgement.memory.iter().map(|it| it.fit()).max(),
        }
    }
}
