//! What comes of one contender.

use serde::Serialize;
use shardloom::program::timeline::{Activity, Picos, Timeline};
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
            wait_fraction: Some(judgement.wait_fraction),
            peak_bytes: judgement.memory.iter().map(|it| it.peak_bytes).max(),
            final_loss: None,
            fit: judgement.memory.iter().map(|it| it.fit()).max(),
        }
    }
}

/// Share of the ranks' time in which they neither compute nor send nor take part in a collective.
pub fn waiting(timeline: &Timeline) -> f64 {
    let makespan = timeline.makespan().seconds();
    let ranks = timeline.tracks.len() as f64;
    if makespan == 0.0 || ranks == 0.0 {
        return 0.0;
    }
    let at_work =
        timeline.tracks.iter().map(|track| track.covered(|it| it.activity != Activity::Receive));
    1.0 - at_work.map(Picos::seconds).sum::<f64>() / (ranks * makespan)
}

#[cfg(test)]
mod tests {
    use shardloom::program::timeline::{Clock, Interval, Lane, Track};

    use super::*;

    fn timeline(tracks: &[&[(Lane, Activity, u64, u64)]]) -> Timeline {
        let interval = |&(lane, activity, start, end): &(Lane, Activity, u64, u64)| Interval {
            lane,
            activity,
            label: String::new(),
            microbatch: None,
            chunk: None,
            start: Picos(start),
            end: Picos(end),
        };
        let track = |intervals: &&[_]| Track {
            intervals: intervals.iter().map(interval).collect(),
            ..Track::default()
        };
        Timeline { clock: Clock::Wall, tracks: tracks.iter().map(track).collect() }
    }

    #[test]
    fn who_receives_or_does_nothing_waits() {
        use Activity::{Collective, Forward, Receive, Send};
        use Lane::{CommunicationIn, CommunicationOut, Compute};
        let found = waiting(&timeline(&[
            // Sends for 1 while it computes for 4, and for 1 more; then there is nothing to do for 5.
            &[(Compute, Forward, 0, 4), (CommunicationOut, Send, 3, 5)],
            // Receives for 5, of which it computes for 1; reduces for 4 and sends for 1.
            &[
                (Compute, Forward, 0, 1),
                (CommunicationIn, Receive, 0, 5),
                (CommunicationIn, Collective, 5, 9),
                (CommunicationOut, Send, 9, 10),
            ],
        ]));
        assert!((found - (5.0 + 4.0) / 20.0).abs() < 1e-12, "{found}");
        assert_eq!(waiting(&timeline(&[&[]])), 0.0);
    }
}
