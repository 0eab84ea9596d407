//! The orders of schedules, made once for candidates that differ in times only, and steps of many
//! micro-batches from steps of fewer.

use std::collections::BTreeMap;

use shardloom_plan::{PassTimes, ScheduleKind};
use shardloom_schedule::Succession;

use super::Candidate;
use super::pipeline::{Instance, Step};
use super::sequence::Sequence;

/// To what share of a forward pass the times are rounded that orders are made for: candidates with about
/// the same times share them. Greedy orders change with the least difference.
pub(super) fn precision(schedule: ScheduleKind) -> f64 {
    if schedule == ScheduleKind::Hanayo { 0.001 } else { 0.05 }
}

/// Orders are of so many rounds of micro-batches at most.
const ROUNDS: u32 = 4;

/// Steps of so many passes forward at most are run whole.
const FEW: u32 = 512;

/// The most passes forward of a step whose order is made for times. Finding such an order takes several
/// times as long as all else about a candidate, and grows faster than passes.
const MOST_TIMED: u32 = 6144;

/// A schedule, meshes, stages on each, micro-batches, what waits for what, and times that it is made for.
type Key = (ScheduleKind, u32, u32, u32, bool, [u64; 4]);

/// Orders made so far.
#[derive(Debug, Default)]
pub(super) struct Orders {
    known: BTreeMap<Key, Option<Sequence>>,
    /// How many steps were not run because making their orders takes too long.
    pub left_out: usize,
}

impl Orders {
    /// What `run` finds for the order of `candidate`, made for passes of the given `times`; none if there is
    /// no such order.
    ///
    /// Of many micro-batches only a few rounds are run: once the pipeline is full, each further round takes
    /// about as much more as the one before.
    pub fn step(
        &mut self,
        candidate: &Candidate,
        times: &PassTimes,
        succession: Succession,
        places: impl Fn() -> Vec<Vec<usize>>,
        run: impl Fn(&Sequence) -> Step,
    ) -> Option<Step> {
        let Candidate { microbatches, .. } = *candidate;
        let round = candidate.pp * rounds_alike(candidate.schedule);
        let known = &mut self.known;
        let mut of = |microbatches: u32| {
            let key = key(candidate, microbatches, times, succession);
            let made = known.entry(key).or_insert_with(|| {
                let count = microbatches as usize;
                Sequence::of(candidate.schedule, places(), count, times, succession)
            });
            made.as_ref().map(&run)
        };
        let passes =
            |microbatches: u32| microbatches.saturating_mul(candidate.pp * candidate.chunks);
        let whole =
            microbatches <= ROUNDS * round || passes(microbatches) <= FEW || !repeats(candidate);
        let most = match whole {
            true => microbatches,
            false => (ROUNDS - 1) * round + microbatches % round,
        };
        if candidate.schedule.is_timed() && passes(most) > MOST_TIMED {
            self.left_out += 1;
            return None;
        }
        if whole {
            return of(microbatches);
        }
        let step = of(most)?;
        // What an order made pass by pass has behind its last whole round is not what each further round adds.
        let rounds = if rounds_alike(candidate.schedule) > 1 { most - most % round } else { most };
        let (full, less) = (of(rounds)?, of(rounds - round)?);
        let more = f64::from((microbatches - most) / round);
        let further = |step: f64, round: f64| step + more * round;
        let peaks = full.peak_bytes.iter().zip(&less.peak_bytes);
        let peaks = step.peak_bytes.iter().zip(peaks.map(|(full, less)| full - less));
        let peak_bytes = match candidate.schedule {
            // Nothing is freed before all micro-batches have gone forward.
            ScheduleKind::Afab => peaks.map(|(&step, round)| further(step, round)).collect(),
            _ => step.peak_bytes.clone(),
        };
        let seconds = further(step.seconds, full.seconds - less.seconds);
        Some(Step { seconds, peak_bytes, whole: false })
    }
}

