//! What the page's scripts draw from: timelines and losses in the shape of JSON they read.
//!
//! Intervals are columns of numbers and labels are pooled, so that a hundred thousand of them make a
//! few megabytes. Times are picoseconds since the timeline's first start.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use shardloom_program::timeline::{Activity, Lane, Picos, Timeline, Track};

use crate::html::LossPoint;
use crate::palette::{ACTIVITIES, look};
use crate::shade::{Part, Parts};
use crate::stacking::stack;
use crate::totals::first_start;

/// Everything the scripts of one page read.
#[derive(Debug, Serialize)]
pub(crate) struct Payload<'a> {
    kinds: Vec<Kind>,
    parts: Parts,
    losses: &'a [LossPoint],
    /// The different sizes of the devices' memories, in bytes.
    device_memory: BTreeSet<u64>,
    timelines: Vec<TimelineColumns<'a>>,
}

/// An activity, by position in the list that `LaneColumns::kind` refers to.
#[derive(Debug, Serialize)]
struct Kind {
    name: &'static str,
    letter: char,
    /// Background and text for each chunk, of pipelines that run forwards and then of those in reverse.
    shades: [Vec<[String; 2]>; 2],
}

impl Kind {
    fn of(activity: Activity, parts: Parts) -> Kind {
        let look = look(activity);
        let shade = |chunk, reverse| {
            let shade = parts.shade(activity, Part { chunk: Some(chunk), reverse });
            [shade.background.hex(), shade.ink.hex()]
        };
        let shades = [false, true]
            .map(|reverse| (0..parts.chunks.max(1)).map(|chunk| shade(chunk, reverse)).collect());
        Kind { name: look.name, letter: look.letter, shades }
    }
}

#[derive(Debug, Serialize)]
struct TimelineColumns<'a> {
    source: &'static str,
    /// From the first start to the last end.
    span: u64,
    labels: Vec<&'a str>,
    tracks: Vec<TrackColumns<'a>>,
}

#[derive(Debug, Serialize)]
struct TrackColumns<'a> {
    rank: u32,
    multiplicity: u64,
    place: &'a str,
    peak_bytes: u64,
    lanes: Vec<LaneColumns>,
    memory_at: Vec<u64>,
    memory_bytes: Vec<u64>,
}

/// The intervals of one lane, one entry of every list each, in order of start.
#[derive(Debug, Serialize)]
struct LaneColumns {
    lane: Lane,
    /// How many rows overlapping intervals need.
    depth: usize,
    start: Vec<u64>,
    length: Vec<u64>,
    kind: Vec<usize>,
    label: Vec<usize>,
    microbatch: Vec<Option<u32>>,
    chunk: Vec<Option<u32>>,
    /// 1 where the pipeline runs the reverse way.
    reverse: Vec<u8>,
    row: Vec<usize>,
}

impl<'a> Payload<'a> {
    /// `timelines` with the name of where each comes from, on devices with so many bytes of memory by rank.
    pub(crate) fn new(
        losses: &'a [LossPoint],
        device_memory: &BTreeMap<u32, u64>,
        timelines: impl IntoIterator<Item = (&'static str, &'a Timeline)>,
    ) -> Payload<'a> {
        let timelines: Vec<_> = timelines.into_iter().collect();
        let parts = Parts::of(timelines.iter().map(|(_, timeline)| *timeline));
        let kinds = ACTIVITIES.map(|activity| Kind::of(activity, parts));
        let timelines = timelines
            .into_iter()
            .map(|(source, timeline)| TimelineColumns::new(source, timeline))
            .collect();
        let device_memory = device_memory.values().copied().collect();
        Payload { kinds: kinds.into(), parts, losses, device_memory, timelines }
    }

    /// JSON that may stand inside a script element: no `<`, which alone could end it.
    pub(crate) fn script_json(&self) -> String {
        let json = serde_json::to_string(self).expect("maps with non-string keys do not occur");
        json.replace('<', "\\u003c")
    }
}

impl<'a> TimelineColumns<'a> {
    fn new(source: &'static str, timeline: &'a Timeline) -> TimelineColumns<'a> {
        let origin = first_start(timeline);
        let mut pool = LabelPool::default();
        let span = timeline.makespan();
        let tracks = timeline
            .tracks
            .iter()
            .map(|track| TrackColumns::new(track, origin, span, &mut pool))
            .collect();
        TimelineColumns { source, span: span.0, labels: pool.labels, tracks }
    }
}

