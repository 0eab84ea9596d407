//! The few Perfetto messages a trace of slices and counters needs.
//!
//! Names and field numbers are those of Perfetto's public `trace.proto`, `trace_packet.proto`,
//! `track_event.proto`, `track_descriptor.proto`, `process_descriptor.proto`,
//! `counter_descriptor.proto` and `debug_annotation.proto`; left-out fields are optional there.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(super) packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    /// Which writer the packet came from; packets of one writer stay in order.
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(oneof = "Data", tags = "11, 60")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
    /// Flows that leave this event for a later one.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
    /// Flows that end here.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(super) terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Counter = 4,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(bool, optional, tag = "2")]
    pub(super) bool_value: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
    #[prost(enumeration = "ChildOrdering", optional, tag = "11")]
    pub(super) child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub(super) sibling_order_rank: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum ChildOrdering {
    Unknown = 0,
    /// By `sibling_order_rank`.
    Explicit = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(enumeration = "CounterUnit", optional, tag = "3")]
    pub(super) unit: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum CounterUnit {
    Unspecified = 0,
    SizeBytes = 3,
}
