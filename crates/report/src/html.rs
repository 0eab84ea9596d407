//! One self-contained web page about a plan, a simulation or a training run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};
use serde::{Deserialize, Serialize};
use shardloom_program::timeline::{Activity, Timeline};

use crate::drawn::{Drawn, MOST_DRAWN};
use crate::page::{Page, script};
use crate::palette::{ACTIVITIES, look};
use crate::payload::Payload;
use crate::shade::{Part, Parts};
use crate::tables::{capitalised, comparison, ranks, table};
use crate::totals::{Summed, clock_words};

const SCRIPTS: [&str; 4] = [
    include_str!("../html/time_view.js"),
    include_str!("../html/swimlane.js"),
    include_str!("../html/charts.js"),
    include_str!("../html/report.js"),
];
/// uPlot 1.6.32, with its licence, which asks to go along with every copy.
const PLOT_LICENCE: &str = include_str!("../vendor/uplot/LICENSE");
const PLOT_SCRIPT: &str = include_str!("../vendor/uplot/uPlot.iife.min.js");
const PLOT_STYLE: &str = include_str!("../vendor/uplot/uPlot.min.css");

/// Losses after one training step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    /// The step.
    pub step: u64,
    /// The training loss; not-a-number shows as a gap.
    pub train: f64,
    /// The validation loss, on steps that validated.
    pub validation: Option<f64>,
    /// The share of validation samples that a classifier gives the right class, on the same steps.
    #[serde(default)]
    pub accuracy: Option<f64>,
}

/// A table of text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What the table is about.
    pub title: String,
    /// Column headings.
    pub columns: Vec<String>,
    /// Rows of cells; columns in which every cell begins like a number are set to the right.
    pub rows: Vec<Vec<String>>,
}

/// What a page tells. Parts that are empty are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report<'a> {
    /// The page's title.
    pub title: String,
    /// The model, in words.
    pub model: String,
    /// The cluster, in words.
    pub cluster: String,
    /// The plan, as TOML.
    pub plan_toml: String,
    /// What must be known before all else, in sentences: that the plan does not fit.
    pub warnings: Vec<String>,
    /// Names and values of the figures to show first, such as tokens per second. Long values stand below the others.
    pub summary: Vec<(String, String)>,
    /// Losses, in order of step.
    pub losses: Vec<LossPoint>,
    /// The predicted timeline of a step.
    pub predicted: Option<Cow<'a, Timeline>>,
    /// The measured timeline of a step.
    pub measured: Option<Cow<'a, Timeline>>,
    /// Bytes of memory of the device of each rank, or of the first of those that are alike, where that is known.
    pub device_memory: BTreeMap<u32, u64>,
    /// Sentences that explain the plan or the result.
    pub notes: Vec<String>,
    /// Further tables.
    pub tables: Vec<Table>,
}

