//! In what ranks record, communication begins when all that it needs have come to it, and not when a rank begins to
//! wait.

use crate::support::{Samples, llama, mesh, serial, trainer};
use shardloom_plan::Uniform;
use shardloom_program::timeline::{Activity, Interval, Track};

fn of(track: &Track, activity: Activity) -> Vec<&Interval> {
    track.intervals.iter().filter(|it| it.activity == activity).collect()
}

#[test]
fn collectives_begin_with_their_last_member_and_receives_with_their_send() {
    let graph = llama();
    // Ranks 0 and 1 are the replicas of the first stage, 2 and 3 those of the second.
    let uniform = Uniform { pp: 2, mesh: mesh(2, 1, 1), microbatches: 4, ..serial() };
    let plan = uniform.plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(64, 16, 64), 1e-3);
    trainer.step().expect("a step");
    let (_, timeline) = trainer.step_recorded().expect("a step");
    let [first, second, third, fourth] = &timeline.tracks[..] else { panic!("not four ranks") };
    for (one, other) in [(first, second), (third, fourth)] {
        let [one, other] = [one, other].map(|track| of(track, Activity::Collective));
        assert!(!one.is_empty(), "replicas exchange gradients");
        assert_eq!(one.len(), other.len(), "{one:?} and {other:?}");
        for (one, other) in one.into_iter().zip(other) {
            assert_eq!((&one.label, one.start), (&other.label, other.start));
        }
    }
    for track in &timeline.tracks {
        let messages: Vec<&Interval> = track.messages.iter().map(|it| &it.interval).collect();
        let is_message = |it: &&Interval| matches!(it.activity, Activity::Send | Activity::Receive);
        let shown: Vec<&Interval> = track.intervals.iter().filter(is_message).collect();
        assert_eq!(messages, shown, "messages begin when their intervals do");
    }
    for (from, to) in [(first, third), (second, fourth), (third, first), (fourth, second)] {
        let (sent, received) = (of(from, Activity::Send), of(to, Activity::Receive));
        assert_eq!((sent.len(), received.len()), (4, 4));
        for (sent, received) in sent.into_iter().zip(received) {
            assert!(sent.start <= received.start && received.start <= received.end);
        }
    }
}

/// What a rank holds is known from before its first change on, wherever it waits first.
#[test]
fn memory_is_recorded_from_the_beginning_of_a_step() {
    let graph = llama();
    let uniform = Uniform { pp: 2, microbatches: 4, ..serial() };
    let plan = uniform.plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(64, 16, 64), 1e-3);
    trainer.step().expect("a step");
    let held: Vec<u64> =
        trainer.step_recorded().expect("a step").1.tracks.iter().map(last).collect();
    let (_, timeline) = trainer.step_recorded().expect("a step");
    for (track, held) in timeline.tracks.iter().zip(held) {
        let &(at, bytes) = track.memory.first().expect("something is held");
        let first = track.intervals.iter().map(|it| it.start).min().expect("it does something");
        assert!(at <= first, "{at:?} is after {first:?}");
        assert_eq!(bytes, held, "as after the step before");
        let most = track.memory.iter().map(|&(_, bytes)| bytes).max();
        assert!(most > Some(bytes), "a step needs more");
    }
    let classes: Vec<u32> = timeline.tracks.iter().map(|track| track.class).collect();
    assert_eq!(classes, [0, 1], "each stage is a class");
}

fn last(track: &Track) -> u64 {
    track.memory.last().expect("something is held").1
}
