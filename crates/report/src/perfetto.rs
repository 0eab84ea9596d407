//! A timeline as a Perfetto trace, for `ui.perfetto.dev` and `trace_processor`.

mod flows;
mod schema;

use std::collections::HashSet;

use prost::Message;
use shardloom_program::timeline::{Activity, Clock, Interval, Lane, Picos, Timeline, Track};

use crate::drawn::{Drawn, MOST_TRACED};
use crate::palette::look;
use crate::shade::Part;
use crate::stacking::stack;
use crate::totals::{clock_words, first_start};
use flows::{Flows, TrackFlows};
use schema::{
    ChildOrdering, CounterDescriptor, CounterUnit, Data, DebugAnnotation, EventType,
    ProcessDescriptor, Trace, TracePacket, TrackDescriptor, TrackEvent,
};

/// All packets come from this one writer.
const SEQUENCE: u32 = 1;

const NO_FLOWS: &[u64] = &[];

/// Encodes timelines as one Perfetto trace (a `Trace` message of `TrackEvent` packets).
///
/// Every rank is a process, named after its rank, place and clock; its lanes are tracks of that
/// process, and its memory a counter in bytes. Messages between stages are there whole, also those that take no time,
/// with a flow from each sending to its receiving; where stages have different numbers of ranks, these are paired in
/// order. Intervals of a lane that overlap are spread over
/// several tracks of the lane's name. Every timeline starts at time zero, so that a predicted and a
/// measured one lie under each other. Times are whole nanoseconds, rounded down.
///
/// Of timelines with more than 2,000,000 intervals and changes of memory together some ranks of every stage are there,
/// and it says which.
///
/// # Examples
///
/// ```
/// use shardloom_program::timeline::{Clock, Timeline};
///
/// let timeline = Timeline { clock: Clock::Simulated, tracks: Vec::new() };
/// assert!(shardloom_report::perfetto_trace(&[&timeline]).bytes.is_empty());
/// ```
pub fn perfetto_trace(timelines: &[&Timeline]) -> PerfettoTrace {
    traced(timelines, MOST_TRACED)
}

/// A Perfetto trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfettoTrace {
    /// The encoded trace.
    pub bytes: Vec<u8>,
    /// What it lacks, a sentence for each timeline of which something is missing.
    pub left_out: Vec<String>,
}

/// A trace of no more than `most` intervals and changes of memory.
fn traced(timelines: &[&Timeline], most: usize) -> PerfettoTrace {
    let named = |&timeline: &&'_ Timeline| match timeline.clock {
        Clock::Simulated => "predicted",
        Clock::Virtual | Clock::Wall => "measured",
    };
    let timelines: Vec<(&'static str, &Timeline)> =
        timelines.iter().map(|timeline| (named(timeline), *timeline)).collect();
    let Drawn { timelines, left_out } = Drawn::of(&timelines, most, "a trace has");
    let mut writer = Writer::default();
    for (_, timeline) in &timelines {
        let origin = first_start(timeline);
        let flows = Flows::of(&timeline.tracks, &mut writer.last_flow);
        for (track, flows) in timeline.tracks.iter().zip(&flows.tracks) {
            writer.track(track, flows, clock_words(timeline.clock), origin);
        }
    }
    PerfettoTrace { bytes: writer.trace.encode_to_vec(), left_out }
}

#[derive(Default)]
struct Writer {
    trace: Trace,
    /// The last track id given out; 0 is Perfetto's own global track.
    last_uuid: u64,
    /// The last process id given out; 0 is the kernel's.
    last_pid: i32,
    /// The last flow id given out.
    last_flow: u64,
}

