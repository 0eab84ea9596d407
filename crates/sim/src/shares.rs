//! What the ranks of a simulation do with a step's time.

use serde::Serialize;
use shardloom_program::timeline::{Activity, Interval, Lane};

use crate::Simulation;

/// Shares of a step's time on average over all devices; they add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepShares {
    /// Computing, whether there is communication meanwhile or not.
    pub computing: f64,
    /// In collectives, beside which nothing is computed.
    pub exposed_collectives: f64,
    /// In messages between stages, beside which there is neither computation nor a collective.
    pub exposed_messages: f64,
    /// In nothing: waiting for other stages, or for the host to launch something.
    pub waiting: f64,
}

impl StepShares {
    /// The parts by name, the largest first.
    pub fn parts(&self) -> [(&'static str, f64); 4] {
        let mut parts = [
            ("computing", self.computing),
            ("collectives not hidden", self.exposed_collectives),
            ("messages not hidden", self.exposed_messages),
            ("waiting", self.waiting),
        ];
        parts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        parts
    }
}

impl Simulation {
    /// What the ranks do with a step's time, once steps follow each other.
    pub fn shares(&self) -> StepShares {
        let step_seconds = self.step_time().seconds();
        let mut devices = 0.0;
        let mut seconds = [0.0; 3];
        for (index, track) in self.timeline.tracks.iter().enumerate() {
            let covered = |counts: &dyn Fn(&Interval) -> bool| {
                track.covered_in(self.last_period(index), counts).seconds()
            };
            let computes = |it: &Interval| it.lane == Lane::Compute;
            let collective = |it: &Interval| it.activity == Activity::Collective;
            let computing = covered(&computes);
            let or_collectives = covered(&|it| computes(it) || collective(it));
            let anything = covered(&|_| true);
            let weight = track.devices();
            devices += weight;
            seconds[0] += weight * computing;
            seconds[1] += weight * (or_collectives - computing);
            seconds[2] += weight * (anything - or_collectives);
        }
        let all = devices * step_seconds * self.steps_of_period() as f64;
        if all <= 0.0 {
            return StepShares::default();
        }
        let [computing, exposed_collectives, exposed_messages] = seconds.map(|it| it / all);
        let waiting = (1.0 - computing - exposed_collectives - exposed_messages).max(0.0);
        StepShares { computing, exposed_collectives, exposed_messages, waiting }
    }
}

#[cfg(test)]
mod tests {
    use shardloom_program::timeline::{Clock, Picos, Timeline, Track};

    use super::*;

    fn interval(lane: Lane, activity: Activity, start: u64, end: u64) -> Interval {
        Interval {
            lane,
            activity,
            label: String::new(),
            microbatch: None,
            chunk: None,
            start: Picos(start),
            end: Picos(end),
        }
    }

    fn track(multiplicity: u64, intervals: Vec<Interval>) -> Track {
        Track { multiplicity, intervals, ..Track::default() }
    }

    #[test]
    fn shares_are_those_counted_by_hand() {
        let (compute, comes) = (Lane::Compute, Lane::CommunicationIn);
        // Of 100: 40 computing, then 20 of a collective of 30, then 10 of a message of 20, and 30 of nothing.
        let busy = vec![
            interval(compute, Activity::Forward, 0, 40),
            interval(comes, Activity::Collective, 30, 60),
            interval(comes, Activity::Receive, 50, 70),
        ];
        let idle = vec![interval(compute, Activity::Forward, 0, 100)];
        let simulation = Simulation {
            timeline: Timeline {
                clock: Clock::Simulated,
                tracks: vec![track(3, busy), track(1, idle)],
            },
            step_ends: vec![vec![Picos(100)]; 2],
            period: 1,
            draining: 0,
            folded: true,
        };
        let found = simulation.shares();
        let right = StepShares {
            computing: (3.0 * 0.4 + 1.0) / 4.0,
            exposed_collectives: 3.0 * 0.2 / 4.0,
            exposed_messages: 3.0 * 0.1 / 4.0,
            waiting: 3.0 * 0.3 / 4.0,
        };
        for ((name, found), (_, right)) in found.parts().into_iter().zip(right.parts()) {
            assert!((found - right).abs() < 1e-12, "{name}: {found} and {right}");
        }
        assert_eq!(found.parts()[0].0, "computing");
    }

