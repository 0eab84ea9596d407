//! What happened when: intervals per rank and lane, and memory over time, predicted or measured.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::RouteId;

/// A point or span of time in picoseconds.
///
/// Integers make sums exact, so that a folded simulation of ranks that are placed alike equals the unfolded one bit for
/// bit, and an executed virtual timeline equals the simulated one. `u64` holds 213 days.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Picos(pub u64);

impl Picos {
    /// Zero time.
    pub const ZERO: Picos = Picos(0);

    /// The shortest stretch that counts as a wait, a microsecond: what lies between two things that follow each
    /// other is shorter.
    pub const SHORTEST_WAIT: Picos = Picos(1_000_000);

    /// The longest time, which sums of longer ones come to.
    pub const MAX: Picos = Picos(u64::MAX);

    /// Rounds a non-negative number of seconds to picoseconds; negative and NaN become zero.
    pub fn from_seconds(seconds: f64) -> Picos {
        Picos((seconds * 1e12).round() as u64)
    }

    /// The time in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-12
    }

    /// The difference, or zero where `earlier` is later.
    pub fn since(self, earlier: Picos) -> Picos {
        Picos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add for Picos {
    type Output = Picos;
    fn add(self, other: Picos) -> Picos {
        Picos(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Picos {
    fn add_assign(&mut self, other: Picos) {
        *self = *self + other;
    }
}

/// Which clock a timeline was taken with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// Predicted by the simulator from the cost model.
    Simulated,
    /// Executed, with the event simulator driving and kernel durations advancing virtual ranks.
    Virtual,
    /// Executed in real time.
    Wall,
}

/// The resource of a rank that an interval occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// The device's arithmetic.
    Compute,
    /// Collectives, and receiving.
    CommunicationIn,
    /// Sending.
    CommunicationOut,
}

/// What a rank was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// A forward pass of one micro-batch.
    Forward,
    /// A backward pass (input and weight gradients together).
    Backward,
    /// The input-gradient half of a backward pass.
    BackwardInput,
    /// The weight-gradient half of a backward pass.
    BackwardWeight,
    /// An optimizer update.
    Update,
    /// A collective over some ranks.
    Collective,
    /// A message to another stage.
    Send,
    /// Waiting for, or copying in, a message from another stage.
    Receive,
}

/// One thing a rank did, without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The resource it occupied.
    pub lane: Lane,
    /// What it was.
    pub activity: Activity,
    /// A name for people: `F3`, `B0@1`, `all-reduce block.2`.
    pub label: String,
    /// The micro-batch it worked on, where it worked on one.
    pub microbatch: Option<u32>,
    /// The model chunk, where the device holds several.
    pub chunk: Option<u32>,
    /// When it began.
    pub start: Picos,
    /// When it ended; never before `start`.
    pub end: Picos,
}

/// One end of a message between stages: its sending or its receiving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageEnd {
    /// The route of the program that it takes; its micro-batch says which message on it.
    pub route: RouteId,
    /// When that was, which may take no time.
    pub interval: Interval,
}

/// One rank's (or one folded class of ranks') part of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Track {
    /// The rank; for a folded class its first rank.
    pub rank: u32,
    /// How many identical ranks this track stands for.
    pub multiplicity: u64,
    /// Where the rank stands: `stage 0, dp 1, tp 0`.
    pub place: String,
    /// The number of its class in the program: ranks of one class run the same instructions.
    #[serde(default)]
    pub class: u32,
    /// Whether it is on the device of another track, as a server may be on a worker's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_colocated: bool,
    /// What it did, in order of start on each lane.
    pub intervals: Vec<Interval>,
    /// Messages to and from other stages, in order of their end on each lane. Each is among `intervals`, too, as far as
    /// its lane shows it: a receive beside which a collective runs may be several of these, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageEnd>,
    /// Bytes allocated after each change, in order of time.
    pub memory: Vec<(Picos, u64)>,
    /// The most bytes allocated at once.
    pub peak_bytes: u64,
    /// Activations, and gradients of activations, among these; none where that was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_activation_bytes: Option<u64>,
    /// Gradients of parameters that were not there yet; none where they are there all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_absent_gradient_bytes: Option<u64>,
    /// Bytes it sent to other ranks; for a folded class its first rank.
    pub sent_bytes: u64,
    /// Bytes that all ranks of a folded class together sent; none where each sent as many as the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_sent_bytes: Option<u64>,
}