impl Writer {
    fn track(&mut self, track: &Track, flows: &TrackFlows, clock: &str, origin: Picos) {
        let process = self.process(track, clock);
        // Lanes show of messages only what nothing else hides.
        let of_messages: HashSet<(Activity, &str)> =
            track.messages.iter().map(|it| (it.interval.activity, &*it.interval.label)).collect();
        let others = track
            .intervals
            .iter()
            .filter(|it| !of_messages.contains(&(it.activity, &*it.label)))
            .map(|it| (it, NO_FLOWS));
        let messages = track.messages.iter().zip(flows).map(|(it, ids)| (&it.interval, &ids[..]));
        let all: Vec<(&Interval, &[u64])> = others.chain(messages).collect();
        let lanes = [
            (Lane::Compute, "compute"),
            (Lane::CommunicationIn, "communication in"),
            (Lane::CommunicationOut, "communication out"),
        ];
        for (position, (lane, name)) in (0..).zip(lanes) {
            let of_lane = || all.iter().filter(|(interval, _)| interval.lane == lane);
            let stack = stack(of_lane().map(|(interval, _)| *interval));
            // As the stack is ordered.
            let mut ordered: Vec<&(&Interval, &[u64])> = of_lane().collect();
            ordered.sort_by_key(|(interval, _)| interval.start);
            // Rows are contiguous in the packet stream: within one track the order of packets
            // decides between an end and a beginning at the same nanosecond.
            for row in 0..stack.depth {
                let uuid = self.child(process, name, position, None);
                for ((interval, placed), (_, flows)) in stack.placed.iter().zip(&ordered) {
                    if *placed == row {
                        self.slice(interval, flows, uuid, origin);
                    }
                }
            }
        }
        if !track.memory.is_empty() {
            let unit = CounterDescriptor { unit: Some(CounterUnit::SizeBytes.into()) };
            let uuid = self.child(process, "memory", 3, Some(unit));
            for &(at, bytes) in &track.memory {
                self.event(
                    at.since(origin),
                    TrackEvent {
                        r#type: Some(EventType::Counter.into()),
                        track_uuid: Some(uuid),
                        counter_value: Some(i64::try_from(bytes).unwrap_or(i64::MAX)),
                        ..TrackEvent::default()
                    },
                );
            }
        }
    }

    fn process(&mut self, track: &Track, clock: &str) -> u64 {
        self.last_pid += 1;
        let fold = match track.multiplicity {
            1 => String::new(),
            many => format!(" ×{many}"),
        };
        let place =
            if track.place.is_empty() { String::new() } else { format!(", {}", track.place) };
        let name = format!("rank {}{fold}{place} ({clock})", track.rank);
        let pid = self.last_pid;
        self.descriptor(TrackDescriptor {
            process: Some(ProcessDescriptor { pid: Some(pid), process_name: Some(name) }),
            child_ordering: Some(ChildOrdering::Explicit.into()),
            ..TrackDescriptor::default()
        })
    }

