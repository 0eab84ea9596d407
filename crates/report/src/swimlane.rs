//! A timeline as text: one row per rank, time from left to right.

use std::collections::{BTreeSet, HashMap};

use shardloom_program::quantity::{percent, seconds};
use shardloom_program::timeline::{Activity, Interval, Picos, Timeline, Track};

use crate::label::{printable, shortened};
use crate::legend::{Style, legend, subscript};
use crate::palette::{self, Colour, IDLE, look};
use crate::shade::{Part, Parts, is_pass};
use crate::totals::{Summed, clock_words, first_start};
use crate::visible::{Segment, visible};

/// The fewest columns of time that are drawn, however narrow the terminal.
const NARROWEST_PLOT: usize = 10;

/// Draws `timeline` in lines of at most `width` characters (more only where `width` leaves less
/// than ten columns for time), followed by a time axis, the totals and a legend.
///
/// Every rank is one row; a folded class of ranks is one row marked `×` and how many it stands for.
/// Each column shows what fills most of it; passes that overlap, piece by piece, take columns in
/// proportion to their time. Communication is shown where no computing hides it.
/// A block carries its label where that fits, else its letter with micro-batch and chunk, else its
/// letter, which is small for the reverse direction; later chunks are paler, and the reverse direction is
/// dark. The figure at the end of a row is the share of time in which its compute lane is busy.
///
/// # Examples
///
/// ```
/// use shardloom_program::timeline::{Activity, Clock, Interval, Lane, Picos, Timeline, Track};
/// use shardloom_report::{Colour, swimlane};
///
/// let forward = Interval {
///     lane: Lane::Compute,
///     activity: Activity::Forward,
///     label: "F0".to_owned(),
///     microbatch: Some(0),
///     chunk: None,
///     start: Picos(0),
///     end: Picos(2_000_000_000),
/// };
/// let backward = Interval {
///     activity: Activity::Backward,
///     label: "B0".to_owned(),
///     start: Picos(4_000_000_000),
///     end: Picos(8_000_000_000),
///     ..forward.clone()
/// };
/// let track = Track { multiplicity: 1, intervals: vec![forward, backward], ..Track::default() };
/// let timeline = Timeline { clock: Clock::Simulated, tracks: vec![track] };
/// let text = swimlane(&timeline, 27, Colour::Plain);
/// assert!(text.starts_with("0 │F0░░····B0▓▓▓▓▓▓│"));
/// ```
pub fn swimlane(timeline: &Timeline, width: usize, colour: Colour) -> String {
    if timeline.tracks.is_empty() {
        return "empty timeline: no ranks\n".to_owned();
    }
    let span = Span::of(timeline);
    let headings = headings(timeline, width);
    let heading_width = headings.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    // Around the plot: " │" before, "│ 100.0%" after.
    let plot_width = width.saturating_sub(heading_width + 10).max(NARROWEST_PLOT);

    let parts = Parts::of(std::iter::once(timeline));
    let mut text = String::new();
    let summed = Summed::of("drawn", timeline);
    let tracks = timeline.tracks.iter().zip(&summed.shares);
    for ((track, shares), heading) in tracks.zip(&headings) {
        let padding = " ".repeat(heading_width - heading.chars().count());
        text.push_str(&format!("{heading}{padding} │"));
        draw_row(track, span, (plot_width, parts), colour, &mut text);
        let busy = percent(shares.busy);
        text.push_str(&format!("│ {busy:>6}\n"));
    }
    let axis = axis(span.length(), plot_width);
    palette::dim(&format!("{}  {axis}", " ".repeat(heading_width)), colour, &mut text);
    text.push('\n');
    text.push_str(&totals_line(&summed));
    let intervals = timeline.tracks.iter().flat_map(|track| &track.intervals);
    let occurring: BTreeSet<Activity> = intervals.map(|interval| interval.activity).collect();
    text + &legend(|activity| occurring.contains(&activity), parts, Style::Blocks, colour)
}

/// The stretch of time that is drawn.
#[derive(Clone, Copy)]
struct Span {
    start: Picos,
    end: Picos,
}

impl Span {
    fn of(timeline: &Timeline) -> Span {
        let start = first_start(timeline);
        Span { start, end: start + timeline.makespan() }
    }

    fn length(self) -> Picos {
        self.end.since(self.start)
    }

    /// When column `column` of `columns` begins; `columns` itself gives the end.
    fn edge(self, column: usize, columns: usize) -> Picos {
        let offset = u128::from(self.length().0) * column as u128 / columns as u128;
        // The quotient is at most the length, which is a u64.
        self.start + Picos(offset as u64)
    }
}