/// How many activations of stages the first mesh holds at a time at least. Those that schedules have room
/// for they use: with fewer, the first gradients would find the mesh idle. What those hold that fill gaps
/// depends on the times and was counted, with backward passes from about half of forward passes on.
pub(super) fn least_held(candidate: &Candidate) -> f64 {
    let depth = f64::from(candidate.pp);
    let microbatches = f64::from(candidate.microbatches);
    let chunks = f64::from(candidate.chunks);
    let many = microbatches >= 2.0 * depth;
    let share = match candidate.schedule {
        ScheduleKind::Afab => return microbatches * chunks,
        ScheduleKind::OneForwardOneBackward
        | ScheduleKind::Interleaved
        | ScheduleKind::ZeroBubbleH1
        | ScheduleKind::ZeroBubbleH2
        | ScheduleKind::ZeroBubbleOneP => 1.0,
        ScheduleKind::ZeroBubbleTwoP if many => 1.4,
        ScheduleKind::ZeroBubbleTwoP => 1.0,
        ScheduleKind::ZeroBubbleV | ScheduleKind::Hanayo | ScheduleKind::DualPipeV if many => 1.0,
        ScheduleKind::VMin => 0.33,
        ScheduleKind::Chimera => 0.25,
        ScheduleKind::ZeroBubbleV
        | ScheduleKind::Hanayo
        | ScheduleKind::DualPipeV
        | ScheduleKind::VHalf
        | ScheduleKind::DualPipe => 0.5,
        // These have no estimates.
        ScheduleKind::ChimeraDoubling
        | ScheduleKind::PipeDream
        | ScheduleKind::PipeMare
        | ScheduleKind::Table => 0.0,
    };
    (share * chunks * depth.min(microbatches)).floor().max(1.0)
}

/// How many times as many micro-batches as meshes make a round. Hanayo's orders are made pass by pass, and what
/// one group of micro-batches adds differs from the next.
fn rounds_alike(schedule: ScheduleKind) -> u32 {
    if schedule == ScheduleKind::Hanayo { 2 } else { 1 }
}

/// Whether its order goes on from round to round: groups of interleaved micro-batches do if they are as many
/// as meshes.
fn repeats(candidate: &Candidate) -> bool {
    candidate.schedule != ScheduleKind::Interleaved
        || candidate.microbatches.is_multiple_of(candidate.pp)
}

fn key(candidate: &Candidate, microbatches: u32, times: &PassTimes, succession: Succession) -> Key {
    let Candidate { schedule, pp, chunks, .. } = *candidate;
    let PassTimes { forward, input, weight, message, kept } = *times;
    let parts = [input, weight, message, kept].map(|it| (it / forward).to_bits());
    (schedule, pp, chunks, microbatches, succession == Succession::Common, parts)
}

/// What the passes of a micro-batch take on a mesh, and messages, in terms of its forward passes, and the
/// largest share of what these leave that waits for weight gradients. Of all meshes that with the most
/// work counts.
pub(super) fn pass_times(pipelines: &[Vec<Instance>]) -> PassTimes {
    let devices = pipelines.iter().flatten().map(|it| it.device + 1).max().unwrap_or(0);
    let mut sums = vec![[0.0f64; 3]; devices];
    let (mut message, mut kept) = (0.0f64, 0.0f64);
    for it in pipelines.iter().flatten() {
        let cost = &it.cost;
        let share = 1.0 / pipelines.len() as f64;
        let (backward, weight) = match cost.weight_seconds > 0.0 {
            true => (cost.backward_seconds, cost.weight_seconds),
            // What a schedule without halves is made for is their sum.
            false => (cost.backward_seconds / 2.0, cost.backward_seconds / 2.0),
        };
        let passes = [cost.forward_seconds, backward, weight];
        let sums = sums[it.device].iter_mut().zip(passes);
        sums.for_each(|(sum, seconds)| *sum += share * seconds);
        message = it.send_seconds.iter().copied().fold(message, f64::max);
        if cost.kept_bytes > 0.0 {
            kept = kept.max(cost.waiting_bytes / cost.kept_bytes);
        }
    }
    let total = |sums: &&[f64; 3]| sums.iter().sum::<f64>();
    let most = sums.iter().max_by(|a, b| total(a).total_cmp(&total(b)));
    let [forward, input, weight] = most.copied().unwrap_or([1.0; 3]);
    let unit = if forward > 0.0 { forward } else { 1.0 };
    PassTimes {
        forward: 1.0,
        input: input / unit,
        weight: weight / unit,
        message: message / unit,
        kept: kept.clamp(0.0, 1.0),
    }
}

