//! Records when a rank did what.

use std::time::Instant;

use shardloom_program::timeline::{Interval, Lane, Picos, Track};
use shardloom_program::{Class, ClassId, Issued};

use super::waiting::Recorded;

/// A track in the making, with times since a common origin.
pub(crate) struct Recorder {
    origin: Instant,
    track: Track,
    /// By interval of the track: the instruction, of communication.
    issued: Vec<Option<Issued>>,
}

impl Recorder {
    /// Of a rank, which may be colocated with another, of `class` at a place, which holds `live_bytes` from now on.
    pub fn new(
        origin: Instant,
        (rank, is_colocated): (u32, bool),
        (class, place): (ClassId, String),
        live_bytes: u64,
    ) -> Recorder {
        let class = class.0;
        let track = Track { rank, multiplicity: 1, place, class, is_colocated, ..Track::default() };
        let mut recorder = Recorder { origin, track, issued: vec![] };
        recorder.track.memory.push((recorder.picos(Instant::now()), live_bytes));
        recorder
    }

    /// Notes from when to when an instruction ran, and how many bytes lived from when on, after it. Computation
    /// of one pass in a row is one interval.
    pub fn note(
        &mut self,
        class: &Class,
        issued: Issued,
        time: (Instant, Instant),
        (since, live_bytes): (Instant, u64),
    ) {
        let Issued { body, microbatch, .. } = issued;
        let (instruction, body) = (issued.instruction(class), class.body(body));
        let (start, end) = (self.picos(time.0), self.picos(time.1));
        let lane = instruction.lane();
        let label = instruction.label(class, body, microbatch);
        if self.track.memory.last().is_none_or(|&(_, bytes)| bytes != live_bytes) {
            self.track.memory.push((self.picos(since), live_bytes));
        }
        if let Some(last) = self.track.intervals.last_mut()
            && lane == Lane::Compute
            && last.lane == lane
            && last.label == label
        {
            last.end = end;
            return;
        }
        let activity = instruction.activity(body.kind);
        let chunk = body.part.chunk;
        self.issued.push((lane != Lane::Compute).then_some(issued));
        self.track.intervals.push(Interval {
            lane,
            activity,
            label,
            microbatch,
            chunk,
            start,
            end,
        });
    }

    fn picos(&self, at: Instant) -> Picos {
        Picos::from_seconds((at - self.origin).as_secs_f64())
    }

    pub fn finish(self, peak_bytes: u64, sent_bytes: u64) -> Recorded {
        let Recorder { track, issued, .. } = self;
        Recorded { track: Track { peak_bytes, sent_bytes, ..track }, issued }
    }
}