/// `rank ×multiplicity place` of every track, aligned, places cut to a third of the width.
fn headings(timeline: &Timeline, width: usize) -> Vec<String> {
    let ranks: Vec<String> = timeline
        .tracks
        .iter()
        .map(|track| match track.multiplicity {
            1 => track.rank.to_string(),
            many => format!("{} ×{many}", track.rank),
        })
        .collect();
    let rank_width = ranks.iter().map(|rank| rank.chars().count()).max().unwrap_or(0);
    let place_width = (width / 3).saturating_sub(rank_width + 1);
    let joined = ranks.iter().zip(&timeline.tracks).map(|(rank, track)| {
        let place = shortened(&printable(&track.place), place_width);
        let padding = " ".repeat(rank_width - rank.chars().count());
        format!("{rank}{padding} {place}").trim_end().to_owned()
    });
    joined.collect()
}

fn draw_row(
    track: &Track,
    span: Span,
    (columns, parts): (usize, Parts),
    colour: Colour,
    into: &mut String,
) {
    let shown = column_intervals(track, span, columns);
    // A pass that communication divides is one block where that is too short to be shown.
    let same = |one: &Option<usize>, other: &Option<usize>| {
        let named = |index: usize| {
            let it = &track.intervals[index];
            (it.activity, it.label.as_str(), it.microbatch, it.chunk)
        };
        one.map(named) == other.map(named)
    };
    for run in shown.chunk_by(same) {
        match run[0] {
            Some(index) => {
                let interval = &track.intervals[index];
                let shade = parts.shade(interval.activity, Part::of(interval));
                shade.paint(&block(interval, run.len(), colour), colour, into);
            }
            None => palette::dim(&IDLE.to_string().repeat(run.len()), colour, into),
        }
    }
}

/// For every column the interval that it shows, by position in the track.
fn column_intervals(track: &Track, span: Span, columns: usize) -> Vec<Option<usize>> {
    let segments = visible(track);
    let mut first = 0;
    let mut passes = Passes::default();
    let mut shown = Vec::with_capacity(columns);
    for column in 0..columns {
        let (start, end) = (span.edge(column, columns), span.edge(column + 1, columns));
        while segments.get(first).is_some_and(|segment| segment.end <= start) {
            first += 1;
        }
        let inside = segments[first..].iter().take_while(|segment| segment.start < end);
        shown.push(fullest(inside, start, end, &mut passes));
    }
    shown
}

/// Decides first between computing, communicating and idling, each with all its time together, so
/// that a column of many short passes does not look idle; then for the pass with the most time that is
/// not shown yet, or the longest communication.
fn fullest<'a>(
    segments: impl Iterator<Item = &'a Segment<'a>>,
    start: Picos,
    end: Picos,
    passes: &mut Passes<'a>,
) -> Option<usize> {
    let mut communication = Share::default();
    let mut compute: Vec<(&str, Share)> = vec![];
    // A column of a long run has thousands of passes.
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for segment in segments {
        let inside = segment.end.min(end).since(segment.start.max(start));
        let label = segment.interval.label.as_str();
        let share = match segment.is_compute() {
            false => &mut communication,
            true => {
                let position = *positions.entry(label).or_insert(compute.len());
                if position == compute.len() {
                    compute.push((label, Share::default()));
                }
                &mut compute[position].1
            }
        };
        share.total += inside;
        if inside > share.longest {
            share.longest = inside;
            share.index = Some(segment.index);
        }
    }
    let computing = compute.iter().fold(Picos::ZERO, |sum, (_, share)| sum + share.total);
    let idle = end.since(start).since(computing + communication.total);
    let most = passes.most(&compute, computing);
    if computing >= communication.total && computing >= idle {
        most
    } else if communication.total >= idle {
        communication.index
    } else {
        None
    }
}

/// Time in a column, and the interval with the most of it.
#[derive(Default)]
struct Share {
    total: Picos,
    longest: Picos,
    index: Option<usize>,
}

/// Passes that take turns in column after column, as overlapped ones do, and how much of each columns
/// have failed to show so far, or shown too much: so that each gets columns in proportion to its time.
#[derive(Default)]
struct Passes<'a> {
    unshown: HashMap<&'a str, i128>,
}

