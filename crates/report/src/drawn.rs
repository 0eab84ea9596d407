//! What a page or a trace has of timelines: no more than what shows them can.

use std::borrow::Cow;
use std::collections::HashMap;

use shardloom_program::quantity::{counted, seconds, whole};
use shardloom_program::timeline::{Picos, Timeline, Track};

use crate::totals::first_start;

/// The most intervals and changes of memory that a page draws, over all of its timelines. They make about 25 MB.
pub(crate) const MOST_DRAWN: usize = 500_000;

/// The most that a Perfetto trace has of them. They make about 100 MB.
pub(crate) const MOST_TRACED: usize = 2_000_000;

/// The most runs of ranks that are named one by one.
const MOST_NAMED: usize = 16;

/// The timelines of a page or a trace as they are in it.
pub(crate) struct Drawn<'a> {
    /// With where each comes from.
    pub(crate) timelines: Vec<(&'static str, Cow<'a, Timeline>)>,
    /// What was left out, a sentence for each timeline of which something was.
    pub(crate) left_out: Vec<String>,
}

impl<'a> Drawn<'a> {
    /// Of each timeline the ranks that have `most` intervals and changes of memory together: the first of every class,
    /// which are a whole pipeline, then the second of every class, and so on. Where the first ones
    /// have more by themselves, all that begins before a time. What they are for is said by `has`, such as
    /// `a page draws`.
    pub(crate) fn of(
        timelines: &[(&'static str, &'a Timeline)],
        most: usize,
        has: &str,
    ) -> Drawn<'a> {
        let each = most / timelines.len().max(1);
        let mut drawn = Drawn { timelines: vec![], left_out: vec![] };
        for &(source, timeline) in timelines {
            let (part, left_out) = part(timeline, each);
            drawn.timelines.push((source, part));
            drawn.left_out.extend(left_out.map(|LeftOut { rows, size, left }| {
                let (rows, size) = (counted(rows, "row"), whole(size as u64));
                let most = whole(each as u64);
                format!(
                    "The {source} timeline has {rows} with {size} intervals and changes of memory, and {has} {most} at \
                     most: {left}."
                )
            }));
        }
        drawn
    }
}

/// Why not all of a timeline is there.
struct LeftOut {
    rows: usize,
    /// Intervals and changes of memory.
    size: usize,
    /// What is there and what is not, in words.
    left: String,
}

fn size(track: &Track) -> usize {
    track.intervals.len() + track.memory.len()
}

/// What there is of a timeline, and what of it that is if it is not all.
fn part(timeline: &Timeline, most: usize) -> (Cow<'_, Timeline>, Option<LeftOut>) {
    let all: usize = timeline.tracks.iter().map(size).sum();
    if all <= most {
        return (Cow::Borrowed(timeline), None);
    }
    let rounds = rounds(&timeline.tracks);
    let Some(first) = rounds.first() else { return (Cow::Borrowed(timeline), None) };
    let mut chosen: Vec<usize> = vec![];
    let mut left = most;
    for round in &rounds {
        let needed = round.iter().map(|&index| size(&timeline.tracks[index])).sum();
        let Some(less) = left.checked_sub(needed) else { break };
        left = less;
        chosen.extend(round);
    }
    let rows = timeline.tracks.len();
    let told = |left| Some(LeftOut { rows, size: all, left });
    if !chosen.is_empty() {
        let tracks = chosen.iter().map(|&index| timeline.tracks[index].clone()).collect();
        let others = rows - chosen.len();
        let verb = if others == 1 { "is" } else { "are" };
        let left = format!(
            "{} are there, {} {verb} not",
            ranks(&timeline.tracks, &chosen),
            counted(others, "other")
        );
        return (Cow::Owned(Timeline { tracks, ..*timeline }), told(left));
    }
    let end = end_of(first.iter().map(|&index| &timeline.tracks[index]), most);
    let tracks = first.iter().map(|&index| before(&timeline.tracks[index], end)).collect();
    let length = seconds(end.since(first_start(timeline)).seconds());
    let left = format!("only the first {length} of {} are there", ranks(&timeline.tracks, first));
    (Cow::Owned(Timeline { tracks, ..*timeline }), told(left))
}

/// Positions of tracks: the first of every class, the second of every class, and so on; in order in each of these.
fn rounds(tracks: &[Track]) -> Vec<Vec<usize>> {
    let mut met: HashMap<u32, usize> = HashMap::new();
    let mut rounds: Vec<Vec<usize>> = vec![];
    for (index, track) in tracks.iter().enumerate() {
        let round = met.entry(track.class).or_default();
        if *round == rounds.len() {
            rounds.push(vec![]);
        }
        rounds[*round].push(index);
        *round += 1;
    }
    rounds
}

/// Which ranks those at these positions begin with: `ranks 0 to 3, 8 to 11 and 16`.
fn ranks(tracks: &[Track], positions: &[usize]) -> String {
    let mut positions = positions.to_vec();
    positions.sort_unstable();
    let follow = |one: &usize, other: &usize| {
        one + 1 == *other && tracks[*one].class == tracks[*other].class
    };
    let run = |run: &[usize]| {
        let (first, last) = (tracks[run[0]].rank, tracks[run[run.len() - 1]].rank);
        if first == last { first.to_string() } else { format!("{first} to {last}") }
    };
    let mut runs: Vec<String> = positions.chunk_by(follow).map(run).collect();
    let noun = if positions.len() == 1 { "rank" } else { "ranks" };
    let last = runs.pop().unwrap_or_default();
    match runs.len() {
        0 => format!("{noun} {last}"),
        few if few < MOST_NAMED => format!("{noun} {} and {last}", runs.join(", ")),
        _ => format!("{noun} {} and so on to {last}", runs[..MOST_NAMED / 2].join(", ")),
    }
}

