//! How long steps take and how much of that ranks stand idle.

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
