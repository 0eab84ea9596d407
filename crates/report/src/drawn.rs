//! What a page or a trace has of timelines: no more than what shows them can.

use std::borrow::Cow;

use shardloom_program::quantity::{counted, seconds};
use shardloom_program::timeline::{Picos, Timeline, Track};

use crate::totals::first_start;

/// The most intervals and changes of memory that a page draws, over all of its timelines. They make about 25 MB.
pub(crate) const MOST_DRAWN: usize = 500_000;

/// The most that a Perfetto trace has of them. They make about 100 MB.
pub(crate) const MOST_TRACED: usize = 2_000_000;

/// The timelines of a page or a trace as they are in it.
pub(crate) struct Drawn<'a> {
    /// With where each comes from.
    pub(crate) timelines: Vec<(&'static str, Cow<'a, Timeline>)>,
    /// What was left out, a sentence for each timeline of which something was.
    pub(crate) left_out: Vec<String>,
}

impl<'a> Drawn<'a> {
    /// As many of the first ranks of each timeline as have `most` intervals and changes of memory together; of a
    /// first rank that has more by itself the first of them. What they are for is said by `has`, such as
    /// `a page draws`.
    pub(crate) fn of(
        timelines: &[(&'static str, &'a Timeline)],
        most: usize,
        has: &str,
    ) -> Drawn<'a> {
        let each = most / timelines.len().max(1);
        let mut drawn = Drawn { timelines: vec![], left_out: vec![] };
        for &(source, timeline) in timelines {
            let (part, left_out) = first_part(timeline, each);
            drawn.timelines.push((source, part));
            drawn.left_out.extend(left_out.map(|what| {
                format!("Of the {source} timeline {what}, since {has} {each} at most.")
            }));
        }
        drawn
    }
}

fn size(track: &Track) -> usize {
    track.intervals.len() + track.memory.len()
}

/// What there is of a timeline, and what of it that is in words if it is not all.
fn first_part(timeline: &Timeline, most: usize) -> (Cow<'_, Timeline>, Option<String>) {
    let all: usize = timeline.tracks.iter().map(size).sum();
    if all <= most {
        return (Cow::Borrowed(timeline), None);
    }
    let mut tracks = vec![];
    let mut left = most;
    for track in &timeline.tracks {
        let Some(less) = left.checked_sub(size(track)) else { break };
        left = less;
        tracks.push(track.clone());
    }
    let of = counted(timeline.tracks.len(), "row");
    let sum = format!("with {all} intervals and changes of memory");
    if !tracks.is_empty() {
        let words = format!("{of} {sum} the first {} are there", tracks.len());
        return (Cow::Owned(Timeline { tracks, ..*timeline }), Some(words));
    }
    let Some(track) = timeline.tracks.first() else { return (Cow::Borrowed(timeline), None) };
    let end = end_of_first(track, most);
    let intervals = track.intervals.iter().filter(|it| it.start < end).cloned().collect();
    let memory = track.memory.iter().copied().filter(|&(at, _)| at < end).collect();
    let messages = track.messages.iter().filter(|it| it.interval.start < end).cloned().collect();
    let track = Track { intervals, messages, memory, ..track.clone() };
    let length = seconds(end.since(first_start(timeline)).seconds());
    let words = format!("{of} {sum} only the first {length} of the first are there");
    (Cow::Owned(Timeline { tracks: vec![track], ..*timeline }), Some(words))
}

/// The time before which no more than `most` intervals and changes of memory of a track begin.
fn end_of_first(track: &Track, most: usize) -> Picos {
    let starts = track.intervals.iter().map(|interval| interval.start);
    let mut times: Vec<Picos> = starts.chain(track.memory.iter().map(|&(at, _)| at)).collect();
    times.sort_unstable();
    times.get(most).copied().unwrap_or(Picos::MAX)
}

#[cfg(test)]
mod tests {
    use shardloom_program::RouteId;
    use shardloom_program::timeline::{Activity, Clock, MessageEnd};

    use super::*;
    use crate::visible::tests::interval;

    /// A rank that runs so many passes of 10, each of which changes its memory once.
    fn track(rank: u32, passes: u64) -> Track {
        let pass = |it: u64| interval(Activity::Forward, "F", 10 * it, 10 * it + 10);
        Track {
            rank,
            multiplicity: 1,
            intervals: (0..passes).map(pass).collect(),
            memory: (0..passes).map(|it| (Picos(10 * it), it)).collect(),
            ..Track::default()
        }
    }

    fn timeline(passes: &[u64]) -> Timeline {
        let tracks = (0..).zip(passes).map(|(rank, &passes)| track(rank, passes)).collect();
        Timeline { clock: Clock::Simulated, tracks }
    }

    fn drawn(passes: &[u64], most: usize) -> (Vec<usize>, Vec<String>) {
        let timeline = timeline(passes);
        let drawn = Drawn::of(&[("predicted", &timeline)], most, "a page draws");
        let sizes = drawn.timelines[0].1.tracks.iter().map(size).collect();
        (sizes, drawn.left_out)
    }

    #[test]
    fn what_a_page_can_draw_is_drawn_whole() {
        assert_eq!(drawn(&[3, 2], 10), (vec![6, 4], vec![]));
    }

    #[test]
    fn of_more_the_first_ranks_are_drawn_and_the_page_says_so() {
        let (sizes, left_out) = drawn(&[3, 2, 4], 12);
        assert_eq!(sizes, [6, 4]);
        let told = "Of the predicted timeline 3 rows with 18 intervals and changes of memory the first 2 are \
                    there, since a page draws 12 at most.";
        assert_eq!(left_out, [told]);
    }

    #[test]
    fn of_a_rank_that_is_too_much_by_itself_the_first_time_is_drawn() {
        let (sizes, left_out) = drawn(&[100, 1], 10);
        assert_eq!(sizes, [10], "five passes, and as many changes of memory");
        assert!(
            left_out[0].contains("only the first 50.0 ps of the first are there"),
            "{left_out:?}"
        );
    }

    #[test]
    fn messages_behind_what_is_drawn_are_left_out_too() {
        let mut timeline = timeline(&[100, 1]);
        let message = |start: u64| MessageEnd {
            route: RouteId(0),
            interval: interval(Activity::Send, "send", start, start + 1),
        };
        timeline.tracks[0].messages = [0, 49, 50, 900].map(message).into();
        // Five passes of 10.
        let drawn = Drawn::of(&[("predicted", &timeline)], 10, "a page draws");
        let messages = &drawn.timelines[0].1.tracks[0].messages;
        let starts: Vec<u64> = messages.iter().map(|it| it.interval.start.0).collect();
        assert_eq!(starts, [0, 49]);
    }

    #[test]
    fn two_timelines_have_half_of_it_each() {
        let (one, other) = (timeline(&[4]), timeline(&[2, 2]));
        let drawn = Drawn::of(&[("predicted", &one), ("measured", &other)], 16, "a page draws");
        assert_eq!(drawn.left_out, Vec::<String>::new());
        let drawn = Drawn::of(&[("predicted", &one), ("measured", &other)], 14, "a page draws");
        assert_eq!(drawn.left_out.len(), 2);
    }
}