impl<'a> Passes<'a> {
    /// The interval to show of passes that fill a column with `computing` together.
    fn most(&mut self, column: &[(&'a str, Share)], computing: Picos) -> Option<usize> {
        let due = |(label, share): &(&'a str, Share)| {
            self.unshown.get(label).copied().unwrap_or(0) + i128::from(share.total.0)
        };
        let mut dues: Vec<i128> = column.iter().map(due).collect();
        let most = *dues.iter().max()?;
        let shown = dues.iter().position(|&due| due == most)?;
        dues[shown] -= i128::from(computing.0);
        self.unshown.clear();
        // A pass that has a column to itself owes nothing and is owed nothing.
        if column.len() > 1 {
            self.unshown.extend(column.iter().map(|(label, _)| *label).zip(dues));
        }
        column[shown].1.index
    }
}

/// `width` characters for a block of `interval`: the best label that fits, then its fill. Of a pass the
/// short ones have the chunk in small figures, and a small letter for the reverse direction.
fn block(interval: &Interval, width: usize, colour: Colour) -> String {
    let look = look(interval.activity);
    let part = Part::of(interval);
    let letter = match part.reverse {
        true => look.letter.to_lowercase().to_string(),
        false => look.letter.to_string(),
    };
    let chunk = match is_pass(interval.activity) {
        true => part.chunk.map(subscript).unwrap_or_default(),
        false => String::new(),
    };
    let microbatch = interval.microbatch.map(|it| it.to_string()).unwrap_or_default();
    let candidates = [
        printable(&interval.label),
        format!("{letter}{microbatch}{chunk}"),
        format!("{letter}{chunk}"),
    ];
    let label = candidates
        .into_iter()
        .find(|text| !text.is_empty() && text.chars().count() <= width)
        .unwrap_or(letter);
    let fill = if colour == Colour::Ansi { ' ' } else { look.fill };
    let rest = width - label.chars().count();
    label + &fill.to_string().repeat(rest)
}

/// Times under the plot: as many of its quarters as fit, always with both ends.
fn axis(length: Picos, columns: usize) -> String {
    let parts = if columns >= 60 { 4 } else { 1 };
    let mut line = "0".to_owned();
    for part in 1..=parts {
        let time = seconds(length.seconds() * part as f64 / parts as f64);
        let column = columns * part / parts;
        let gap = column.saturating_sub(line.chars().count() + time.chars().count());
        line.push_str(&" ".repeat(gap));
        line.push_str(&time);
    }
    line
}

fn totals_line(summed: &Summed<'_>) -> String {
    let (totals, timeline) = (summed.totals(), summed.timeline);
    format!(
        "drawn {} · busy {} · waiting for others {} · exposed communication {} · {}\n",
        seconds(totals.step_seconds),
        percent(totals.busy_fraction),
        percent(totals.dependency_idle_fraction),
        percent(totals.exposed_fraction),
        clock_words(timeline.clock),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardloom_program::timeline::Clock;

    use super::*;
    use crate::palette::ACTIVITIES;
    use crate::visible::tests::{any_timeline, interval};

    fn track(rank: u32, place: &str, intervals: Vec<Interval>) -> Track {
        Track { rank, multiplicity: 1, place: place.to_owned(), intervals, ..Track::default() }
    }

    fn simulated(tracks: Vec<Track>) -> Timeline {
        Timeline { clock: Clock::Simulated, tracks }
    }

    /// One-forward-one-backward on two stages with three micro-batches, in milliseconds.
    fn one_forward_one_backward() -> Timeline {
        let ms = 1_000_000_000;
        let pass =
            |activity, label, start: u64, end: u64| interval(activity, label, start * ms, end * ms);
        use Activity::{Backward, Collective, Forward, Receive, Send, Update};
        let first = vec![
            pass(Forward, "F0", 0, 4),
            pass(Send, "send F0", 4, 5),
            pass(Forward, "F1", 4, 8),
            pass(Backward, "B0", 17, 25),
            pass(Forward, "F2", 25, 29),
            pass(Backward, "B1", 30, 38),
            pass(Backward, "B2", 43, 51),
            pass(Collective, "all-reduce", 46, 55),
            pass(Update, "update", 55, 57),
        ];
        let second = vec![
            pass(Receive, "recv F0", 4, 5),
            pass(Forward, "F0", 5, 9),
            pass(Backward, "B0", 9, 17),
            pass(Forward, "F1", 17, 21),
            pass(Backward, "B1", 21, 29),
            pass(Forward, "F2", 30, 34),
            pass(Backward, "B2", 34, 42),
            pass(Update, "update", 42, 44),
        ];
        let mut timeline =
            simulated(vec![track(0, "stage 0, dp 0", first), track(8, "stage 1, dp 0", second)]);
        timeline.tracks[0].multiplicity = 8;
        timeline.tracks[1].multiplicity = 8;
        timeline
    }

    #[test]
    fn one_forward_one_backward_in_plain_text() {
        insta::assert_snapshot!(swimlane(&one_forward_one_backward(), 110, Colour::Plain));
    }

    #[test]
    fn one_forward_one_backward_in_a_narrow_terminal() {
        insta::assert_snapshot!(swimlane(&one_forward_one_backward(), 50, Colour::Plain));
    }

    #[test]
    fn one_forward_one_backward_in_colour() {
        let text = swimlane(&one_forward_one_backward(), 60, Colour::Ansi);
        insta::assert_snapshot!(text.replace('\x1b', "ESC"));
    }

    #[test]
    fn every_activity_in_plain_text() {
        let all = ACTIVITIES.iter().zip(0..).map(|(&activity, at)| {
            interval(activity, look(activity).name, at * 16_000, at * 16_000 + 15_000)
        });
        let timeline = simulated(vec![track(0, "", all.collect())]);
        insta::assert_snapshot!(swimlane(&timeline, 138, Colour::Plain));
    }

    #[test]
    fn overlapped_passes_are_both_shown_in_proportion() {
        let piece = |at: u64| match at % 3 {
            2 => interval(Activity::Forward, "F1", at, at + 1),
            _ => interval(Activity::Backward, "B0", at, at + 1),
        };
        // Ten pieces to a column: twice as much of the one as of the other.
        let timeline = simulated(vec![track(0, "", (0..300).map(piece).collect())]);
        let text = swimlane(&timeline, 41, Colour::Plain);
        let row = text.lines().next().unwrap_or_default();
        // Two columns beside each other are one block, with its number.
        let plot = row.split('│').nth(1).unwrap_or_default();
        let count = |letter| plot.chars().filter(|&it| it == letter).count();
        assert_eq!((plot.chars().count(), count('F')), (30, 10), "{row}");
        assert!(plot.contains("B0") && !plot.contains("B0▓") && !plot.contains("FF"), "{row}");
    }

    #[test]
    fn ranks_that_do_the_same_are_counted_from_two_on() {
        let mut timeline = simulated([0, 1, 3].map(|rank| track(rank, "it", vec![])).into());
        for (track, multiplicity) in timeline.tracks.iter_mut().zip([1, 2, 4]) {
            track.multiplicity = multiplicity;
        }
        assert_eq!(headings(&timeline, 60), ["0    it", "1 ×2 it", "3 ×4 it"]);
    }

    /// Two devices with two chunks each, or with a stage of a pipeline each way.
    fn several_stages(labels: [&str; 4]) -> Timeline {
        let activities = [Activity::Forward, Activity::BackwardInput];
        let passes = labels.iter().zip(0u64..).map(|(label, at)| {
            let activity = activities[(at / 2) as usize];
            let chunk = Part::of_pass(label).chunk;
            Interval { chunk, ..interval(activity, label, at * 10_000, at * 10_000 + 8_000) }
        });
        simulated(vec![track(0, "", passes.collect())])
    }

    #[test]
    fn chunks_and_directions_are_told_apart_however_narrow_the_blocks() {
        let chunks = several_stages(["F3@0", "F3@1", "I3@1", "I3@0"]);
        let ways = several_stages(["F3", "F3<", "I3", "I3<"]);
        let rows = |width, colour| {
            let text = [&chunks, &ways].map(|timeline| swimlane(timeline, width, colour));
            text.concat()
        };
        for (name, width) in [("wide", 64), ("narrow", 21)] {
            insta::assert_snapshot!(format!("parts_{name}"), rows(width, Colour::Plain));
        }
        insta::assert_snapshot!("parts_colour", rows(40, Colour::Ansi).replace('\x1b', "ESC"));
    }

    #[test]
    fn a_pass_in_pieces_is_one_block_with_its_number() {
        let piece =
            |at: u64| interval(Activity::Forward, &format!("F{}", at / 4), 10 * at, 10 * at + 9);
        let timeline = simulated(vec![track(0, "", (0..8).map(piece).collect())]);
        let text = swimlane(&timeline, 20 + 8, Colour::Plain);
        let row = text.lines().next().unwrap_or_default();
        assert!(row.contains("│F0░░░░") && row.contains("░F1░░░░"), "{row}");
    }

    #[test]
    fn quarters_have_their_times_from_sixty_columns_on() {
        let times = |columns| axis(Picos(4_000_000_000), columns).matches("ms").count();
        assert_eq!([10, 59, 60, 61, 200].map(times), [1, 1, 4, 4, 4]);
    }

    #[test]
    fn a_timeline_without_ranks_says_so() {
        let text = swimlane(&simulated(Vec::new()), 80, Colour::Plain);
        assert_eq!(text, "empty timeline: no ranks\n");
    }

    #[test]
    fn a_column_of_many_short_passes_does_not_look_idle() {
        let passes = (0..10).map(|n| interval(Activity::Forward, "F", n * 10, n * 10 + 6));
        let timeline = simulated(vec![track(0, "", passes.collect())]);
        let shown = column_intervals(&timeline.tracks[0], Span::of(&timeline), 1);
        assert!(shown[0].is_some(), "60% of the column is busy, in pieces of 6%");
    }

    #[test]
    fn communication_shows_only_where_nothing_computes() {
        let timeline = simulated(vec![track(
            0,
            "",
            vec![
                interval(Activity::Collective, "≈", 0, 100),
                interval(Activity::Backward, "B0", 0, 50),
            ],
        )]);
        let text = swimlane(&timeline, 21, Colour::Plain);
        assert_eq!(text.lines().next(), Some("0 │B0▓▓▓≈≈≈≈≈│  50.0%"));
    }

    fn without_escapes(text: &str) -> String {
        let mut parts = text.split("\x1b[");
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once('m').expect("a colour sequence ends in m").1);
        rest.fold(first, |text, part| text + part)
    }

    proptest! {
        #[test]
        fn rows_of_any_timeline_are_as_wide_as_asked(timeline in any_timeline(), width in 0..200usize) {
            for colour in [Colour::Plain, Colour::Ansi] {
                let text = without_escapes(&swimlane(&timeline, width, colour));
                let rows: Vec<&str> = text.lines().take(timeline.tracks.len()).collect();
                for row in rows.into_iter().filter(|_| !timeline.tracks.is_empty()) {
                    let (before, rest) = row.split_once('│').expect("a border before the plot");
                    let (plot, _) = rest.rsplit_once('│').expect("a border after the plot");
                    let least = before.chars().count() + NARROWEST_PLOT + "││ 100.0%".chars().count();
                    prop_assert!(plot.chars().count() >= NARROWEST_PLOT);
                    prop_assert_eq!(row.chars().count(), width.max(least), "{}", row);
                }
            }
        }

        #[test]
        fn every_column_shows_an_interval_that_reaches_into_it(
            timeline in any_timeline(), columns in 1..100usize
        ) {
            let span = Span::of(&timeline);
            prop_assert_eq!(span.edge(0, columns), span.start);
            prop_assert_eq!(span.edge(columns, columns), span.end);
            for track in &timeline.tracks {
                for interval in &track.intervals {
                    prop_assert!(span.start <= interval.start && interval.end <= span.end);
                }
                for (column, shown) in column_intervals(track, span, columns).iter().enumerate() {
                    if let Some(index) = shown {
                        let interval = &track.intervals[*index];
                        prop_assert!(interval.start < span.edge(column + 1, columns));
                        prop_assert!(interval.end > span.edge(column, columns));
                    }
                }
            }
        }
    }

    /// As wide as the block, and by one column narrower.
    #[test]
    fn a_block_has_the_best_label_that_fits() {
        let mut pass = interval(Activity::Forward, "forward 12", 0, 1);
        pass.chunk = Some(1);
        let drawn = |width| block(&pass, width, Colour::Plain);
        assert_eq!(drawn(11), "forward 12░");
        assert_eq!(drawn(10), "forward 12");
        assert_eq!(drawn(9), "F12₁░░░░░");
        assert_eq!(drawn(4), "F12₁");
        assert_eq!(drawn(3), "F₁░");
        assert_eq!(drawn(2), "F₁");
        assert_eq!(drawn(1), "F");
        assert_eq!(block(&pass, 3, Colour::Ansi), "F₁ ");
        // The reverse way in small letters, and chunks of passes alone.
        pass.label = "F0<".repeat(9);
        assert_eq!(drawn_of(&pass), "f12₁");
        pass.activity = Activity::Update;
        assert_eq!(drawn_of(&pass), "U12█");
        pass.microbatch = None;
        assert_eq!(drawn_of(&pass), "U███");
    }

    fn drawn_of(interval: &Interval) -> String {
        block(interval, 4, Colour::Plain)
    }

    #[test]
    fn names_cannot_move_the_cursor_of_a_terminal() {
        let evil = interval(Activity::Forward, "\x1b[2J\n\t\x07", 0, 1000);
        let timeline = simulated(vec![track(0, "\x1b[1m", vec![evil])]);
        for colour in [Colour::Plain, Colour::Ansi] {
            let text = without_escapes(&swimlane(&timeline, 60, colour));
            let row = text.lines().next().expect("a row");
            assert!(row.contains("\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}"), "{row:?}");
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}