/// What happened on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Which clock it was taken with.
    pub clock: Clock,
    /// One track per rank or folded class.
    pub tracks: Vec<Track>,
}

impl Track {
    /// How many devices it stands for: none where it is on another track's.
    pub fn devices(&self) -> f64 {
        if self.is_colocated { 0.0 } else { self.multiplicity as f64 }
    }

    /// Bytes that all ranks together sent that this track stands for.
    pub fn sent_bytes_by_all(&self) -> u64 {
        let alike = || self.sent_bytes.saturating_mul(self.multiplicity);
        self.class_sent_bytes.unwrap_or_else(alike)
    }

    /// Time the compute lane was occupied.
    pub fn busy(&self) -> Picos {
        self.busy_in(Picos::ZERO..Picos::MAX)
    }

    /// Likewise, of a time.
    pub fn busy_in(&self, time: Range<Picos>) -> Picos {
        self.occupied(time, |interval| interval.lane == Lane::Compute)
    }

    /// Time a communication lane was occupied (receiving and collectives, and sending, added).
    pub fn communicating(&self) -> Picos {
        self.communicating_in(Picos::ZERO..Picos::MAX)
    }

    /// Likewise, of a time.
    pub fn communicating_in(&self, time: Range<Picos>) -> Picos {
        self.occupied(time, |interval| interval.lane != Lane::Compute)
    }

    /// Time in which at least one interval is under way of those that `counts` accepts.
    pub fn covered(&self, counts: impl Fn(&Interval) -> bool) -> Picos {
        self.covered_in(Picos::ZERO..Picos::MAX, counts)
    }

    /// Likewise, of a time.
    pub fn covered_in(&self, time: Range<Picos>, counts: impl Fn(&Interval) -> bool) -> Picos {
        let mut spans: Vec<(Picos, Picos)> = self.spans(time, counts).collect();
        spans.sort_unstable();
        let (mut total, mut until) = (Picos::ZERO, Picos::ZERO);
        for (start, end) in spans {
            total += end.since(start.max(until));
            until = until.max(end);
        }
        total
    }

    /// How often nothing was under way for a [wait](Picos::SHORTEST_WAIT) or longer, within `time`, of what `counts`
    /// accepts.
    pub fn waits_in(&self, time: Range<Picos>, counts: impl Fn(&Interval) -> bool) -> usize {
        let spans = self.spans(time.clone(), counts).filter(|(start, end)| start < end);
        let mut spans: Vec<(Picos, Picos)> = spans.collect();
        spans.sort_unstable();
        spans.push((time.end, time.end));
        let (mut waits, mut until) = (0, time.start);
        for (start, end) in spans {
            waits += usize::from(start.since(until) >= Picos::SHORTEST_WAIT);
            until = until.max(end);
        }
        waits
    }

    fn occupied(&self, time: Range<Picos>, which: impl Fn(&Interval) -> bool) -> Picos {
        let mut total = Picos::ZERO;
        for (start, end) in self.spans(time, which) {
            total += end.since(start);
        }
        total
    }

    /// When intervals of a kind began and ended, as far as they are of `time`.
    fn spans(
        &self,
        time: Range<Picos>,
        which: impl Fn(&Interval) -> bool,
    ) -> impl Iterator<Item = (Picos, Picos)> {
        let counted = self.intervals.iter().filter(move |interval| which(interval));
        counted.map(move |it| (it.start.max(time.start), it.end.min(time.end)))
    }
}

impl Timeline {
    /// From the first start to the last end; empty for an empty timeline.
    pub fn span(&self) -> Range<Picos> {
        let intervals = || self.tracks.iter().flat_map(|track| &track.intervals);
        let start = intervals().map(|interval| interval.start).min().unwrap_or_default();
        let end = intervals().map(|interval| interval.end).max().unwrap_or_default();
        start..end
    }

