//! A step of a pipeline from the costs of its stages.

use shardloom_plan::ScheduleKind;

use super::Candidate;
use super::stage::StageCost;

/// What holds for the whole step.
pub(super) struct Ends {
    /// Between the last gradient and the first update, where all ranks wait for each other; none if they
    /// do not.
    pub norm_seconds: Option<f64>,
    /// Adding up gradients of parameters that live in several stages.
    pub homes_seconds: f64,
    /// Whether communication runs beside computation.
    pub overlaps: bool,
}

/// The seconds of a step; `sends` has the time of a message from each stage to the next.
///
/// All forwards, then all backwards: each half is a flow shop with equal jobs, whose makespan is the sum
/// over stages and `m - 1` times the slowest. One forward, one backward: likewise, with the period of
/// [`alternating_period`].
pub(super) fn step_seconds(
    candidate: &Candidate,
    stages: &[StageCost],
    sends: &[f64],
    ends: &Ends,
) -> f64 {
    let count = stages.len();
    let send = |stage: usize| if stage + 1 < count { sends[stage] } else { 0.0 };
    // Where lanes do not overlap, a sender does nothing else meanwhile.
    let (way, blocking) = if ends.overlaps { (1.0, 0.0) } else { (0.0, 1.0) };
    let passes = |stage: usize| {
        let cost = &stages[stage];
        let forward = cost.forward_seconds + blocking * send(stage);
        let before = if stage > 0 { send(stage - 1) } else { 0.0 };
        let mut backward = cost.backward_seconds + blocking * before;
        if candidate.zero == 2 && ends.overlaps {
            let hidden = match candidate.schedule {
                ScheduleKind::OneForwardOneBackward => forward,
                _ => 0.0,
            };
            backward = backward.max(cost.reduce_seconds - hidden);
        }
        (forward, backward)
    };
    let microbatches = f64::from(candidate.microbatches);
    let (mut path, mut slowest_forward, mut slowest_backward) = (0.0, 0.0f64, 0.0f64);
    for stage in 0..count {
        let (forward, backward) = passes(stage);
        path += forward + backward + 2.0 * way * send(stage);
        slowest_forward = slowest_forward.max(forward);
        slowest_backward = slowest_backward.max(backward);
    }
    let alternates = candidate.schedule == ScheduleKind::OneForwardOneBackward
        && candidate.microbatches as usize >= count;
    let period = match alternates {
        true => alternating_period(count, |stage| {
            let (forward, backward) = passes(stage);
            (forward + backward, way * send(stage))
        }),
        false => slowest_forward + slowest_backward,
    };
    let pipeline = path + (microbatches - 1.0) * period;
    // Later stages begin later and end earlier, which hides part of what they do around the step.
    let (mut fill, mut drain) = (0.0, 0.0);
    let (mut tail, mut lead, mut both) = (0.0f64, 0.0f64, 0.0f64);
    for (stage, cost) in stages.iter().enumerate() {
        let after = cost.tail_seconds + cost.once_seconds - drain;
        let gathered = match ends.overlaps {
            true => cost.update_seconds.max(cost.first_update_seconds + cost.lead_seconds),
            false => cost.update_seconds + cost.lead_seconds,
        };
        let before = gathered - fill;
        tail = tail.max(after);
        lead = lead.max(before);
        both = both.max(after + before);
        let (forward, backward) = passes(stage);
        fill += forward + way * send(stage);
        drain += backward + way * send(stage);
    }
    pipeline
        + ends.homes_seconds
        + match ends.norm_seconds {
            Some(norm_seconds) => tail + norm_seconds + lead,
            None => both,
        }
}

/// How often a micro-batch leaves a pipeline of one forward, one backward, where `stage` gives the time of
/// both passes and of a message to the next stage.
///
/// Between stages i and k a cycle of k - i + 1 micro-batches waits for the passes of all those stages and
/// the messages between them, both ways; the slowest cycle sets the pace. It is found by asking for the
/// cycle that is longest over a pace, taking its own pace, and asking again (Dinkelbach 1967).
fn alternating_period(count: usize, stage: impl Fn(usize) -> (f64, f64)) -> f64 {
    let mut period = (0..count).map(|index| stage(index).0).fold(0.0, f64::max);
    loop {
        let mut slowest = period;
        // The best cycle that could end at the stage: what it takes longer than its share, and its
        // length in seconds and stages.
        let (mut excess, mut seconds, mut stages) = (0.0, 0.0, 0.0);
        let mut most = 0.0;
        for index in 0..count {
            let (passes, send) = stage(index);
            let closed = excess + passes - period;
            if closed > most {
                (most, slowest) = (closed, (seconds + passes) / (stages + 1.0));
            }
            excess += passes + 2.0 * send - period;
            seconds += passes + 2.0 * send;
            stages += 1.0;
            if excess < 0.0 {
                (excess, seconds, stages) = (0.0, 0.0, 0.0);
            }
        }
        if slowest <= period * (1.0 + 1e-9) {
            return slowest;
        }
        period = slowest;
    }
}

#[cfg(test)]
mod tests {
    use super::alternating_period;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_period_is_the_slowest_of_all_cycles(
            stages in prop::collection::vec((1u32..50, 0u32..20), 1..12),
        ) {
            let stages: Vec<(f64, f64)> =
                stages.iter().map(|&(passes, send)| (passes.into(), send.into())).collect();
            let mut slowest = 0.0f64;
            for first in 0..stages.len() {
                for last in first..stages.len() {
                    let passes: f64 = stages[first..=last].iter().map(|it| it.0).sum();
                    let sends: f64 = stages[first..last].iter().map(|it| it.1).sum();
                    slowest = slowest.max((passes + 2.0 * sends) / (last - first + 1) as f64);
                }
            }
            let period = alternating_period(stages.len(), |stage| stages[stage]);
            prop_assert!((period - slowest).abs() <= 1e-6 * slowest, "{period} and {slowest}");
        }
    }
}
