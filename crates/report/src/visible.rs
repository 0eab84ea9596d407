//! One row per rank: what a rank visibly does at each moment, when several lanes are busy at once.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use shardloom_program::timeline::{Interval, Lane, Picos, Track};

/// A stretch of a track during which the same interval is the one to show.
///
/// Stretches in which nothing happens are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) interval: &'a Interval,
    /// Position of `interval` in the track: two intervals may be equal and still distinct.
    pub(crate) index: usize,
    pub(crate) start: Picos,
    pub(crate) end: Picos,
}

impl Segment<'_> {
    pub(crate) fn is_compute(&self) -> bool {
        self.interval.lane == Lane::Compute
    }

    #[cfg(test)]
    pub(crate) fn length(&self) -> Picos {
        self.end.since(self.start)
    }
}

/// Cuts a track into segments, in order of time and without overlap.
///
/// Computing hides communication, and incoming communication (which computing may wait for) hides
/// outgoing; on one lane what began last hides what began before it. So a communication segment is
/// communication that no computing overlaps. Takes O(n log n).
pub(crate) fn visible(track: &Track) -> Vec<Segment<'_>> {
    // (time, begins, index): at equal times ends (false) come before beginnings.
    let mut edges = Vec::with_capacity(2 * track.intervals.len());
    for (index, interval) in track.intervals.iter().enumerate() {
        if interval.start < interval.end {
            edges.push((interval.start, true, index));
            edges.push((interval.end, false, index));
        }
    }
    edges.sort_unstable();

    let rank = |index: usize| {
        let interval = &track.intervals[index];
        (interval.lane, Reverse(interval.start), Reverse(index))
    };
    let mut active = BTreeSet::new();
    let mut segments: Vec<Segment> = Vec::new();
    let mut since = Picos::ZERO;
    for (time, begins, index) in edges {
        if let Some(&(_, _, Reverse(top))) = active.first()
            && since < time
        {
            match segments.last_mut() {
                Some(last) if last.index == top && last.end == since => last.end = time,
                _ => segments.push(Segment {
                    interval: &track.intervals[top],
                    index: top,
                    start: since,
                    end: time,
                }),
            }
        }
        since = time;
        if begins {
            active.insert(rank(index));
        } else {
            active.remove(&rank(index));
        }
    }
    segments
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use shardloom_program::timeline::{Activity, Clock, Timeline};

    use super::*;
    use crate::palette::ACTIVITIES;

    fn lane_of(activity: Activity) -> Lane {
        match activity {
            Activity::Collective | Activity::Receive => Lane::CommunicationIn,
            Activity::Send => Lane::CommunicationOut,
            _ => Lane::Compute,
        }
    }

    /// An interval on the lane its activity belongs to.
    pub(crate) fn interval(activity: Activity, label: &str, start: u64, end: u64) -> Interval {
        let digits: String = label.chars().filter(char::is_ascii_digit).collect();
        Interval {
            lane: lane_of(activity),
            activity,
            label: label.to_owned(),
            microbatch: digits.parse().ok(),
            chunk: None,
            start: Picos(start),
            end: Picos(end),
        }
    }

    fn any_interval() -> impl Strategy<Value = Interval> {
        let activity = prop::sample::select(ACTIVITIES.to_vec());
        let name = prop_oneof!["[FBW][0-9]{1,3}", "\\PC{0,12}", "[<>&\"'/!\x1b-]{0,6}"];
        let times = (0..1_000_000_000u64, 0..50_000_000u64);
        let numbers = (any::<Option<u32>>(), any::<Option<u32>>());
        (activity, name, times, numbers).prop_map(|(activity, label, (start, length), numbers)| {
            Interval {
                lane: lane_of(activity),
                activity,
                label,
                microbatch: numbers.0,
                chunk: numbers.1,
                start: Picos(start),
                end: Picos(start + length),
            }
        })
    }

    fn any_track() -> impl Strategy<Value = Track> {
        let intervals = prop::collection::vec(any_interval(), 0..12);
        let memory =
            prop::collection::vec((0..2_000_000_000u64, any::<u64>()), 0..8).prop_map(|mut m| {
                m.sort_unstable();
                m.into_iter().map(|(at, bytes)| (Picos(at), bytes)).collect::<Vec<_>>()
            });
        let numbers = (any::<u32>(), 0..1u64 << 40, any::<u64>(), any::<u64>());
        (intervals, memory, numbers, "\\PC{0,20}").prop_map(|(intervals, memory, n, place)| Track {
            rank: n.0,
            multiplicity: n.1,
            place,
            class: n.0 % 3,
            is_colocated: false,
            intervals,
            messages: vec![],
            memory,
            peak_bytes: n.2,
            peak_activation_bytes: None,
            peak_absent_gradient_bytes: None,
            sent_bytes: n.3,
            class_sent_bytes: None,
        })
    }

    /// Timelines no program would make: overlapping, unsorted, empty, oddly named.
    pub(crate) fn any_timeline() -> impl Strategy<Value = Timeline> {
        let clock = prop::sample::select(vec![Clock::Simulated, Clock::Virtual, Clock::Wall]);
        (clock, prop::collection::vec(any_track(), 0..4))
            .prop_map(|(clock, tracks)| Timeline { clock, tracks })
    }

    fn track(intervals: Vec<Interval>) -> Track {
        Track { intervals, ..Track::default() }
    }

    #[test]
    fn computing_hides_communication_and_leaves_its_rest_exposed() {
        let track = track(vec![
            interval(Activity::Collective, "all-reduce", 0, 10),
            interval(Activity::Forward, "F0", 2, 5),
        ]);
        let shown: Vec<_> = visible(&track).iter().map(|s| (s.index, s.start.0, s.end.0)).collect();
        assert_eq!(shown, [(0, 0, 2), (1, 2, 5), (0, 5, 10)]);
    }

    #[test]
    fn moments_without_any_interval_are_not_listed() {
        let track = track(vec![
            interval(Activity::Forward, "F0", 0, 1),
            interval(Activity::Forward, "F1", 3, 4),
            interval(Activity::Forward, "F2", 4, 4),
        ]);
        let shown: Vec<_> = visible(&track).iter().map(|s| (s.start.0, s.end.0)).collect();
        assert_eq!(shown, [(0, 1), (3, 4)]);
    }

    proptest! {
        /// Against the definition, checked moment by moment on small integer times.
        #[test]
        fn every_moment_shows_the_first_of_its_active_intervals(
            drawn in prop::collection::vec((0..8usize, 0..30u64, 0..8u64), 0..12)
        ) {
            let intervals = drawn.into_iter().map(|(activity, start, length)| {
                interval(ACTIVITIES[activity], "x", start, start + length)
            });
            let track = track(intervals.collect());
            let segments = visible(&track);
            for moment in 0..40 {
                let active = track.intervals.iter().enumerate().filter(|(_, interval)| {
                    interval.start.0 <= moment && moment < interval.end.0
                });
                let expected = active
                    .min_by_key(|(index, i)| (i.lane, Reverse(i.start), Reverse(*index)))
                    .map(|(index, _)| index);
                let shown: Vec<_> = segments
                    .iter()
                    .filter(|s| s.start.0 <= moment && moment < s.end.0)
                    .map(|s| s.index)
                    .collect();
                prop_assert_eq!(shown, Vec::from_iter(expected));
            }
        }
    }
}