    /// How long that is; zero for an empty timeline.
    pub fn makespan(&self) -> Picos {
        let span = self.span();
        span.end.since(span.start)
    }

    /// Share of `ranks x makespan` in which compute lanes stood idle; zero for an empty timeline. It is the sum of
    /// [`dependency_idle_fraction`](Timeline::dependency_idle_fraction) and
    /// [`exposed_communication_fraction`](Timeline::exposed_communication_fraction).
    pub fn bubble_fraction(&self) -> f64 {
        self.share_without(Track::busy)
    }

    /// Share of `ranks x makespan` in which ranks neither compute nor communicate: they wait for what others have not
    /// done yet. Zero for an empty timeline.
    pub fn dependency_idle_fraction(&self) -> f64 {
        self.share_without(|track| track.covered(|_| true))
    }

    /// Share of `ranks x makespan` in which ranks communicate and do not compute; zero for an empty timeline.
    pub fn exposed_communication_fraction(&self) -> f64 {
        self.bubble_fraction() - self.dependency_idle_fraction()
    }

    /// Share of `devices x makespan` that is not what `time` says of each track.
    fn share_without(&self, time: impl Fn(&Track) -> Picos) -> f64 {
        let makespan = self.makespan().seconds();
        let devices: f64 = self.tracks.iter().map(Track::devices).sum();
        if makespan == 0.0 || devices == 0.0 {
            return 0.0;
        }
        let of_track = |track: &Track| time(track).seconds() * track.devices();
        1.0 - self.tracks.iter().map(of_track).sum::<f64>() / (devices * makespan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(lane: Lane, start: u64, end: u64) -> Interval {
        Interval {
            lane,
            activity: Activity::Collective,
            label: String::new(),
            microbatch: None,
            chunk: None,
            start: Picos(start),
            end: Picos(end),
        }
    }

    #[test]
    fn what_several_intervals_cover_counts_once() {
        let (computes, sends, comes) =
            (Lane::Compute, Lane::CommunicationOut, Lane::CommunicationIn);
        let intervals = vec![
            interval(computes, 10, 30),
            interval(sends, 0, 5),
            interval(comes, 20, 40),
            // Inside another, and one begins behind it that is, too.
            interval(comes, 22, 25),
            interval(sends, 27, 29),
            interval(sends, 50, 60),
        ];
        let track = Track { intervals, ..Track::default() };
        assert_eq!(track.covered(|_| true), Picos(5 + 30 + 10));
        assert_eq!(track.covered(|it| it.lane == sends), Picos(5 + 2 + 10));
        assert_eq!(track.busy(), Picos(20));
        assert_eq!(track.communicating(), Picos(5 + 20 + 3 + 2 + 10));
        assert_eq!(track.covered(|_| false), Picos::ZERO);
    }
    #[test]
    fn stretches_without_anything_count_as_waits_if_they_are_long_enough() {
        let micros = |start: u64, end: u64, lane| {
            interval(lane, start * Picos::SHORTEST_WAIT.0, end * Picos::SHORTEST_WAIT.0)
        };
        let (computes, comes) = (Lane::Compute, Lane::CommunicationIn);
        let mut intervals = vec![
            micros(2, 4, computes),
            micros(3, 5, comes),
            micros(5, 6, computes),
            micros(7, 9, comes),
        ];
        // Begins a little after another has ended.
        intervals[2].start.0 += 10;
        let track = Track { intervals, ..Track::default() };
        let time = |start: u64, end: u64| {
            Picos(start * Picos::SHORTEST_WAIT.0)..Picos(end * Picos::SHORTEST_WAIT.0)
        };
        // Before all, between the last two, and after all.
        assert_eq!(track.waits_in(time(0, 10), |_| true), 3);
        assert_eq!(track.waits_in(time(2, 9), |_| true), 1);
        assert_eq!(track.waits_in(time(4, 6), |it| it.lane == computes), 1);
        assert_eq!(track.waits_in(time(0, 10), |_| false), 1);
        assert_eq!(track.waits_in(time(3, 3), |_| true), 0);
    }
}
