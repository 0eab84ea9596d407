//! The numbers that sum a timeline up.

use shardloom_program::timeline::{Clock, Picos, Timeline, Track};

use crate::visible::visible;

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
    let (mut busy, mut exposed) = (Picos::ZERO, Picos::ZERO);
    for segment in visible(track) {
        *(if segment.is_compute() { &mut busy } else { &mut exposed }) += segment.length();
    }
    let of = |time: Picos| time.seconds() / makespan.seconds();
    Shares { busy: of(busy), exposed: of(exposed), idle: of(makespan.since(busy + exposed)) }
}

/// The numbers that sum a timeline up, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Totals {
    pub(crate) step_seconds: f64,
    /// Share of `ranks x makespan` spent computing; zero for an empty timeline.
    pub(crate) busy_fraction: f64,
    /// Neither computing nor communicating, by the timeline's own definition.
    pub(crate) dependency_idle_fraction: f64,
    /// Mean share of time spent communicating while not computing.
    pub(crate) exposed_fraction: f64,
    /// The highest of the ranks' peaks.
    pub(crate) peak_bytes: u64,
    /// Sent by all ranks together.
    pub(crate) sent_bytes: u64,
}

impl Totals {
    pub(crate) fn of(timeline: &Timeline) -> Totals {
        let makespan = timeline.makespan();
        let (mut exposed, mut ranks) = (0.0, 0.0);
        let (mut peak_bytes, mut sent_bytes) = (0, 0u64);
        for track in &timeline.tracks {
            exposed += shares(track, makespan).exposed * track.multiplicity as f64;
            ranks += track.multiplicity as f64;
            peak_bytes = peak_bytes.max(track.peak_bytes);
            sent_bytes = sent_bytes.saturating_add(track.sent_bytes_by_all());
        }
        let empty = makespan == Picos::ZERO || ranks == 0.0;
        Totals {
            step_seconds: makespan.seconds(),
            busy_fraction: if empty { 0.0 } else { 1.0 - timeline.bubble_fraction() },
            dependency_idle_fraction: timeline.dependency_idle_fraction(),
            exposed_fraction: if ranks > 0.0 { exposed / ranks } else { 0.0 },
            peak_bytes,
            sent_bytes,
        }
    }
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
    use shardloom_program::timeline::Activity;

    use super::*;
    use crate::visible::tests::interval;

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
        let totals = Totals::of(&timeline);
        assert_eq!(Totals::of(&Timeline { tracks: reversed, ..timeline.clone() }), totals);
        assert!((totals.dependency_idle_fraction - 0.1).abs() < 1e-12);
        assert!((totals.busy_fraction - 0.85).abs() < 1e-12);
        assert!((totals.exposed_fraction - 0.05).abs() < 1e-12);
        assert_eq!((totals.peak_bytes, totals.sent_bytes), (9, 15));
        // Of ranks that send unlike each other it is known what they send together.
        let mut timeline = timeline;
        timeline.tracks[0].class_sent_bytes = Some(11);
        assert_eq!(Totals::of(&timeline).sent_bytes, 11);
    }

    #[test]
    fn an_empty_timeline_has_zero_totals() {
        let totals = Totals::of(&Timeline { clock: Clock::Wall, tracks: Vec::new() });
        assert_eq!(
            (totals.step_seconds, totals.busy_fraction, totals.dependency_idle_fraction),
            (0.0, 0.0, 0.0)
        );
        assert_eq!((totals.exposed_fraction, totals.peak_bytes), (0.0, 0));
    }
}
