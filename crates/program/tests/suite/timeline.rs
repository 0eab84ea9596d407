//! How long steps take and how much of that ranks stand idle.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_program::timeline::{Activity, Clock, Interval, Lane, Picos, Timeline, Track};

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

fn computes(start: u64, end: u64) -> Interval {
    interval(Lane::Compute, start, end)
}

/// Tracks of so many ranks each.
fn timeline(tracks: Vec<(u64, Vec<Interval>)>) -> Timeline {
    let track = |(multiplicity, intervals)| Track { multiplicity, intervals, ..Track::default() };
    Timeline { clock: Clock::Simulated, tracks: tracks.into_iter().map(track).collect() }
}

#[test]
fn a_bubble_is_what_compute_lanes_of_all_ranks_stand_idle_from_the_first_start_to_the_last_end() {
    let sends = interval(Lane::CommunicationOut, 60, 110);
    let unlike = timeline(vec![
        (3, vec![computes(10, 40), computes(50, 60), sends]),
        (1, vec![computes(30, 110)]),
    ]);
    assert_eq!(unlike.makespan(), Picos(100));
    let (idle, all) = (3.0 * 60.0 + 20.0, 4.0 * 100.0);
    assert!((unlike.bubble_fraction() - idle / all).abs() < 1e-12, "{}", unlike.bubble_fraction());
    let full = timeline(vec![(2, vec![computes(5, 25)])]);
    assert_eq!((full.makespan(), full.bubble_fraction()), (Picos(20), 0.0));
}

#[test]
fn where_nothing_happens_nobody_stands_idle() {
    for tracks in [vec![], vec![(2, vec![])], vec![(0, vec![])]] {
        let nothing = timeline(tracks);
        assert_eq!((nothing.makespan(), nothing.bubble_fraction()), (Picos::ZERO, 0.0));
    }
    assert_eq!(timeline(vec![(0, vec![computes(0, 20)])]).bubble_fraction(), 0.0);
}

/// So many picoseconds are one tick of the timelines below, four of which are the shortest wait.
const TICK: u64 = Picos::SHORTEST_WAIT.0 / 4;

/// How many ticks those timelines have.
const TICKS: u64 = 24;

/// Intervals of whole ticks in any lanes, in any order, also none, equal ones and empty ones.
fn intervals() -> impl Strategy<Value = Vec<Interval>> {
    let lanes = [Lane::Compute, Lane::CommunicationIn, Lane::CommunicationOut];
    let one = (prop::sample::select(lanes.to_vec()), 0..TICKS, 0..8u64);
    let one = one.prop_map(|(lane, start, length)| {
        interval(lane, start * TICK, (start + length).min(TICKS) * TICK)
    });
    prop::collection::vec(one, 0..9)
}

/// Whether an interval is under way in the tick of such a number.
fn is_in(interval: &Interval, tick: u64) -> bool {
    interval.start.0 <= tick * TICK && (tick + 1) * TICK <= interval.end.0
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(3),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_a_track_says_of_a_time_is_what_counting_its_ticks_one_by_one_comes_to(
        intervals in intervals(),
        (start, length) in (0..TICKS, 0..TICKS),
    ) {
        let end = (start + length).min(TICKS);
        let time = Picos(start * TICK)..Picos(end * TICK);
        let track = Track { intervals: intervals.clone(), ..Track::default() };
        let all: [fn(&Interval) -> bool; 3] =
            [|_| true, |it| it.lane == Lane::Compute, |it| it.lane != Lane::CommunicationOut];
        for counts in all {
            let covered = |tick: &u64| intervals.iter().any(|it| counts(it) && is_in(it, *tick));
            let of = |ticks: std::ops::Range<u64>| Picos(ticks.filter(covered).count() as u64 * TICK);
            prop_assert_eq!(track.covered(counts), of(0..TICKS));
            prop_assert_eq!(track.covered_in(time.clone(), counts), of(start..end));
            let (mut waits, mut idle) = (0, 0);
            for tick in start..end {
                idle = if covered(&tick) { 0 } else { idle + 1 };
                // A longer one is the same wait.
                waits += usize::from(idle == 4);
            }
            prop_assert_eq!(track.waits_in(time.clone(), counts), waits);
        }
        let sum = |ticks: std::ops::Range<u64>, computes: bool| {
            let of_kind = intervals.iter().filter(|it| (it.lane == Lane::Compute) == computes);
            let under_way = of_kind.map(|it| ticks.clone().filter(|&tick| is_in(it, tick)).count());
            Picos(under_way.sum::<usize>() as u64 * TICK)
        };
        prop_assert_eq!(track.busy(), sum(0..TICKS, true));
        prop_assert_eq!(track.busy_in(time.clone()), sum(start..end, true));
        prop_assert_eq!(track.communicating(), sum(0..TICKS, false));
        prop_assert_eq!(track.communicating_in(time), sum(start..end, false));
    }

    #[test]
    fn ranks_compute_wait_for_others_or_communicate_and_nothing_else(
        tracks in prop::collection::vec((1..4u64, intervals()), 1..4),
    ) {
        // A device computes one thing at a time.
        let tracks = tracks.into_iter().map(|(ranks, mut intervals)| {
            let mut until = Picos::ZERO;
            intervals.sort_by_key(|it| it.start);
            intervals.retain(|it| {
                let apart = it.lane != Lane::Compute || it.start >= until;
                if apart && it.lane == Lane::Compute {
                    until = it.end;
                }
                apart
            });
            (ranks, intervals)
        });
        let timeline = timeline(tracks.collect());
        let all = || timeline.tracks.iter().flat_map(|track| &track.intervals);
        let span = all().map(|it| it.start.0).min().unwrap_or(0)
            ..all().map(|it| it.end.0).max().unwrap_or(0);
        prop_assert_eq!(timeline.span(), Picos(span.start)..Picos(span.end));
        prop_assert_eq!(timeline.makespan(), Picos(span.end - span.start));
        let (mut ticks, mut idle, mut exposed) = (0, 0, 0);
        for track in &timeline.tracks {
            for tick in span.start / TICK..span.end / TICK {
                let under_way = |computes: bool| {
                    let of_kind = |it: &&Interval| (it.lane == Lane::Compute) == computes;
                    track.intervals.iter().filter(of_kind).any(|it| is_in(it, tick))
                };
                ticks += track.multiplicity;
                match (under_way(true), under_way(false)) {
                    (true, _) => {}
                    (false, true) => exposed += track.multiplicity,
                    (false, false) => idle += track.multiplicity,
                }
            }
        }
        let share = |part: u64| if ticks == 0 { 0.0 } else { part as f64 / ticks as f64 };
        let near = |found: f64, part: u64| (found - share(part)).abs() < 1e-9;
        prop_assert!(near(timeline.dependency_idle_fraction(), idle));
        prop_assert!(near(timeline.exposed_communication_fraction(), exposed));
        prop_assert!(near(timeline.bubble_fraction(), idle + exposed));
    }
}