/// What of a track begins before a time.
fn before(track: &Track, end: Picos) -> Track {
    let intervals = track.intervals.iter().filter(|it| it.start < end).cloned().collect();
    let memory = track.memory.iter().copied().filter(|&(at, _)| at < end).collect();
    let messages = track.messages.iter().filter(|it| it.interval.start < end).cloned().collect();
    Track { intervals, messages, memory, place: track.place.clone(), ..*track }
}

/// The time before which no more than `most` intervals and changes of memory of these tracks begin.
fn end_of<'a>(tracks: impl Iterator<Item = &'a Track>, most: usize) -> Picos {
    let of_track = |track: &'a Track| {
        let starts = track.intervals.iter().map(|interval| interval.start);
        starts.chain(track.memory.iter().map(|&(at, _)| at))
    };
    let mut times: Vec<Picos> = tracks.flat_map(of_track).collect();
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
        let told = "The predicted timeline has 3 rows with 18 intervals and changes of memory, and a page draws 12 at \
                    most: ranks 0 to 1 are there, 1 other is not.";
        assert_eq!(left_out, [told]);
    }

    /// Three stages of four ranks each, which are whole pipelines one after the other.
    #[test]
    fn ranks_of_all_stages_are_drawn_in_whole_pipelines() {
        let mut timeline = timeline(&[2; 12]);
        for (track, class) in
            timeline.tracks.iter_mut().zip([0, 1, 2].iter().flat_map(|it| [it; 4]))
        {
            track.class = *class;
        }
        let of = |most| {
            let Drawn { timelines, left_out } =
                Drawn::of(&[("predicted", &timeline)], most, "a page draws");
            let tracks = &timelines[0].1.tracks;
            let drawn: Vec<(u32, usize)> = tracks.iter().map(|it| (it.rank, size(it))).collect();
            (drawn, left_out.concat())
        };
        let (drawn, told) = of(30);
        assert_eq!(drawn, [0, 4, 8, 1, 5, 9].map(|rank| (rank, 4)));
        assert!(
            told.ends_with(": ranks 0 to 1, 4 to 5 and 8 to 9 are there, 6 others are not."),
            "{told}"
        );
        // Where there is no room for the first of each, all of them have their first pass.
        let (drawn, told) = of(7);
        assert_eq!(drawn, [0, 4, 8].map(|rank| (rank, 2)));
        assert!(
            told.ends_with(": only the first 10.0 ps of ranks 0, 4 and 8 are there."),
            "{told}"
        );
    }

    #[test]
    fn of_many_stages_not_all_ranks_are_named() {
        let timeline = timeline(&[1; 40]);
        let every_other: Vec<usize> = (0..20).map(|it| 2 * it).collect();
        let named = ranks(&timeline.tracks, &every_other);
        assert_eq!(named, "ranks 0, 2, 4, 6, 8, 10, 12, 14 and so on to 38");
    }

    #[test]
    fn of_a_rank_that_is_too_much_by_itself_the_first_time_is_drawn() {
        let (sizes, left_out) = drawn(&[100, 1], 10);
        assert_eq!(sizes, [10], "five passes, and as many changes of memory");
        assert!(
            left_out[0].ends_with("10 at most: only the first 50.0 ps of rank 0 are there."),
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

    #[test]
    fn as_many_ranks_are_drawn_as_there_is_room_for_and_a_rank_that_just_fits_is() {
        // Each pass is an interval and a change of memory.
        let passes = [3, 2, 4, 1];
        let sizes = passes.map(|it| 2 * it as usize);
        for most in sizes[0]..=sizes.iter().sum() {
            let mut left = most;
            let fits = |size: &&usize| {
                let fits = **size <= left;
                left -= if fits { **size } else { 0 };
                fits
            };
            let expected: Vec<usize> = sizes.iter().take_while(fits).copied().collect();
            let (drawn, left_out) = drawn(&passes, most);
            assert_eq!(drawn, expected, "{most}");
            let end = match sizes.len() - expected.len() {
                0 => None,
                1 => Some("1 other is not."),
                2 => Some("2 others are not."),
                _ => Some("3 others are not."),
            };
            assert_eq!(left_out.len(), usize::from(end.is_some()), "{most}");
            assert!(end.is_none_or(|end| left_out[0].ends_with(end)), "{most}: {left_out:?}");
        }
    }

    #[test]
    fn of_one_rank_after_another_all_that_begins_before_a_time_is_drawn() {
        // Two begin at each time, the pass and the change of memory, and those that begin together stand together.
        for (most, passes) in [(1, 0), (2, 1), (3, 1), (4, 2), (19, 9)] {
            let (sizes, _) = drawn(&[100], most);
            assert_eq!(sizes, [2 * passes], "{most}");
        }
    }
}
