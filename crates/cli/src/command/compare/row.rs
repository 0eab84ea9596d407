//! What comes of one contender.

use serde::Serialize;
use shardloom::search::Judgement;
use shardloom::sim::Fit;

use super::trained::{ToLoss, Trained};

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
    /// Where it was trained several times the mean of these.
    pub step_seconds: Option<f64>,
    /// Of each time that it was trained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub step_seconds_of_repeats: Vec<f64>,
    /// Standard deviation of these; null where there are fewer than two.
    pub step_seconds_deviation: Option<f64>,
    /// By how much a step takes longer on one device.
    pub speedup: Option<f64>,
    pub utilisation: Option<f64>,
    pub wait_fraction: Option<f64>,
    /// How often a rank waits in a step, on average over ranks.
    pub waits: Option<f64>,
    /// What all ranks together send in a step.
    pub sent_bytes: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub final_loss: Option<f64>,
    /// Steps until the loss that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_to_loss: Option<f64>,
    /// The time of these steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_to_loss: Option<f64>,
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
    /// What the simulator says, beside a step on one device.
    pub fn simulated(judgement: &Judgement, alone_seconds: Option<f64>) -> Numbers {
        Numbers {
            step_seconds: Some(judgement.step_seconds),
            speedup: alone_seconds.map(|alone| alone / judgement.step_seconds),
            utilisation: Some(1.0 - judgement.bubble_fraction),
            wait_fraction: Some(judgement.dependency_idle_fraction),
            waits: Some(judgement.waits),
            sent_bytes: Some(judgement.sent_bytes),
            peak_bytes: judgement.memory.iter().map(|it| it.peak_bytes).max(),
            fit: judgement.memory.iter().map(|it| it.fit()).max(),
            ..Numbers::default()
        }
    }

    /// What came of training it some times, beside the mean time of a step of one rank.
    pub fn trained(repeats: &[Trained], alone_seconds: Option<f64>) -> Numbers {
        let mean = |what: fn(&Trained) -> f64| mean(repeats.iter().map(what));
        let seconds: Vec<f64> = repeats.iter().map(|it| it.step_seconds).collect();
        let step_seconds = mean(|it| it.step_seconds);
        let speedup = alone_seconds.zip(step_seconds).map(|(alone, step)| alone / step);
        let to_loss: Option<Vec<ToLoss>> = repeats.iter().map(|it| it.to_loss).collect();
        let to_loss = to_loss.unwrap_or_default();
        Numbers {
            step_seconds,
            step_seconds_deviation: deviation(&seconds),
            step_seconds_of_repeats: seconds,
            speedup,
            utilisation: mean(|it| it.utilisation),
            wait_fraction: mean(|it| it.wait_fraction),
            waits: mean(|it| it.waits),
            sent_bytes: mean(|it| it.sent_bytes as f64).map(|it| it.round() as u64),
            peak_bytes: repeats.iter().map(|it| it.peak_bytes).max(),
            final_loss: mean(|it| it.final_loss),
            steps_to_loss: self::mean(to_loss.iter().map(|it| it.steps as f64)),
            seconds_to_loss: self::mean(to_loss.iter().map(|it| it.seconds)),
            fit: None,
        }
    }
}

/// The mean; none of nothing.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}

/// The standard deviation of a sample (divided by one less than their number); none of fewer than two.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values.iter().copied()).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::{deviation, mean};

    #[test]
    fn means_and_deviations_are_those_of_a_sample() {
        assert_eq!(mean([].into_iter()), None);
        assert_eq!(mean([1.0, 2.0, 6.0].into_iter()), Some(3.0));
        assert_eq!(deviation(&[1.0]), None);
        // Squares of 2, 1 and 3, over two.
        assert_eq!(deviation(&[1.0, 2.0, 6.0]), Some(7f64.sqrt()));
    }
}