impl Report<'_> {
    /// The page: one HTML document without references to anything outside itself.
    ///
    /// With a predicted and a measured timeline, both are drawn per rank under each other on one time
    /// axis, each from its own first start, and their totals are compared. Of timelines of very many intervals
    /// some ranks of every stage are drawn, and the page says which; tables are of all.
    ///
    /// # Examples
    ///
    /// ```
    /// use shardloom_report::Report;
    ///
    /// let report = Report { title: "A < B".to_owned(), ..Report::default() };
    /// let page = report.html();
    /// assert!(page.starts_with("<!DOCTYPE html>"));
    /// assert!(page.contains("<h1>A &lt; B</h1>"));
    /// ```
    pub fn html(&self) -> String {
        self.drawing(MOST_DRAWN)
    }

    /// The page, which draws no more than `most` intervals and changes of memory.
    fn drawing(&self, most: usize) -> String {
        let timelines = self.timelines();
        let drawn = Drawn::of(&timelines, most, "a page draws");
        let shown: Vec<(&'static str, &Timeline)> =
            drawn.timelines.iter().map(|(source, timeline)| (*source, timeline.as_ref())).collect();
        let summed: Vec<Summed<'_>> =
            timelines.iter().map(|&(source, timeline)| Summed::of(source, timeline)).collect();
        let payload = Payload::new(&self.losses, &self.device_memory, shown.iter().copied());
        let main = html! {
            (warnings(&self.warnings))
            noscript { p.notice { "The charts need JavaScript; the tables do not." } }
            (figures(&self.summary))
            (notes(&self.notes))
            (comparison(&summed))
            (swimlanes(&shown, &drawn.left_out))
            (memory(&shown))
            (ranks(&summed, &self.device_memory))
            (losses(&self.losses))
            (accuracies(&self.losses))
            @for table in &self.tables { (extra(table)) }
            (plan(&self.plan_toml))
        };
        let scripts = html! {
            script id="data" type="application/json" { (PreEscaped(payload.script_json())) }
            script { "/*\n" (PreEscaped(PLOT_LICENCE)) "*/\n" (PreEscaped(PLOT_SCRIPT)) }
            (script(&SCRIPTS))
        };
        let (header, styles) = (self.facts(&timelines), [PLOT_STYLE, ""]);
        Page { title: &self.title, styles, header, main, scripts }.html()
    }

    fn timelines(&self) -> Vec<(&'static str, &Timeline)> {
        let named = [("predicted", &self.predicted), ("measured", &self.measured)];
        let named = named.into_iter().filter_map(|(name, it)| Some((name, it.as_deref()?)));
        named.collect()
    }

    fn facts(&self, timelines: &[(&str, &Timeline)]) -> Markup {
        html! {
            dl.facts {
                @if !self.model.is_empty() { div { dt { "Model" } dd { (self.model) } } }
                @if !self.cluster.is_empty() { div { dt { "Cluster" } dd { (self.cluster) } } }
                @for (source, timeline) in timelines {
                    div { dt { (capitalised(source)) } dd { (clock_words(timeline.clock)) } }
                }
            }
        }
    }
}

fn warnings(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            section.warning role="alert" { @for warning in warnings { p { (warning) } } }
        }
    }
}

/// The most characters of a value that is set in large type.
const SHORT: usize = 24;

/// Names and values: short ones in boxes, long ones below them.
pub(crate) fn figures(summary: &[(String, String)]) -> Markup {
    let (summary, long): (Vec<_>, Vec<_>) =
        summary.iter().partition(|(_, value)| value.chars().count() <= SHORT);
    let count = summary.len();
    let halved = count.div_ceil(2);
    let wide = if count > 7 { halved } else { count };
    let narrow = if count > 4 { halved } else { count };
    // As many columns as have room for a number each and are all full, the first of an odd number taking two.
    let full = |columns: &usize| count.next_multiple_of(2).is_multiple_of(*columns);
    let small = if count > 4 { [4, 3].into_iter().find(full).unwrap_or(2) } else { count };
    html! {
        @if !summary.is_empty() {
            section aria-label="Summary" {
                dl.figures style={ "--wide:" (wide) ";--narrow:" (narrow) ";--small:" (small) } {
                    @for (name, value) in summary { div { dt { (name) } dd { (value) } } }
                }
            }
        }
        @if !long.is_empty() {
            section aria-label="Further facts" {
                dl.details { @for (name, value) in long { dt { (name) } dd { (value) } } }
            }
        }
    }
}

/// A sentence with what stands between backquotes as code.
fn with_code(sentence: &str) -> Markup {
    let parts: Vec<&str> = sentence.split('`').collect();
    // One that has no other stays as it is.
    let is_paired = parts.len() % 2 == 1;
    html! {
        @if is_paired {
            @for (index, part) in parts.iter().enumerate() {
                @if index % 2 == 1 { code { (part) } } @else { (part) }
            }
        } @else { (sentence) }
    }
}

fn notes(notes: &[String]) -> Markup {
    html! {
        @if !notes.is_empty() {
            section {
                h2 { "Why" }
                ul.notes { @for note in notes { li { (with_code(note)) } } }
            }
        }
    }
}