impl<'a> TrackColumns<'a> {
    fn new(
        track: &'a Track,
        origin: Picos,
        span: Picos,
        pool: &mut LabelPool<'a>,
    ) -> TrackColumns<'a> {
        let lanes = [Lane::Compute, Lane::CommunicationIn, Lane::CommunicationOut];
        let lanes = lanes.map(|lane| LaneColumns::new(lane, track, origin, pool));
        // Allocations before the first start are there when it comes.
        let at = |time: Picos| time.since(origin).min(span).0;
        TrackColumns {
            rank: track.rank,
            multiplicity: track.multiplicity,
            place: &track.place,
            peak_bytes: track.peak_bytes,
            lanes: lanes.into_iter().filter(|lane| lane.depth > 0).collect(),
            memory_at: track.memory.iter().map(|&(time, _)| at(time)).collect(),
            memory_bytes: track.memory.iter().map(|&(_, bytes)| bytes).collect(),
        }
    }
}

impl LaneColumns {
    fn new<'a>(
        lane: Lane,
        track: &'a Track,
        origin: Picos,
        pool: &mut LabelPool<'a>,
    ) -> LaneColumns {
        let stack = stack(track.intervals.iter().filter(|interval| interval.lane == lane));
        let mut columns = LaneColumns {
            lane,
            depth: stack.depth,
            start: Vec::new(),
            length: Vec::new(),
            kind: Vec::new(),
            label: Vec::new(),
            microbatch: Vec::new(),
            chunk: Vec::new(),
            reverse: Vec::new(),
            row: Vec::new(),
        };
        for (interval, row) in stack.placed {
            let kind = ACTIVITIES.iter().position(|&activity| activity == interval.activity);
            columns.start.push(interval.start.since(origin).0);
            columns.length.push(interval.end.since(interval.start).0);
            columns.kind.push(kind.expect("ACTIVITIES lists every activity"));
            columns.label.push(pool.position(&interval.label));
            columns.microbatch.push(interval.microbatch);
            columns.chunk.push(interval.chunk);
            columns.reverse.push(u8::from(Part::of(interval).reverse));
            columns.row.push(row);
        }
        columns
    }
}

/// Every distinct label once.
#[derive(Default)]
struct LabelPool<'a> {
    labels: Vec<&'a str>,
    positions: HashMap<&'a str, usize>,
}