    /// By what the ranks do in each instant, of which there are 60.
    #[test]
    fn shares_are_those_of_the_instants_in_which_ranks_do_each_thing() {
        let mut state = 7_u64;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut ranks = 0.0;
            let mut counts = [0.0; 4];
            let mut tracks = vec![];
            for multiplicity in [1, 1 + next(4)] {
                let made = (0..next(5)).map(|_| {
                    let (start, length) = (next(60), 1 + next(30));
                    let (lane, activity) = match next(4) {
                        0 => (Lane::Compute, Activity::Forward),
                        1 => (Lane::CommunicationIn, Activity::Collective),
                        2 => (Lane::CommunicationIn, Activity::Receive),
                        _ => (Lane::CommunicationOut, Activity::Send),
                    };
                    interval(lane, activity, start, (start + length).min(60))
                });
                let intervals: Vec<Interval> = made.collect();
                ranks += multiplicity as f64;
                for instant in 0..60 {
                    let now = intervals
                        .iter()
                        .filter(|it| it.start <= Picos(instant) && Picos(instant) < it.end);
                    // The first of these that is done then.
                    let of = |it: &Interval| match (it.lane, it.activity) {
                        (Lane::Compute, _) => 0,
                        (_, Activity::Collective) => 1,
                        _ => 2,
                    };
                    counts[now.map(of).min().unwrap_or(3)] += multiplicity as f64;
                }
                tracks.push(track(multiplicity, intervals));
            }
            let simulation = Simulation {
                timeline: Timeline { clock: Clock::Simulated, tracks },
                step_ends: vec![vec![Picos(60)]; 2],
                period: 1,
                draining: 0,
                folded: true,
            };
            let found = simulation.shares();
            let found =
                [found.computing, found.exposed_collectives, found.exposed_messages, found.waiting];
            for (found, count) in found.into_iter().zip(counts) {
                let right = count / (60.0 * ranks);
                assert!((found - right).abs() < 1e-9, "{found} for {right} of {counts:?}");
            }
        }
    }

    /// Ranks end their steps at times of their own, some of them while the pipeline drains; only some steps average.
    #[test]
    fn shares_are_those_of_each_ranks_own_last_period_before_the_pipeline_drains() {
        let mut state = 11_u64;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut apart = 0;
        for _ in 0..300 {
            let (period, draining, more) = (1 + next(3) as usize, next(3) as usize, next(3));
            // At least a whole period, and a step before it.
            let steps = period + 1 + draining + more as usize;
            let (mut tracks, mut step_ends, mut windows) = (vec![], vec![], vec![]);
            for multiplicity in [1, 1 + next(4), 1 + next(2)] {
                let (mut ends, mut last) = (vec![], 0);
                for _ in 0..steps {
                    last += 5 + next(20);
                    ends.push(Picos(last));
                }
                let made = (0..6 * steps).map(|_| {
                    let (start, length) = (next(last), 1 + next(12));
                    let (lane, activity) = match next(3) {
                        0 => (Lane::Compute, Activity::Forward),
                        1 => (Lane::CommunicationIn, Activity::Collective),
                        _ => (Lane::CommunicationOut, Activity::Send),
                    };
                    interval(lane, activity, start, (start + length).min(last))
                });
                tracks.push(track(multiplicity, made.collect()));
                windows.push(ends[steps - draining - 1 - period].0..ends[steps - draining - 1].0);
                step_ends.push(ends);
            }
            let longest = windows.iter().map(|it| it.end - it.start).max().expect("three ranks");
            let mut counts = [0.0; 3];
            let mut ranks = 0.0;
            for (track, window) in tracks.iter().zip(&windows) {
                ranks += track.multiplicity as f64;
                for instant in window.clone() {
                    let now = track.intervals.iter();
                    let now = now.filter(|it| (it.start.0..it.end.0).contains(&instant));
                    let of = |it: &Interval| match (it.lane, it.activity) {
                        (Lane::Compute, _) => 0,
                        (_, Activity::Collective) => 1,
                        _ => 2,
                    };
                    if let Some(first) = now.map(of).min() {
                        counts[first] += track.multiplicity as f64;
                    }
                }
            }
            apart += usize::from(windows.iter().any(|it| *it != windows[0]));
            let simulation = Simulation {
                timeline: Timeline { clock: Clock::Simulated, tracks },
                step_ends,
                period,
                draining,
                folded: true,
            };
            // A step is a part of the longest period, in whole instants.
            let all = (longest.div_ceil(period as u64) * period as u64) as f64 * ranks;
            let found = simulation.shares();
            let parts = [found.computing, found.exposed_collectives, found.exposed_messages];
            for (part, count) in parts.into_iter().zip(counts) {
                assert!((part - count / all).abs() < 1e-9, "{part} for {count} of {all}");
            }
            assert!((parts.iter().sum::<f64>() + found.waiting - 1.0).abs() < 1e-9);
        }
        assert!(apart > 250, "{apart}");
    }
}