/// Times in whole multiples of `precision`; of memory at least as much.
pub(super) fn rounded(times: PassTimes, precision: f64) -> PassTimes {
    // As decimal fractions, which is how people read them in a plan.
    let times_of = |count: f64| (count * precision * 1e6).round() / 1e6;
    let near = |time: f64| times_of((time / precision).round());
    PassTimes {
        forward: times.forward,
        input: near(times.input).max(precision),
        weight: near(times.weight).max(precision),
        message: near(times.message),
        kept: times_of((times.kept / precision).ceil()).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use shardloom_plan::{Recompute, Uniform};
    use shardloom_schedule::PassKind;

    use super::super::Cut;
    use super::*;

    /// The most passes forward on the first mesh whose activations are held, which input gradients free.
    fn held(sequence: &Sequence) -> i32 {
        let of_first = sequence.nodes.iter().filter(|it| it.device == 0);
        let held = of_first.scan(0, |held, it| {
            *held += match it.kind {
                PassKind::Forward => 1,
                PassKind::Backward | PassKind::BackwardInput => -1,
                PassKind::BackwardWeight => 0,
            };
            Some(*held)
        });
        held.max().unwrap_or(0)
    }

    /// Of all times that an order is made for, backward passes from about half of forward passes on.
    #[test]
    fn no_order_holds_less_on_the_first_mesh_than_is_said_and_some_not_much_more() {
        let times =
            |input, weight, message, kept| PassTimes { forward: 1.0, input, weight, message, kept };
        let all = [
            PassTimes::default(),
            times(1.0, 1.0, 0.0, 0.5),
            times(0.5, 0.5, 0.0, 0.0),
            times(1.5, 0.5, 0.1, 1.0),
            times(0.5, 1.5, 0.0, 0.25),
            times(2.0, 2.0, 0.3, 0.5),
        ];
        let mut checked = 0;
        for schedule in ScheduleKind::SEARCHED {
            for (pp, chunks) in [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2)] {
                let uniform = Uniform { pp: pp as usize, schedule, ..Uniform::default() };
                let Ok(places) = uniform.places(chunks as usize) else { continue };
                for microbatches in [pp, 2 * pp, 4 * pp] {
                    let candidate = Candidate {
                        pp,
                        dp: 1,
                        cp: 1,
                        tp: 1,
                        sequence_parallel: false,
                        zero: 0,
                        sharing: 1,
                        microbatch: 1,
                        microbatches,
                        recompute: Recompute::None,
                        schedule,
                        chunks,
                        cut: Cut::Even,
                    };
                    let found = all.iter().filter_map(|times| {
                        let count = microbatches as usize;
                        let places = places.clone();
                        Sequence::of(schedule, places, count, times, Succession::Common)
                    });
                    let Some(fewest) = found.map(|it| held(&it)).min() else { continue };
                    let said = least_held(&candidate);
                    let fewest = f64::from(fewest);
                    let place = format!("{schedule:?}, {pp} x {chunks} of {microbatches}");
                    assert!(said <= fewest, "{place}: {said} of {fewest}");
                    // Of few meshes single passes count for much.
                    assert!(pp < 8 || 3.0 * said >= 2.0 * fewest, "{place}: {said} of {fewest}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 9 * ScheduleKind::SEARCHED.len() / 2, "{checked} orders");
    }

    #[test]
    fn times_are_of_the_nearest_multiple_and_memory_of_one_that_is_enough() {
        let times =
            |input, weight, message, kept| PassTimes { forward: 1.0, input, weight, message, kept };
        assert_eq!(rounded(times(1.03, 0.97, 0.12, 0.52), 0.1), times(1.0, 1.0, 0.1, 0.6));
        assert_eq!(rounded(times(1.06, 0.94, 0.16, 0.6), 0.1), times(1.1, 0.9, 0.2, 0.6));
        // A pass takes some time, a message may take none, and no more is kept than there is.
        assert_eq!(rounded(times(0.01, 0.02, 0.03, 0.99), 0.25), times(0.25, 0.25, 0.0, 1.0));
    }
}
