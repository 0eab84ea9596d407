//! The page's tables: any table, and those that a timeline gives.

use std::collections::BTreeMap;

use maud::{Markup, html};
use shardloom_program::quantity::{bytes, percent, seconds, signed_percent};
use shardloom_program::timeline::{Activity, Timeline, Track};

use crate::totals::{Shares, Summed, Totals};

/// Tables of more columns become lists where there is little room.
const FEW_COLUMNS: usize = 4;

/// Columns with longer texts are broken into lines.
const ONE_LINE: usize = 40;

/// A table that scrolls sideways in itself, reachable with the keyboard.
pub(crate) fn table(label: &str, columns: &[String], rows: &[Vec<String>]) -> Markup {
    let numeric: Vec<bool> = (0..columns.len())
        .map(|column| rows.iter().all(|row| is_number(row.get(column))))
        .collect();
    let is_long = |row: &Vec<String>, column: usize| {
        row.get(column).is_some_and(|cell| cell.chars().count() > ONE_LINE)
    };
    // A sentence may begin with a number.
    let class = |column: usize| match numeric.get(column) {
        _ if rows.iter().any(|row| is_long(row, column)) => Some("prose"),
        Some(true) => Some("number"),
        _ => None,
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table class=[(columns.len() > FEW_COLUMNS).then_some("wide")] {
                thead {
                    tr {
                        @for (column, name) in columns.iter().enumerate() {
                            th scope="col" class=[class(column)] { (name) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (column, cell) in row.iter().enumerate() {
                                td class=[class(column)] data-name=[columns.get(column)] { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a cell begins like a number, perhaps with one that is missing before it, or is empty.
fn is_number(cell: Option<&String>) -> bool {
    let first = cell
        .and_then(|cell| cell.trim_start_matches(['+', '-', '−', '–', ' ', '/']).chars().next());
    first.is_none_or(|c| c.is_ascii_digit())
}

/// The totals of each timeline, and how far the first, predicted, is from the second, measured: as everywhere, errors are of
/// what was measured.
pub(crate) fn comparison(timelines: &[Summed<'_>]) -> Markup {
    let totals: Vec<Totals> = timelines.iter().map(Summed::totals).collect();
    // Of other numbers of steps, as where steps are not drawn apart, sums are not to be compared.
    let passes: Vec<usize> = timelines.iter().map(|it| passes(it.timeline)).collect();
    let both = match (totals.as_slice(), &passes[..]) {
        ([predicted, measured], [one, other]) if one == other => Some((predicted, measured)),
        _ => None,
    };
    // A share differs by points: a change in per cent of a percentage misleads.
    let share = |name: &str, value: fn(&Totals) -> f64| {
        let mut cells = vec![name.to_owned()];
        cells.extend(totals.iter().map(|totals| percent(value(totals))));
        let points = |(it, of)| format!("{:+.1} points", (value(it) - value(of)) * 100.0);
        cells.extend(both.map(points));
        cells
    };
    let amount = |name: &str, value: fn(&Totals) -> f64, show: fn(f64) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(totals.iter().map(|totals| show(value(totals))));
        // Nothing is any number of times zero.
        let change = |(it, of)| match value(of) {
            0.0 => String::new(),
            of => signed_percent(value(it) / of - 1.0),
        };
        cells.extend(both.map(change));
        cells
    };
    let size = |value: f64| bytes(value as u64);
    let mut columns = vec![String::new()];
    columns.extend(timelines.iter().map(|it| capitalised(it.source)));
    columns.extend(both.map(|_| "Predicted against measured".to_owned()));
    let rows = vec![
        amount("Time", |totals| totals.step_seconds, seconds),
        share("Computing", |totals| totals.busy_fraction),
        share("Waiting for others", |totals| totals.dependency_idle_fraction),
        share("Communication not hidden by computing", |totals| totals.exposed_fraction),
        amount("Highest peak memory of a rank", |totals| totals.peak_bytes as f64, size),
        amount("Sent by all ranks", |totals| totals.sent_bytes as f64, size),
    ];
    html! {
        @if !timelines.is_empty() {
            section {
                h2 { "What is drawn" }
                (table("Totals of what is drawn", &columns, &rows))
            }
        }
    }
}

/// What a table says of a track that has such shares of its timeline.
type ValueOf = fn(&Track, Shares) -> String;

/// The most forward passes that a rank has in a timeline.
fn passes(timeline: &Timeline) -> usize {
    let forward = |track: &Track| {
        track.intervals.iter().filter(|it| it.activity == Activity::Forward).count()
    };
    timeline.tracks.iter().map(forward).max().unwrap_or(0)
}

/// What each rank does and holds in what is drawn, of each timeline side by side: the swimlane for those who read.
pub(crate) fn ranks(timelines: &[Summed<'_>], device_memory: &BTreeMap<u32, u64>) -> Markup {
    let values: [(&str, ValueOf); 6] = [
        ("Computing", |_, shares| percent(shares.busy)),
        ("Exposed communication", |_, shares| percent(shares.exposed)),
        ("Idle", |_, shares| percent(shares.idle)),
        ("Communicating for", |track, _| seconds(track.communicating().seconds())),
        ("Peak memory", |track, _| bytes(track.peak_bytes)),
        ("Sent", |track, _| bytes(track.sent_bytes)),
    ];
    // By rank the track of each timeline, as far as it has one that begins with that rank.
    let mut by_rank: BTreeMap<u32, Vec<Option<(&Track, Shares)>>> = BTreeMap::new();
    for (index, it) in timelines.iter().enumerate() {
        for (track, shares) in it.timeline.tracks.iter().zip(&it.shares) {
            let tracks = by_rank.entry(track.rank).or_insert_with(|| vec![None; timelines.len()]);
            tracks[index] = Some((track, *shares));
        }
    }
    let known = !device_memory.is_empty();
    let mut columns = ["Rank", "Ranks alike", "Place"].map(str::to_owned).to_vec();
    columns.extend(values.iter().map(|(name, _)| (*name).to_owned()));
    columns.extend(known.then(|| "Memory of the device".to_owned()));
    let row = |(rank, tracks): (&u32, &Vec<Option<(&Track, Shares)>>)| {
        let any = tracks.iter().flatten().next().map(|(track, _)| track);
        let mut row = vec![rank.to_string()];
        row.push(any.map(|track| track.multiplicity.to_string()).unwrap_or_default());
        row.push(any.map(|track| track.place.clone()).unwrap_or_default());
        for (_, value) in values {
            let of_timeline = |track: &Option<(&Track, Shares)>| {
                track.map_or_else(|| "–".to_owned(), |(track, shares)| value(track, shares))
            };
            let of_timelines: Vec<String> = tracks.iter().map(of_timeline).collect();
            row.push(of_timelines.join(" / "));
        }
        let memory = device_memory.get(rank).map(|&size| bytes(size));
        row.extend(known.then(|| memory.unwrap_or_default()));
        row
    };
    let rows: Vec<Vec<String>> = by_rank.iter().map(row).collect();
    let sources: Vec<&str> = timelines.iter().map(|it| it.source).collect();
    let title = format!("Ranks, {}", sources.join(" / "));
    html! {
        @if !timelines.is_empty() {
            section.long {
                details open[rows.len() <= 32] {
                    summary { h2 { (title) } }
                    (table(&title, &columns, &rows))
                }
            }
        }
    }
}

/// `word` with its first letter in upper case.
pub(crate) fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use shardloom_program::timeline::{Clock, Interval, Lane, Picos};

    use super::*;

    /// Two equal ranks that compute so long, in microseconds, and then communicate until the end.
    fn timeline(clock: Clock, computing: u64, end: u64, sent_bytes: u64) -> Timeline {
        let interval = |lane, activity, start: u64, end: u64| Interval {
            lane,
            activity,
            label: "it".to_owned(),
            microbatch: None,
            chunk: None,
            start: Picos(start * 1_000_000),
            end: Picos(end * 1_000_000),
        };
        let track = Track {
            multiplicity: 2,
            intervals: vec![
                interval(Lane::Compute, Activity::Forward, 0, computing),
                interval(Lane::CommunicationIn, Activity::Collective, computing, end),
            ],
            peak_bytes: 1 << 20,
            sent_bytes,
            ..Track::default()
        };
        Timeline { clock, tracks: vec![track] }
    }

    /// The texts of the cells of each row.
    fn cells(markup: &str) -> Vec<Vec<String>> {
        let text = |cell: &str| {
            let (_, text) = cell.split_once('>').unwrap_or_default();
            text.split_once('<').unwrap_or_default().0.to_owned()
        };
        let row = |row: &str| row.split("<td").skip(1).map(text).collect();
        markup.split("<tr>").skip(2).map(row).collect()
    }

    #[test]
    fn the_first_timeline_is_set_against_the_second() {
        let predicted = timeline(Clock::Simulated, 60, 100, 512);
        let measured = timeline(Clock::Wall, 90, 200, 768);
        let both = [Summed::of("predicted", &predicted), Summed::of("measured", &measured)];
        let expected = [
            ["Time", "100 µs", "200 µs", "-50.0%"],
            ["Computing", "60.0%", "45.0%", "+15.0 points"],
            ["Waiting for others", "0.0%", "0.0%", "+0.0 points"],
            ["Communication not hidden by computing", "40.0%", "55.0%", "-15.0 points"],
            ["Highest peak memory of a rank", "1.00 MiB", "1.00 MiB", "+0.0%"],
            ["Sent by all ranks", "1.00 KiB", "1.50 KiB", "-33.3%"],
        ];
        assert_eq!(cells(&comparison(&both).into_string()), expected);
        // Nor is it against one of more steps, one after the other.
        let mut longer = measured.clone();
        let forward = longer.tracks[0].intervals[0].clone();
        longer.tracks[0].intervals.push(forward);
        let apart = [Summed::of("predicted", &predicted), Summed::of("measured", &longer)];
        let apart = cells(&comparison(&apart).into_string());
        assert!(apart.iter().all(|row| row.len() == 3), "{apart:?}");
        // One alone is set against nothing.
        let alone = cells(&comparison(&both[..1]).into_string());
        assert_eq!(alone, expected.map(|row| row[..2].to_vec()));
    }

    #[test]
    fn a_rank_is_one_row_with_predicted_and_measured_side_by_side() {
        let predicted = timeline(Clock::Simulated, 60, 100, 512);
        let mut measured = timeline(Clock::Wall, 90, 200, 768);
        let second = Track { rank: 1, ..measured.tracks[0].clone() };
        measured.tracks.push(second);
        let memory = BTreeMap::from([(0, 4 << 20)]);
        let both = [Summed::of("predicted", &predicted), Summed::of("measured", &measured)];
        let both = ranks(&both, &memory);
        let rows = cells(&both.into_string());
        let first = [
            "0",
            "2",
            "",
            "60.0% / 45.0%",
            "40.0% / 55.0%",
            "0.0% / 0.0%",
            "40.0 µs / 110 µs",
            "1.00 MiB / 1.00 MiB",
            "512 B / 768 B",
            "4.00 MiB",
        ];
        assert_eq!(rows[0], first);
        assert_eq!(rows.len(), 2, "one row for each rank");
        assert_eq!((rows[1][0].as_str(), rows[1][3].as_str()), ("1", "– / 45.0%"));
        // Memory that is not known has no column.
        let alone = ranks(&[Summed::of("predicted", &predicted)], &BTreeMap::new());
        let alone = alone.into_string();
        assert!(alone.contains(">Ranks, predicted</h2>") && !alone.contains("of the device"));
    }

    /// Where there is little room a row is a list of its cells.
    #[test]
    fn cells_carry_the_names_of_their_columns_and_tables_of_many_are_wide() {
        let of = |count: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("c{at}")).collect();
            table("t", &names, &[vec!["1".to_owned(); count]]).into_string()
        };
        assert!(of(4).contains("<table><thead>"));
        assert!(of(5).contains("<table class=\"wide\">"));
        assert!(of(5).contains("<td class=\"number\" data-name=\"c4\">1</td>"));
    }

    #[test]
    fn a_column_is_numeric_when_all_its_cells_are() {
        let rows = [vec!["1 ms".to_owned(), "-3".to_owned()], vec!["a".to_owned(), String::new()]];
        let markup = table("t", &["a".to_owned(), "b".to_owned()], &rows).into_string();
        assert!(
            markup.contains("<th scope=\"col\">a</th><th scope=\"col\" class=\"number\">b</th>")
        );
    }

    #[test]
    fn a_column_of_sentences_is_not_numeric_though_they_begin_with_numbers() {
        let cell = format!("8 devices{}", ", and what they do".repeat(3));
        let markup = table("t", &["a".to_owned()], &[vec![cell]]).into_string();
        assert!(markup.contains("<th scope=\"col\" class=\"prose\">a</th>"), "{markup}");
    }
}
