//! What is said of a row of steps is of that row alone, also where others came before: seconds, times and bytes.

use std::time::{Duration, Instant};

use crate::support::two_nodes::{CLUSTER, clocks, gpt, started};
use crate::support::{mesh, serial};
use shardloom_plan::{Plan, Servers, Staleness, Sync, Uniform};
use shardloom_program::timeline::{Picos, Timeline};
use shardloom_train::{RunClock, Step, Trainer};

/// Two stages, two replicas, and two workers of a server.
fn plans() -> [Plan; 3] {
    let servers = Some(Servers::of(1, Staleness::Within(1)));
    let served = Sync { servers, ..Sync::default() };
    let one = || Uniform { clip_norm: None, microbatches: 2, ..serial() };
    [
        Uniform { pp: 2, ..one() },
        Uniform { mesh: mesh(2, 1, 1), ..one() },
        Uniform { mesh: mesh(2, 1, 1), sync: served, ..one() },
    ]
    .map(|uniform| uniform.plan(&gpt(), "model", CLUSTER))
}

/// A row, and no less than the time that it took.
fn recorded(run: &mut Trainer, steps: u32) -> (Vec<Step>, Timeline, Duration) {
    let start = Instant::now();
    let (row, timeline) = run.train_steps_recorded(steps).unwrap_or_else(|error| panic!("{error}"));
    (row, timeline, start.elapsed())
}

#[test]
fn tracks_say_what_was_sent_in_their_row() {
    for plan in plans() {
        for clock in clocks() {
            let mut run = started(&gpt(), &plan, clock);
            let mut before = run.sent_bytes_per_rank().to_vec();
            let mut of_steps = vec![];
            for steps in [1, 3, 2] {
                let (_, timeline, _) = recorded(&mut run, steps);
                let after = run.sent_bytes_per_rank().to_vec();
                assert_eq!(timeline.tracks.len(), after.len());
                for (track, (now, then)) in timeline.tracks.iter().zip(after.iter().zip(&before)) {
                    assert_eq!(track.sent_bytes, now - then, "{steps} steps");
                }
                let sent: u64 = timeline.tracks.iter().map(|track| track.sent_bytes).sum();
                of_steps.push(sent / u64::from(steps));
                before = after;
            }
            assert!(
                of_steps[0] > 0 && of_steps.iter().all(|&it| it == of_steps[0]),
                "{of_steps:?}"
            );
        }
    }
}

/// Whoever waits for the row sees it begin before it begins and end after it has ended.
#[test]
fn a_row_in_real_time_takes_no_longer_than_whoever_waits_for_it_waits() {
    for plan in plans() {
        let mut run = started(&gpt(), &plan, RunClock::Wall);
        for steps in [4, 1, 4] {
            let (row, timeline, most) = recorded(&mut run, steps);
            let each = row[0].seconds;
            assert!(each > 0.0 && row.iter().all(|step| step.seconds == each), "{row:?}");
            let sum = f64::from(steps) * each;
            assert!(sum <= most.as_secs_f64(), "{steps} steps of {each} s in {most:?}");
            let intervals = || timeline.tracks.iter().flat_map(|track| &track.intervals);
            let last = intervals().map(|it| it.end).max().expect("something runs");
            assert!(last <= Picos::from_seconds(most.as_secs_f64()), "{last:?} of {most:?}");
            assert!(intervals().all(|it| it.start <= it.end));
        }
    }
}