fn swimlanes(timelines: &[(&str, &Timeline)], left_out: &[String]) -> Markup {
    let occurs = |activity| {
        let tracks = timelines.iter().flat_map(|(_, timeline)| &timeline.tracks);
        tracks.flat_map(|track| &track.intervals).any(|interval| interval.activity == activity)
    };
    let parts = Parts::of(timelines.iter().map(|(_, timeline)| *timeline));
    let swatch = |activity, part, mark: &str| {
        let shade = parts.shade(activity, part);
        let style = format!("background:{};color:{}", shade.background.hex(), shade.ink.hex());
        html! { span.swatch style=(style) { (mark) } }
    };
    html! {
        @if !timelines.is_empty() {
            section.long {
                div.heading {
                    h2 { "Timeline" }
                    div.buttons role="group" aria-label="Zoom of the timeline" {
                        button type="button" data-view="in" { "Zoom in" }
                        button type="button" data-view="out" { "Zoom out" }
                        button type="button" data-view="all" { "Show all" }
                    }
                }
                @if !left_out.is_empty() {
                    p.notice {
                        @for sentence in left_out { (sentence) " " }
                        "Totals and the table of ranks are of all."
                    }
                }
                ul.legend aria-label="Colours" {
                    @for activity in ACTIVITIES {
                        @if occurs(activity) {
                            @let look = look(activity);
                            li { (swatch(activity, Part::default(), &look.letter.to_string())) (look.name) }
                        }
                    }
                    li { span.swatch.idle {} "idle" }
                    @for chunk in 0..parts.chunks {
                        @let part = Part { chunk: Some(chunk), reverse: false };
                        li { (swatch(Activity::Forward, part, &format!("@{chunk}"))) "chunk " (chunk) }
                    }
                    @if parts.reverse {
                        @let part = Part { chunk: None, reverse: true };
                        li { (swatch(Activity::Forward, part, "<")) "pipeline the reverse way" }
                    }
                }
                div #swimlane tabindex="0" role="group" aria-describedby="swimlane-help"
                    aria-label="Timeline of every rank; the table of ranks gives its figures" {}
                p #swimlane-help .help {
                    kbd { "Ctrl" } " (" kbd { "⌘" } " on a Mac) with the wheel zooms, " kbd { "Shift" }
                    " with the wheel or dragging pans, double click shows all. With the keyboard: "
                    kbd { "+" } " " kbd { "−" } " " kbd { "←" } " " kbd { "→" } " " kbd { "0" } "."
                }
            }
        }
    }
}

fn memory(timelines: &[(&str, &Timeline)]) -> Markup {
    let known = |(_, timeline): &(&str, &Timeline)| {
        timeline.tracks.iter().any(|track| !track.memory.is_empty())
    };
    html! {
        @if timelines.iter().any(known) {
            section {
                h2 { "Memory" }
                div #memory .chart {}
                p #memory-help .help {}
            }
        }
    }
}

fn losses(losses: &[LossPoint]) -> Markup {
    html! {
        @if !losses.is_empty() {
            section {
                h2 { "Loss" }
                div #losses .chart {}
                @if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
                    p.help {
                        "Training loss from " (format!("{:.4}", first.train)) " at step " (first.step)
                        " to " (format!("{:.4}", last.train)) " at step " (last.step) "."
                    }
                }
            }
        }
    }
}

fn accuracies(losses: &[LossPoint]) -> Markup {
    let last = losses.iter().rev().find_map(|point| Some((point.step, point.accuracy?)));
    html! {
        @if let Some((step, accuracy)) = last {
            section {
                h2 { "Accuracy" }
                div #accuracies .chart {}
                p.help {
                    "At step " (step) " the model gives " (format!("{:.1}%", 100.0 * accuracy))
                    " of the validation samples their class."
                }
            }
        }
    }
}

fn extra(given: &Table) -> Markup {
    html! {
        section { h2 { (given.title) } (table(&given.title, &given.columns, &given.rows)) }
    }
}