    fn child(
        &mut self,
        parent: u64,
        name: &str,
        position: i32,
        counter: Option<CounterDescriptor>,
    ) -> u64 {
        self.descriptor(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: Some(parent),
            counter,
            sibling_order_rank: Some(position),
            ..TrackDescriptor::default()
        })
    }

    /// Writes `descriptor` under a new id, which it returns.
    fn descriptor(&mut self, descriptor: TrackDescriptor) -> u64 {
        self.last_uuid += 1;
        let descriptor = TrackDescriptor { uuid: Some(self.last_uuid), ..descriptor };
        self.trace.packet.push(TracePacket {
            timestamp: None,
            trusted_packet_sequence_id: Some(SEQUENCE),
            data: Some(Data::TrackDescriptor(descriptor)),
        });
        self.last_uuid
    }

    fn slice(&mut self, interval: &Interval, flows: &[u64], uuid: u64, origin: Picos) {
        let part = Part::of(interval);
        let numbers = [("microbatch", interval.microbatch), ("chunk", part.chunk)];
        let annotate = |(name, value): (&str, Option<u32>)| {
            value.map(|value| DebugAnnotation {
                uint_value: Some(value.into()),
                name: Some(name.to_owned()),
                ..DebugAnnotation::default()
            })
        };
        let reverse = part.reverse.then(|| DebugAnnotation {
            bool_value: Some(true),
            name: Some("reverse".to_owned()),
            ..DebugAnnotation::default()
        });
        let ends_flows = interval.activity == Activity::Receive;
        // Categories are what slices can be filtered by.
        let mut categories = vec![look(interval.activity).name.to_owned()];
        categories.extend(part.chunk.map(|chunk| format!("chunk {chunk}")));
        categories.extend(part.reverse.then(|| "reverse".to_owned()));
        self.event(
            interval.start.since(origin),
            TrackEvent {
                debug_annotations: numbers
                    .into_iter()
                    .filter_map(annotate)
                    .chain(reverse)
                    .collect(),
                r#type: Some(EventType::SliceBegin.into()),
                track_uuid: Some(uuid),
                categories,
                name: Some(interval.label.clone()),
                flow_ids: if ends_flows { vec![] } else { flows.to_vec() },
                terminating_flow_ids: if ends_flows { flows.to_vec() } else { vec![] },
                ..TrackEvent::default()
            },
        );
        self.event(
            interval.end.since(origin),
            TrackEvent {
                r#type: Some(EventType::SliceEnd.into()),
                track_uuid: Some(uuid),
                ..TrackEvent::default()
            },
        );
    }

    fn event(&mut self, at: Picos, event: TrackEvent) {
        self.trace.packet.push(TracePacket {
            timestamp: Some(at.0 / 1000),
            trusted_packet_sequence_id: Some(SEQUENCE),
            data: Some(Data::TrackEvent(event)),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use shardloom_program::RouteId;
    use shardloom_program::timeline::MessageEnd;

    use super::*;
    use crate::visible::tests::{any_timeline, interval};

    fn small() -> Timeline {
        let track = Track {
            rank: 3,
            multiplicity: 4,
            place: "stage 1".to_owned(),
            intervals: vec![
                interval(Activity::Forward, "F7", 5_000_000, 7_000_999),
                interval(Activity::Send, "send F7", 7_000_999, 8_000_000),
            ],
            memory: vec![(Picos(5_000_000), 1024)],
            ..Track::default()
        };
        Timeline { clock: Clock::Simulated, tracks: vec![track] }
    }

    /// The wire format by hand, so that a wrong field number cannot hide behind its own decoder:
    /// each byte follows from the public .proto files.
    #[test]
    fn a_counter_packet_has_the_bytes_of_the_public_format() {
        let mut writer = Writer::default();
        writer.event(
            Picos(300_000),
            TrackEvent {
                r#type: Some(EventType::Counter.into()),
                track_uuid: Some(2),
                counter_value: Some(1),
                ..TrackEvent::default()
            },
        );
        let expected = [
            0x0a, 0x0e, // Trace.packet = 1, 14 bytes
            0x40, 0xac, 0x02, // TracePacket.timestamp = 8: 300
            0x50, 0x01, // TracePacket.trusted_packet_sequence_id = 10: 1
            0x5a, 0x07, // TracePacket.track_event = 11, 7 bytes
            0x48, 0x04, // TrackEvent.type = 9: TYPE_COUNTER
            0x58, 0x02, // TrackEvent.track_uuid = 11: 2
            0xf0, 0x01, 0x01, // TrackEvent.counter_value = 30: 1
        ];
        assert_eq!(writer.trace.encode_to_vec(), expected);
    }

    #[test]
    fn a_descriptor_packet_has_the_bytes_of_the_public_format() {
        let mut writer = Writer::default();
        let unit = CounterDescriptor { unit: Some(CounterUnit::SizeBytes.into()) };
        writer.child(9, "m", 3, Some(unit));
        let expected = [
            0x0a, 0x12, // Trace.packet = 1, 18 bytes
            0x50, 0x01, // TracePacket.trusted_packet_sequence_id = 10: 1
            0xe2, 0x03, 0x0d, // TracePacket.track_descriptor = 60, 13 bytes
            0x08, 0x01, // TrackDescriptor.uuid = 1: 1
            0x12, 0x01, b'm', // TrackDescriptor.name = 2
            0x28, 0x09, // TrackDescriptor.parent_uuid = 5: 9
            0x42, 0x02, 0x18, 0x03, // TrackDescriptor.counter = 8: unit = 3: UNIT_SIZE_BYTES
            0x60, 0x03, // TrackDescriptor.sibling_order_rank = 12: 3
        ];
        assert_eq!(writer.trace.encode_to_vec(), expected);
    }

    #[test]
    fn a_rank_becomes_a_process_with_lanes_and_a_memory_counter() {
        let trace =
            Trace::decode(&*perfetto_trace(&[&small()]).bytes).expect("our own bytes decode");
        let mut lines = Vec::new();
        for packet in trace.packet {
            let time = packet.timestamp.map(|t| format!("{t} ")).unwrap_or_default();
            lines.push(match packet.data.expect("every packet has data") {
                Data::TrackDescriptor(track) => match track.process {
                    Some(process) => format!("process {}", process.process_name()),
                    None => format!("track {} of {}", track.name(), track.parent_uuid()),
                },
                Data::TrackEvent(event) => format!(
                    "{time}{:?} {} on {} {:?}",
                    event.r#type(),
                    event.name(),
                    event.track_uuid(),
                    event.counter_value
                ),
            });
        }
        insta::assert_snapshot!(lines.join("\n"), @r"
        process rank 3 ×4, stage 1 (simulated)
        track compute of 1
        0 SliceBegin F7 on 2 None
        2000 SliceEnd  on 2 None
        track communication out of 1
        2000 SliceBegin send F7 on 3 None
        3000 SliceEnd  on 3 None
        track memory of 1
        0 Counter  on 4 Some(1024)
        ");
    }

    /// Two ranks, of which one sends two messages to the other, whose second receive takes no time and a collective
    /// hides the first.
    fn sending() -> Timeline {
        let end = |activity, label, start: u64, end: u64| MessageEnd {
            route: RouteId(0),
            interval: interval(activity, label, start * 1000, end * 1000),
        };
        let sends = vec![end(Activity::Send, "send 0", 5, 9), end(Activity::Send, "send 1", 9, 9)];
        let receives = vec![
            end(Activity::Receive, "receive 0", 5, 9),
            end(Activity::Receive, "receive 1", 9, 9),
        ];
        let shown = |sends: &[MessageEnd]| {
            let long = sends.iter().map(|it| it.interval.clone());
            long.filter(|it| it.start < it.end).collect::<Vec<_>>()
        };
        let tracks = vec![
            Track { rank: 0, intervals: shown(&sends), messages: sends, ..Track::default() },
            Track {
                rank: 1,
                intervals: vec![interval(Activity::Collective, "all-reduce", 4000, 10_000)],
                messages: receives,
                ..Track::default()
            },
        ];
        Timeline { clock: Clock::Simulated, tracks }
    }

    #[test]
    fn every_message_is_a_slice_at_both_ends_with_a_flow_between_them() {
        // The same timeline twice: flows do not go from one to the other.
        let (one, other) = (sending(), sending());
        let bytes = perfetto_trace(&[&one, &other]).bytes;
        let trace = Trace::decode(&*bytes).expect("our own bytes decode");
        let mut found = vec![];
        for packet in &trace.packet {
            if let Some(Data::TrackEvent(event)) = &packet.data
                && event.r#type() == EventType::SliceBegin
            {
                let flows = (event.flow_ids.clone(), event.terminating_flow_ids.clone());
                found.push((event.name().to_owned(), packet.timestamp(), flows));
            }
        }
        let slice = |name: &str, at, leave: &[u64], end: &[u64]| {
            (name.to_owned(), at, (leave.to_vec(), end.to_vec()))
        };
        let of = |first: u64| {
            [
                slice("send 0", 1, &[first], &[]),
                slice("send 1", 5, &[first + 1], &[]),
                slice("all-reduce", 0, &[], &[]),
                slice("receive 1", 5, &[], &[first + 1]),
                slice("receive 0", 1, &[], &[first]),
            ]
        };
        found.sort();
        let mut expected = [of(1), of(3)].concat();
        expected.sort();
        assert_eq!(found, expected);
    }

    /// One that is listed before the messages of its lane and begins after them.
    #[test]
    fn flows_end_at_their_messages_and_not_at_a_collective_beside_them() {
        let mut timeline = sending();
        let late = interval(Activity::Collective, "all-reduce", 10_000, 12_000);
        timeline.tracks[1].intervals = vec![late];
        let trace =
            Trace::decode(&*perfetto_trace(&[&timeline]).bytes).expect("our own bytes decode");
        let mut ends = vec![];
        for packet in &trace.packet {
            if let Some(Data::TrackEvent(event)) = &packet.data {
                ends.extend(event.terminating_flow_ids.iter().map(|&flow| (flow, event.name())));
            }
        }
        ends.sort_unstable();
        assert_eq!(ends, [(1, "receive 0"), (2, "receive 1")]);
    }

    /// Tags 47 and 48 of the public `TrackEvent`, with wire type 1.
    #[test]
    fn flows_have_the_bytes_of_the_public_format() {
        let event = TrackEvent {
            flow_ids: vec![1],
            terminating_flow_ids: vec![2],
            ..TrackEvent::default()
        };
        let expected = [
            0xf9, 0x02, 1, 0, 0, 0, 0, 0, 0, 0, // flow_ids = 47, fixed64: 1
            0x81, 0x03, 2, 0, 0, 0, 0, 0, 0, 0, // terminating_flow_ids = 48, fixed64: 2
        ];
        assert_eq!(event.encode_to_vec(), expected);
    }

    #[test]
    fn of_more_than_a_trace_has_the_first_ranks_are_there_and_it_says_so() {
        let mut timeline = small();
        let of_rank = |rank| Track { rank, ..timeline.tracks[0].clone() };
        timeline.tracks = (0..3).map(of_rank).collect();
        let each = timeline.tracks[0].intervals.len() + timeline.tracks[0].memory.len();
        let whole = traced(&[&timeline], 3 * each);
        assert_eq!(whole, perfetto_trace(&[&timeline]));
        assert_eq!(whole.left_out, Vec::<String>::new());
        let part = traced(&[&timeline], 3 * each - 1);
        timeline.tracks.truncate(2);
        assert_eq!(part.bytes, perfetto_trace(&[&timeline]).bytes);
        let most = 3 * each - 1;
        let told = format!("a trace has {most} at most: ranks 0 to 1 are there, 1 other is not.");
        assert!(part.left_out[0].ends_with(&told), "{:?}", part.left_out);
    }

    #[test]
    fn micro_batch_chunk_and_direction_become_annotations_and_categories() {
        for chunk in [0, 2] {
            let mut timeline = small();
            let first = &mut timeline.tracks[0].intervals[0];
            let label = format!("F7@{chunk}<");
            *first = Interval { label: label.clone(), chunk: Some(chunk), ..first.clone() };
            let trace =
                Trace::decode(&*perfetto_trace(&[&timeline]).bytes).expect("our own bytes decode");
            let event = trace.packet.iter().find_map(|packet| match &packet.data {
                Some(Data::TrackEvent(event)) if event.name() == label => Some(event),
                _ => None,
            });
            let event = event.expect("a slice of this name");
            let annotations: Vec<_> = event
                .debug_annotations
                .iter()
                .map(|it| (it.name().to_owned(), it.uint_value, it.bool_value))
                .collect();
            let expected = [
                ("microbatch".to_owned(), Some(7), None),
                ("chunk".to_owned(), Some(chunk.into()), None),
                ("reverse".to_owned(), None, Some(true)),
            ];
            assert_eq!(annotations, expected);
            let chunk = format!("chunk {chunk}");
            assert_eq!(event.categories, ["forward", &chunk, "reverse"]);
        }
    }

    proptest! {
        #[test]
        fn slices_of_every_track_begin_and_end_in_turn_and_never_go_back(
            one in any_timeline(), other in any_timeline()
        ) {
            let bytes = perfetto_trace(&[&one, &other]).bytes;
            let trace = Trace::decode(&*bytes).expect("our own bytes decode");
            let mut open: BTreeMap<u64, (bool, u64)> = BTreeMap::new();
            let mut begun = 0;
            for packet in &trace.packet {
                match packet.data.as_ref().expect("every packet has data") {
                    Data::TrackDescriptor(track) => {
                        prop_assert!(open.insert(track.uuid(), (false, 0)).is_none(), "ids are unique");
                        prop_assert!(track.process.is_some() || open.contains_key(&track.parent_uuid()));
                    }
                    Data::TrackEvent(event) => {
                        let state = open.get_mut(&event.track_uuid());
                        let (is_open, last) = state.expect("a track is described before its events");
                        prop_assert!(packet.timestamp() >= *last);
                        *last = packet.timestamp();
                        match event.r#type() {
                            EventType::SliceBegin => {
                                begun += 1;
                                prop_assert!(!std::mem::replace(is_open, true));
                            }
                            EventType::SliceEnd => prop_assert!(std::mem::replace(is_open, false)),
                            EventType::Counter => {}
                            EventType::Unspecified => prop_assert!(false, "every event has a type"),
                        }
                    }
                }
            }
            let tracks = || one.tracks.iter().chain(&other.tracks);
            prop_assert!(open.values().all(|(is_open, _)| !is_open));
            prop_assert_eq!(begun, tracks().map(|track| track.intervals.len()).sum::<usize>());
        }

        /// A slice for each interval, from when to when that is, counted from where its own timeline begins.
        #[test]
        fn intervals_keep_their_times_from_the_begin_of_their_own_timeline_on(
            one in any_timeline(), other in any_timeline()
        ) {
            // In whole nanoseconds.
            let whole = |timeline: &Timeline| {
                let mut timeline = timeline.clone();
                for interval in timeline.tracks.iter_mut().flat_map(|it| &mut it.intervals) {
                    interval.start = Picos(interval.start.0 * 1000);
                    interval.end = Picos(interval.end.0 * 1000);
                }
                timeline
            };
            let timelines = [whole(&one), whole(&other)];
            let bytes = perfetto_trace(&[&timelines[0], &timelines[1]]).bytes;
            let trace = Trace::decode(&*bytes).expect("our own bytes decode");
            // The process of each track, and the slices of each process.
            let (mut processes, mut begun) = (BTreeMap::new(), BTreeMap::new());
            let mut found: Vec<Vec<(String, u64, u64)>> = vec![];
            for packet in &trace.packet {
                match packet.data.as_ref().expect("every packet has data") {
                    Data::TrackDescriptor(track) if track.process.is_some() => {
                        processes.insert(track.uuid(), found.len());
                        found.push(vec![]);
                    }
                    Data::TrackDescriptor(track) => {
                        processes.insert(track.uuid(), processes[&track.parent_uuid()]);
                    }
                    Data::TrackEvent(event) => {
                        let (track, at) = (event.track_uuid(), packet.timestamp());
                        match event.r#type() {
                            EventType::SliceBegin => {
                                begun.insert(track, (event.name().to_owned(), at));
                            }
                            EventType::SliceEnd => {
                                let (name, from) = begun.remove(&track).expect("it has begun");
                                found[processes[&track]].push((name, from, at));
                            }
                            _ => {}
                        }
                    }
                }
            }
            let mut expected: Vec<Vec<(String, u64, u64)>> = vec![];
            for timeline in &timelines {
                let all = timeline.tracks.iter().flat_map(|it| &it.intervals);
                let begin = all.map(|it| it.start.0 / 1000).min().unwrap_or(0);
                let slice = |it: &Interval| {
                    (it.label.clone(), it.start.0 / 1000 - begin, it.end.0 / 1000 - begin)
                };
                let slices = |track: &Track| track.intervals.iter().map(slice).collect();
                expected.extend(timeline.tracks.iter().map(slices));
            }
            found.iter_mut().chain(&mut expected).for_each(|it| it.sort());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn memory_that_no_counter_can_hold_is_the_most_that_one_can() {
        let of = |bytes: u64| {
            let track = Track { memory: vec![(Picos(0), bytes)], ..Track::default() };
            let timeline = Timeline { clock: Clock::Wall, tracks: vec![track] };
            let bytes = perfetto_trace(&[&timeline]).bytes;
            let trace = Trace::decode(&*bytes).expect("our own bytes decode");
            let mut events = trace.packet.into_iter().filter_map(|packet| match packet.data {
                Some(Data::TrackEvent(event)) => event.counter_value,
                _ => None,
            });
            events.next()
        };
        for (bytes, counted) in [
            (0, 0),
            (7, 7),
            (i64::MAX as u64, i64::MAX),
            (i64::MAX as u64 + 1, i64::MAX),
            (u64::MAX, i64::MAX),
        ] {
            assert_eq!(of(bytes), Some(counted), "{bytes}");
        }
    }
}
