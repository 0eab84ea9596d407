//! The numbers that sum a timeline up.

use shardloom_program::timeline::{Clock, Lane, Picos, Timeline, Track};

/// How one track spends its time, as fractions of the timeline's makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    /// Computing.
    pub(crate) busy: f64,
    /// Communicating while not computing.
    pub(crate) exposed: f64,
    /// Neither.
    pub(crate) idle: f64,
}

/// The shares of `track` in `makespan`; all zero for an empty timeline.
pub(crate) fn shares(track: &Track, makespan: Picos) -> Shares {
    if makespan == Picos::ZERO {
        return Shares::default();
    }
    let busy = track.covered(|interval| interval.lane == Lane::Compute);
    let active = track.covered(|_| true);
    let of = |time: Picos| time.seconds() / makespan.seconds();
    Shares { busy: of(busy), exposed: of(active.since(busy)), idle: of(makespan.since(active)) }
}

/// A timeline with what several tables say of it, which takes time to sum up where there are many ranks.
pub(crate) struct Summed<'a> {
    /// Where it comes from.
    pub(crate) source: &'static str,
    pub(crate) timeline: &'a Timeline,
    pub(crate) makespan: Picos,
    /// By track.
    pub(crate) shares: Vec<Shares>,
}

impl<'a> Summed<'a> {
    pub(crate) fn of(source: &'static str, timeline: &'a Timeline) -> Summed<'a> {
        let makespan = timeline.makespan();
        let shares = timeline.tracks.iter().map(|track| shares(track, makespan)).collect();
        Summed { source, timeline, makespan, shares }
    }

    /// The numbers that sum it up.
    pub(crate) fn totals(&self) -> Totals {
        let &Summed { timeline, makespan, .. } = self;
        let (mut exposed, mut idle, mut devices) = (0.0, 0.0, 0.0);
        let (mut peak_bytes, mut sent_bytes) = (0, 0u64);
        for (track, shares) in timeline.tracks.iter().zip(&self.shares) {
            exposed += shares.exposed * track.devices();
            idle += shares.idle * track.devices();
            devices += track.devices();
            peak_bytes = peak_bytes.max(track.peak_bytes);
            sent_bytes = sent_bytes.saturating_add(track.sent_bytes_by_all());
        }
        let mean = |sum: f64| if devices > 0.0 { sum / devices } else { 0.0 };
        let empty = makespan == Picos::ZERO || devices == 0.0;
        Totals {
            step_seconds: makespan.seconds(),
            busy_fraction: if empty { 0.0 } else { 1.0 - timeline.bubble_fraction() },
            dependency_idle_fraction: mean(idle),
            exposed_fraction: mean(exposed),
            peak_bytes,
            sent_bytes,
        }
    }
}

/// The numbers that sum a timeline up, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Totals {
    pub(crate) step_seconds: f64,
    /// Share of `ranks x makespan` spent computing; zero for an empty timeline.
    pub(crate) busy_fraction: f64,
    /// Mean share of time spent neither computing nor communicating.
    pub(crate) dependency_idle_fraction: f64,
    /// Mean share of time spent communicating while not computing.
    pub(crate) exposed_fraction: f64,
    /// The highest of the ranks' peaks.
    pub(crate) peak_bytes: u64,
    /// Sent by all ranks together.
    pub(crate) sent_bytes: u64,
}

/// When a timeline begins; zero for an empty one.
pub(crate) fn first_start(timeline: &Timeline) -> Picos {
    let intervals = timeline.tracks.iter().flat_map(|track| &track.intervals);
    intervals.map(|interval| interval.start).min().unwrap_or_default()
}

/// Where a timeline's times come from, in words.
pub(crate) fn clock_words(clock: Clock) -> &'static str {
    match clock {
        Clock::Simulated => "simulated",
        Clock::Virtual => "executed, virtual clock",
        Clock::Wall => "executed, wall clock",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardloom_program::timeline::Activity;

    use super::*;
    use crate::visible::tests::{any_timeline, interval};
    use crate::visible::visible;

    fn totals(timeline: &Timeline) -> Totals {
        Summed::of("predicted", timeline).totals()
    }

    #[test]
    fn a_timeline_says_whether_it_was_simulated_and_which_clock_it_was_executed_by() {
        let words = [Clock::Simulated, Clock::Virtual, Clock::Wall].map(clock_words);
        assert_eq!(words, ["simulated", "executed, virtual clock", "executed, wall clock"]);
    }

    #[test]
    fn folded_ranks_weigh_by_their_multiplicity() {
        let busy = Track {
            multiplicity: 3,
            intervals: vec![interval(Activity::Forward, "F0", 0, 10)],
            peak_bytes: 7,
            sent_bytes: 5,
            ..Track::default()
        };
        let waiting = Track {
            multiplicity: 1,
            intervals: vec![
                interval(Activity::Collective, "all-reduce", 0, 4),
                interval(Activity::Forward, "F0", 2, 6),
            ],
            peak_bytes: 9,
            ..Track::default()
        };
        let shares = shares(&waiting, Picos(10));
        assert_eq!((shares.busy, shares.exposed, shares.idle), (0.4, 0.2, 0.4));

        let reversed = vec![waiting.clone(), busy.clone()];
        let timeline = Timeline { clock: Clock::Simulated, tracks: vec![busy, waiting] };
        let found = totals(&timeline);
        assert_eq!(totals(&Timeline { tracks: reversed, ..timeline.clone() }), found);
        assert!((found.dependency_idle_fraction - 0.1).abs() < 1e-12);
        assert!((found.busy_fraction - 0.85).abs() < 1e-12);
        assert!((found.exposed_fraction - 0.05).abs() < 1e-12);
        assert_eq!((found.peak_bytes, found.sent_bytes), (9, 15));
        // Of ranks that send unlike each other it is known what they send together.
        let mut timeline = timeline;
        timeline.tracks[0].class_sent_bytes = Some(11);
        assert_eq!(totals(&timeline).sent_bytes, 11);
    }

    #[test]
    fn an_empty_timeline_has_zero_totals() {
        let found = totals(&Timeline { clock: Clock::Wall, tracks: Vec::new() });
        assert_eq!(
            (found.step_seconds, found.busy_fraction, found.dependency_idle_fraction),
            (0.0, 0.0, 0.0)
        );
        assert_eq!((found.exposed_fraction, found.peak_bytes), (0.0, 0));
    }

    proptest! {
        /// Against the segments that are drawn, of which each is what is visible of a rank.
        #[test]
        fn shares_are_of_what_is_visible(timeline in any_timeline()) {
            let makespan = timeline.makespan();
            for track in &timeline.tracks {
                let length = |compute| {
                    let segments = visible(track);
                    let counted = segments.iter().filter(|it| it.is_compute() == compute);
                    counted.map(|it| it.length().0).sum::<u64>() as f64 * 1e-12
                };
                let shares = shares(track, makespan);
                let whole = makespan.seconds();
                prop_assert!((shares.busy * whole - length(true)).abs() < 1e-12);
                prop_assert!((shares.exposed * whole - length(false)).abs() < 1e-12);
                let sum = shares.busy + shares.exposed + shares.idle;
                prop_assert!(makespan == Picos::ZERO || (sum - 1.0).abs() < 1e-9);
            }
        }
    }
}
