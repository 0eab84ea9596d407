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
/// over stages and `m - 1` times the slowest. One forward, one backward: likewise, with a period that is
/// at least the slowest stage's, and long enough that the micro-batches in flight can go from a stage to
/// the end and back.
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
            backward = backward.max(cost.reduce_seconds - forward);
        }
        (forward, backward)
    };
    let microbatches = f64::from(candidate.microbatches);
    let (mut path, mut slowest) = (0.0, 0.0f64);
    let (mut slowest_forward, mut slowest_backward, mut period) = (0.0f64, 0.0f64, 0.0f64);
    for stage in (0..count).rev() {
        let (forward, backward) = passes(stage);
        path += forward + backward + 2.0 * way * send(stage);
        slowest = slowest.max(forward + backward);
        slowest_forward = slowest_forward.max(forward);
        slowest_backward = slowest_backward.max(backward);
        period = period.max(path / (count - stage) as f64);
    }
    let alternates = candidate.schedule == ScheduleKind::OneForwardOneBackward
        && candidate.microbatches as usize >= count;
    let period = match alternates {
        true => slowest.max(period),
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