fn plan(toml: &str) -> Markup {
    html! {
        @if !toml.is_empty() {
            section.long {
                h2 { "Plan" }
                pre tabindex="0" role="region" aria-label="Plan as TOML" { code { (toml) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardloom_program::timeline::{Clock, Interval, Picos, Track};

    use super::*;
    use crate::visible::tests::{any_timeline, interval};

    fn timeline(clock: Clock, end: u64) -> Timeline {
        let track = Track {
            rank: 0,
            multiplicity: 2,
            place: "stage 0".to_owned(),
            class: 0,
            is_colocated: false,
            intervals: vec![interval(Activity::Forward, "F0", 0, end)],
            messages: vec![],
            memory: vec![(Picos(0), 1 << 20)],
            peak_bytes: 1 << 20,
            peak_activation_bytes: None,
            peak_absent_gradient_bytes: None,
            sent_bytes: 512,
            class_sent_bytes: None,
        };
        Timeline { clock, tracks: vec![track] }
    }

    fn full() -> Report<'static> {
        Report {
            title: "Run 1".to_owned(),
            model: "gpt".to_owned(),
            cluster: "local".to_owned(),
            plan_toml: "version = 1\n".to_owned(),
            warnings: vec!["Does not fit: rank 0 needs too much.".to_owned()],
            summary: vec![("Tokens per second".to_owned(), "1,234".to_owned())],
            losses: vec![
                LossPoint { step: 1, train: 4.5, validation: None, accuracy: None },
                LossPoint { step: 2, train: 4.25, validation: Some(4.4), accuracy: Some(0.75) },
            ],
            predicted: Some(Cow::Owned(timeline(Clock::Simulated, 2_000_000_000))),
            measured: Some(Cow::Owned(timeline(Clock::Wall, 2_500_000_000))),
            device_memory: BTreeMap::from([(0, 3 << 20)]),
            notes: vec!["Memory limits it.".to_owned()],
            tables: vec![Table {
                title: "Baselines".to_owned(),
                columns: vec!["Name".to_owned(), "Step".to_owned()],
                rows: vec![vec!["zero-3".to_owned(), "12 ms".to_owned()]],
            }],
        }
    }

    /// The text between the first `open` and the `close` after it.
    fn between<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
        let start = text.find(open).unwrap_or_else(|| panic!("no {open} in the page")) + open.len();
        let length = text[start..].find(close).unwrap_or_else(|| panic!("no {close} after {open}"));
        &text[start..start + length]
    }

    #[test]
    fn commands_in_sentences_are_code() {
        let said = |text: &str| with_code(text).into_string();
        assert_eq!(said("run `a <b>` or `c`."), "run <code>a &lt;b&gt;</code> or <code>c</code>.");
        assert_eq!(said("one ` alone"), "one ` alone");
    }

    #[test]
    fn the_page_refers_to_nothing_outside_itself() {
        let page = full().html();
        let addresses: Vec<&str> = page
            .match_indices("://")
            .map(|(at, _)| &page[at.saturating_sub(5)..page.len().min(at + 28)])
            .collect();
        assert_eq!(addresses, ["https://github.com/leeoniya/uPlot"], "only uPlot's own banner");
        for loads in ["<link", "<img", "<iframe", " src=", "@import", "url(", "fetch(", "import("] {
            assert!(!page.contains(loads), "the page contains {loads}");
        }
    }

    #[test]
    fn the_embedded_data_is_the_report_s() {
        let page = full().html();
        let json = between(&page, "<script id=\"data\" type=\"application/json\">", "</script>");
        let data: serde_json::Value = serde_json::from_str(json).expect("embedded JSON parses");
        assert_eq!(data["losses"][1]["validation"], 4.4);
        assert_eq!(data["losses"][1]["accuracy"], 0.75);
        let sources: Vec<_> = data["timelines"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|timeline| (timeline["source"].as_str(), timeline["span"].as_u64()))
            .collect();
        let expected =
            [(Some("predicted"), Some(2_000_000_000)), (Some("measured"), Some(2_500_000_000))];
        assert_eq!(sources, expected);
    }

    #[test]
    fn a_plan_that_does_not_fit_says_so_before_all_else_and_the_chart_knows_the_memory() {
        let page = full().html();
        let main = page.split("<main>").nth(1).expect("a main part");
        let first =
            "<section class=\"warning\" role=\"alert\"><p>Does not fit: rank 0 needs too much.</p>";
        assert!(main.starts_with(first), "{}", &main[..200]);
        let json = between(&page, "<script id=\"data\" type=\"application/json\">", "</script>");
        let data: serde_json::Value = serde_json::from_str(json).expect("embedded JSON parses");
        assert_eq!(data["device_memory"], serde_json::json!([3 << 20]));
    }

    #[test]
    fn long_values_stand_below_in_normal_type() {
        let long = "a sentence that no headline has room for".to_owned();
        let summary = vec![("Software".to_owned(), long), ("Step".to_owned(), "1 ms".to_owned())];
        let page = Report { summary, ..Report::default() }.html();
        let cards = between(&page, "<dl class=\"figures\"", "</dl>");
        assert!(cards.contains("1 ms") && !cards.contains("headline"), "{cards}");
        assert!(between(&page, "<dl class=\"details\">", "</dl>").contains("headline"));
    }

    #[test]
    fn predicted_and_measured_totals_are_compared() {
        let page = full().html();
        let row = between(&page, ">Time</td>", "</tr>");
        let cells: Vec<&str> =
            row.split("</td>").map(|cell| cell.rsplit('>').next().unwrap_or("")).collect();
        assert_eq!(cells, ["2.00 ms", "2.50 ms", "-20.0%", ""]);
    }

    #[test]
    fn nothing_is_no_times_nothing() {
        let mut report = full();
        for timeline in [&mut report.predicted, &mut report.measured].into_iter().flatten() {
            timeline.to_mut().tracks[0].sent_bytes = 0;
        }
        let page = report.html();
        let row = between(&page, ">Sent by all ranks</td>", "</tr>");
        assert!(!row.contains("NaN"), "{row}");
    }

    #[test]
    fn every_given_part_is_on_the_page() {
        let page = full().html();
        for part in [
            "<h1>Run 1</h1>",
            "<dd>gpt</dd>",
            "<dd>local</dd>",
            "<dd>1,234</dd>",
            "Memory limits it.",
            "<code>version = 1\n</code>",
            "<h2>Baselines</h2>",
            "<td class=\"number\" data-name=\"Step\">12 ms</td>",
            "id=\"swimlane\"",
            "id=\"memory\"",
            "id=\"losses\"",
            "id=\"accuracies\"",
            "At step 2 the model gives 75.0% of the validation samples their class.",
            "executed, wall clock",
            "<h2>Ranks, predicted / measured</h2>",
            "The MIT License (MIT)",
        ] {
            assert!(page.contains(part), "the page lacks {part}");
        }
    }

    /// What an observer or a frame draws may come after a picture of the page was taken.
    #[test]
    fn the_timeline_is_drawn_before_anything_is_waited_for() {
        let script = SCRIPTS[1];
        let constructor = between(script, "constructor(", "layOut() {");
        let drawn = constructor.find("this.resize();").expect("it is drawn");
        let waits = ["ResizeObserver", "requestAnimationFrame", "addEventListener(\"beforeprint"];
        for wait in waits {
            assert!(drawn < constructor.find(wait).expect("it waits"), "{wait} is first");
        }
    }

    #[test]
    fn the_page_says_that_zooming_takes_a_key() {
        let page = full().html();
        let help = between(&page, "id=\"swimlane-help\"", "</p>");
        assert!(
            help.contains("<kbd>Ctrl</kbd>") && help.contains("with the wheel zooms"),
            "{help}"
        );
    }

    #[test]
    fn the_legend_explains_chunks_and_directions_where_there_are_any() {
        let legend = |report: &Report<'_>| {
            between(&report.html(), "aria-label=\"Colours\"", "</ul>").to_owned()
        };
        let plain = legend(&full());
        assert!(!plain.contains("chunk") && !plain.contains("reverse"), "{plain}");
        let mut report = full();
        let predicted = report.predicted.as_mut().expect("a timeline");
        let first = &mut predicted.to_mut().tracks[0].intervals[0];
        *first = Interval { label: "F0@1<".to_owned(), chunk: Some(1), ..first.clone() };
        let parts = legend(&report);
        for name in ["chunk 0", "chunk 1", "pipeline the reverse way"] {
            assert!(parts.contains(name), "no {name} in {parts}");
        }
    }

    #[test]
    fn figures_fill_the_rows_that_they_are_laid_out_in() {
        let columns = |count: usize| {
            let summary = vec![("name".to_owned(), "1".to_owned()); count];
            let page = Report { summary, ..Report::default() }.html();
            between(&page, "<dl class=\"figures\" style=\"", "\"").to_owned()
        };
        // Up to 7 in one wide row and up to 4 in a narrow one, else in two; in small ones as many as fill all rows.
        for (count, [wide, narrow, small]) in [
            (1, [1, 1, 1]),
            (2, [2, 2, 2]),
            (3, [3, 3, 3]),
            (4, [4, 4, 4]),
            (5, [5, 3, 3]),
            (6, [6, 3, 3]),
            (7, [7, 4, 4]),
            (8, [4, 4, 4]),
            (9, [5, 5, 2]),
            (10, [5, 5, 2]),
            (11, [6, 6, 4]),
            (12, [6, 6, 4]),
        ] {
            let style = format!("--wide:{wide};--narrow:{narrow};--small:{small}");
            assert_eq!(columns(count), style, "{count} figures");
        }
    }

    #[test]
    fn values_of_24_characters_are_short_and_longer_ones_stand_below() {
        for (length, is_short) in [(1, true), (23, true), (24, true), (25, false), (200, false)] {
            // Characters, however many bytes they have.
            let summary = vec![("Software".to_owned(), "é".repeat(length))];
            let page = Report { summary, ..Report::default() }.html();
            assert_eq!(page.contains("<dl class=\"figures\""), is_short, "{length}");
            assert_eq!(page.contains("<dl class=\"details\">"), !is_short, "{length}");
        }
    }

    /// Of three ranks only the first is drawn.
    #[test]
    fn tables_are_of_all_ranks_where_not_all_are_drawn() {
        let mut all = timeline(Clock::Simulated, 2_000_000_000);
        for (rank, computing) in [(2, 1_000_000_000), (4, 500_000_000)] {
            let mut track = all.tracks[0].clone();
            track.rank = rank;
            track.intervals[0].end = Picos(computing);
            all.tracks.push(track);
        }
        let report = Report { predicted: Some(Cow::Owned(all)), ..Report::default() };
        let ranks = |page: &str| page.matches("data-name=\"Rank\"").count();
        let drawn = |page: &str| -> Vec<u64> {
            let json = between(page, "<script id=\"data\" type=\"application/json\">", "</script>");
            let data: serde_json::Value = serde_json::from_str(json).expect("embedded JSON parses");
            let tracks = data["timelines"][0]["tracks"].as_array().expect("a list").clone();
            tracks.iter().filter_map(|track| track["rank"].as_u64()).collect()
        };
        let (whole, part) = (report.drawing(6), report.drawing(5));
        assert_eq!((drawn(&whole), drawn(&part)), (vec![0, 2, 4], vec![0, 2]));
        let notice =
            "ranks 0 to 2 are there, 1 other is not. Totals and the table of ranks are of all.";
        assert!(part.contains(notice) && !whole.contains("<p class=\"notice\">The predicted"));
        for page in [&whole, &part] {
            assert_eq!(ranks(page), 3);
            // 1, 1/2 and 1/4 of the time.
            assert!(between(page, ">Computing</td>", "</tr>").contains("58.3%"), "{page}");
        }
        assert_eq!(report.html(), whole);
    }

    #[test]
    fn parts_that_are_empty_are_left_out() {
        let page = Report::default().html();
        for part in ["<section", "id=\"swimlane\"", "id=\"memory\"", "id=\"losses\"", "<table"] {
            assert!(!page.contains(part), "an empty report contains {part}");
        }
        // A language model is validated without classes of samples.
        let mut report = full();
        report.losses[1].accuracy = None;
        let page = report.html();
        assert!(page.contains("id=\"losses\"") && !page.contains("id=\"accuracies\""));
    }

    #[test]
    fn markup_in_any_field_is_shown_as_text() {
        let hostile = "</script></style><script>alert('x')</script><b onclick=\"y\">&";
        let text = || hostile.to_owned();
        let mut evil = timeline(Clock::Simulated, 10);
        evil.tracks[0].place = text();
        evil.tracks[0].intervals[0].label = text();
        let report = Report {
            title: text(),
            model: text(),
            cluster: text(),
            plan_toml: text(),
            warnings: vec![text()],
            summary: vec![(text(), text())],
            losses: Vec::new(),
            predicted: Some(Cow::Owned(evil)),
            measured: None,
            device_memory: BTreeMap::new(),
            notes: vec![text()],
            tables: vec![Table { title: text(), columns: vec![text()], rows: vec![vec![text()]] }],
        };
        let page = report.html();
        assert!(!page.contains("alert('x')</script>"));
        assert!(!page.contains("<b onclick"));
        assert_eq!(page.matches("<script").count(), 3);
        assert_eq!(page.matches("</script").count(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_timeline_makes_a_page(one in any_timeline(), other in any_timeline()) {
            let (predicted, measured) = (Some(Cow::Owned(one)), Some(Cow::Owned(other)));
            let report = Report { predicted, measured, ..Report::default() };
            let page = report.html();
            prop_assert!(page.ends_with("</html>"));
            prop_assert_eq!(page.matches("</script").count(), 3);
        }
    }
}