impl<'a> LabelPool<'a> {
    fn position(&mut self, label: &'a str) -> usize {
        *self.positions.entry(label).or_insert_with(|| {
            self.labels.push(label);
            self.labels.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;
    use shardloom_program::timeline::Clock;

    use super::*;
    use crate::visible::tests::{any_timeline, interval};

    fn parsed(timeline: &Timeline) -> Value {
        let payload = Payload::new(&[], &BTreeMap::new(), [("predicted", timeline)]);
        serde_json::from_str(&payload.script_json()).expect("the payload is JSON")
    }

    #[test]
    fn times_count_from_the_first_start_and_memory_stays_in_the_span() {
        let track = Track {
            intervals: vec![
                interval(Activity::Forward, "F0", 100, 150),
                interval(Activity::Forward, "F0", 150, 160),
            ],
            memory: vec![(Picos(0), 7), (Picos(120), 9), (Picos(900), 8)],
            ..Track::default()
        };
        let value = parsed(&Timeline { clock: Clock::Wall, tracks: vec![track] });
        let timeline = &value["timelines"][0];
        assert_eq!(timeline["span"], 60);
        assert_eq!(timeline["labels"], serde_json::json!(["F0"]));
        let track = &timeline["tracks"][0];
        assert_eq!(track["lanes"][0]["lane"], "compute");
        assert_eq!(track["lanes"][0]["start"], serde_json::json!([0, 50]));
        assert_eq!(track["lanes"][0]["length"], serde_json::json!([50, 10]));
        assert_eq!(track["memory_at"], serde_json::json!([0, 20, 60]));
        assert_eq!(track["memory_bytes"], serde_json::json!([7, 9, 8]));
    }

    #[test]
    fn every_activity_is_in_the_list_of_kinds() {
        let intervals =
            ACTIVITIES.iter().zip(0..).map(|(&activity, at)| interval(activity, "x", at, at + 1));
        let track = Track { intervals: intervals.collect(), ..Track::default() };
        let value = parsed(&Timeline { clock: Clock::Wall, tracks: vec![track] });
        let lanes = value["timelines"][0]["tracks"][0]["lanes"].as_array().expect("a list");
        let kinds: usize =
            lanes.iter().map(|lane| lane["kind"].as_array().map_or(0, Vec::len)).sum();
        assert_eq!(kinds, ACTIVITIES.len());
        assert_eq!(value["kinds"][5]["name"], "collective");
    }

    #[test]
    fn every_chunk_and_direction_has_a_shade_of_its_own() {
        let mut intervals = vec![
            interval(Activity::Forward, "F0@0", 0, 1),
            interval(Activity::Forward, "F0@1<", 1, 2),
            interval(Activity::Send, "send to <", 2, 3),
        ];
        intervals[1].chunk = Some(1);
        let value = parsed(&Timeline {
            clock: Clock::Wall,
            tracks: vec![Track { intervals, ..Track::default() }],
        });
        assert_eq!(value["parts"], serde_json::json!({"chunks": 2, "reverse": true}));
        let lanes = &value["timelines"][0]["tracks"][0]["lanes"];
        assert_eq!(lanes[0]["reverse"], serde_json::json!([0, 1]));
        assert_eq!(lanes[1]["reverse"], serde_json::json!([0]), "a message has no direction");
        let shades = value["kinds"][0]["shades"].as_array().expect("two directions");
        let colours: Vec<&Value> = shades
            .iter()
            .flat_map(|way| way.as_array().expect("chunks"))
            .map(|it| &it[0])
            .collect();
        assert_eq!(colours.len(), 4);
        assert_eq!(colours[0], "#56b4e9");
        assert!((1..4).all(|at| !colours[..at].contains(&colours[at])), "{colours:?}");
    }

    #[test]
    fn a_label_cannot_end_the_script_element() {
        let hostile = "</script><script>alert(1)</script><!--";
        let track = Track {
            intervals: vec![interval(Activity::Forward, hostile, 0, 1)],
            ..Track::default()
        };
        let timeline = Timeline { clock: Clock::Wall, tracks: vec![track] };
        let memory = BTreeMap::new();
        let json = Payload::new(&[], &memory, [("measured", &timeline)]).script_json();
        assert!(!json.contains('<'));
        assert_eq!(parsed(&timeline)["timelines"][0]["labels"][0], hostile);
    }

    proptest! {
        #[test]
        fn every_interval_lies_in_the_drawn_span(timeline in any_timeline()) {
            let value = parsed(&timeline);
            let drawn = &value["timelines"][0];
            let span = drawn["span"].as_u64().expect("a number");
            let numbers = |value: &Value| -> Vec<u64> {
                value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
            };
            let mut count = 0;
            for track in drawn["tracks"].as_array().expect("a list") {
                for lane in track["lanes"].as_array().expect("a list") {
                    let (start, length) = (numbers(&lane["start"]), numbers(&lane["length"]));
                    prop_assert_eq!(start.len(), length.len());
                    count += start.len();
                    prop_assert!(start.iter().zip(&length).all(|(s, l)| s + l <= span));
                    let depth = lane["depth"].as_u64().expect("a number");
                    prop_assert!(numbers(&lane["row"]).iter().all(|&row| row < depth));
                }
                prop_assert!(numbers(&track["memory_at"]).iter().all(|&at| at <= span));
            }
            prop_assert_eq!(count, timeline.tracks.iter().map(|t| t.intervals.len()).sum::<usize>());
        }
    }

    #[test]
    fn every_column_has_what_its_name_says_of_each_interval() {
        let mut intervals = vec![
            interval(Activity::Backward, "B7", 20, 50),
            interval(Activity::Forward, "F3", 10, 20),
            interval(Activity::Forward, "F3", 15, 25),
        ];
        intervals[0].chunk = Some(2);
        intervals[2].microbatch = None;
        let track =
            Track { rank: 5, multiplicity: 4, peak_bytes: 9, intervals, ..Track::default() };
        let value = parsed(&Timeline { clock: Clock::Wall, tracks: vec![track] });
        let track = &value["timelines"][0]["tracks"][0];
        assert_eq!((&track["rank"], &track["multiplicity"]), (&5.into(), &4.into()));
        assert_eq!(track["peak_bytes"], 9);
        let lane = &track["lanes"][0];
        // In order of start, from the first.
        assert_eq!(lane["start"], serde_json::json!([0, 5, 10]));
        assert_eq!(lane["length"], serde_json::json!([10, 10, 30]));
        assert_eq!(lane["kind"], serde_json::json!([0, 0, 1]));
        assert_eq!(lane["label"], serde_json::json!([0, 0, 1]));
        assert_eq!(value["timelines"][0]["labels"], serde_json::json!(["F3", "B7"]));
        assert_eq!(lane["microbatch"], serde_json::json!([3, null, 7]));
        assert_eq!(lane["chunk"], serde_json::json!([null, null, 2]));
        assert_eq!((&lane["row"], &lane["depth"]), (&serde_json::json!([0, 1, 0]), &2.into()));
    }
}
