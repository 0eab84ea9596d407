//! What comes of training once.

use shardloom::program::timeline::Timeline;

/// What came of it.
pub struct Trained {
    /// The median of all steps.
    pub step_seconds: f64,
    /// Share of the ranks' time in which they compute, of the steps that were recorded.
    pub utilisation: f64,
    /// Share of it in which they wait.
    pub wait_fraction: f64,
    /// How often a rank waits in a step, on average over ranks.
    pub waits: f64,
    /// What all ranks together sent in a step, on average over steps.
    pub sent_bytes: u64,
    pub peak_bytes: u64,
    pub final_loss: f64,
    /// How long the loss that was asked for took, if one was and it was reached.
    pub to_loss: Option<ToLoss>,
}

/// How long a loss took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToLoss {
    pub steps: u64,
    pub seconds: f64,
}

/// Steps over which losses are averaged before they are held against the loss that is asked for.
pub const SMOOTHED_OVER: usize = 10;

impl ToLoss {
    /// When the mean loss of [`SMOOTHED_OVER`] steps, or of all if there are fewer, was `loss` or less for the
    /// first time, of steps in order with their losses and times.
    pub fn of(steps: &[(f64, f64)], loss: f64) -> Option<ToLoss> {
        let reached = (1..=steps.len()).find(|&end| {
            let last = &steps[end.saturating_sub(SMOOTHED_OVER)..end];
            last.iter().map(|(loss, _)| loss).sum::<f64>() / last.len() as f64 <= loss
        })?;
        let seconds = steps[..reached].iter().map(|(_, seconds)| seconds).sum();
        Some(ToLoss { steps: reached as u64, seconds })
    }
}

/// How often ranks neither compute nor communicate, on average over them.
pub fn waits(timeline: &Timeline) -> f64 {
    let waits = timeline.tracks.iter().map(|track| track.waits_in(timeline.span(), |_| true));
    waits.sum::<usize>() as f64 / timeline.tracks.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use shardloom::program::timeline::{Activity, Clock, Interval, Lane, Picos, Track};

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
    fn waits_are_counted_between_work() {
        use Activity::{Forward, Receive};
        use Lane::{CommunicationIn, Compute};
        let micros = |it: u64| it * Picos::SHORTEST_WAIT.0;
        let first = [(Compute, Forward, 0, micros(4)), (Compute, Forward, micros(8), micros(10))];
        let second = [
            (CommunicationIn, Receive, 0, micros(4)),
            (Compute, Forward, micros(4), micros(6)),
            (CommunicationIn, Receive, micros(6), micros(8)),
            (Compute, Forward, micros(8), micros(9)),
        ];
        // One between its passes, and one after those of the other.
        assert_eq!(waits(&timeline(&[&first, &second])), 1.0);
        assert_eq!(waits(&timeline(&[])), 0.0);
    }

    #[test]
    fn a_loss_is_reached_once_the_mean_of_the_last_steps_is_as_low() {
        let steps: Vec<(f64, f64)> = (0..20).map(|step| (20.0 - f64::from(step), 0.5)).collect();
        // Of losses 20 to 17 the mean is 18.5.
        assert_eq!(ToLoss::of(&steps, 18.5), Some(ToLoss { steps: 4, seconds: 2.0 }));
        // Of ten steps the mean is 4.5 above the last.
        assert_eq!(ToLoss::of(&steps, 10.0), Some(ToLoss { steps: 16, seconds: 8.0 }));
        assert_eq!(ToLoss::of(&steps, 1.0), None);
        assert_eq!(ToLoss::of(&[], 1.0), None);
    }
}
