//! Writes an actor's track: computation by entry, communication by instruction, memory by
//! instruction.
//!
//! A lane shows one thing at a time. Where collectives of different groups overlap, the one that began
//! last is shown, so that a lane's intervals add up to the time in which it is occupied.

use std::collections::{BTreeMap, VecDeque};

use shardloom_cluster::Stack;
use shardloom_graph::OpId;
use shardloom_graph::work::Pass;
use shardloom_program::timeline::{Activity, Interval, Lane, MessageEnd, Picos, Track};
use shardloom_program::{Action, Class, Content, Issued, Keep, MemoryTracker, Program};

use crate::Actor;
use crate::actor::ActorState;
use crate::held::{ExtraBytes, copies_bytes};
use crate::late_gradients::LateGradients;
use crate::memory_changes::MemoryChanges;
use crate::script::{Doing, Line};

/// What is written down of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Everything.
    All,
    /// What figures of the last period are made of: when lanes are occupied from the end of so many steps on, the most
    /// memory, and the bytes sent. No labels, no messages, and no memory over time.
    Figures {
        /// The steps before that period.
        steps_before: usize,
    },
}

/// One actor's track so far.
pub(crate) struct TrackWriter<'p> {
    track: Track,
    kept: Kept,
    /// How many steps have ended.
    ended_steps: usize,
    class: &'p Class,
    /// Whose memory it is.
    position: usize,
    memory: MemoryTracker<'p>,
    /// Collectives and receives, which may overlap.
    incoming: Vec<Interval>,
    /// Computation that the current entry may continue.
    computing: Option<Interval>,
    /// What is held over time.
    changes: MemoryChanges,
    /// What forward passes have left besides tensors, by operator and micro-batch.
    saved: BTreeMap<(OpId, Option<u32>), u64>,
    /// Gradients that are not there all the time, with those of them that were absent at the peak.
    late: Option<(LateGradients, u64)>,
    /// What collectives have freed that the host cannot use again yet, in the order of their launches.
    freed: VecDeque<Freed>,
    /// By how much the host may be ahead of the device; none where it can use what is freed at once.
    ahead: Option<Picos>,
}

/// What a collective has freed.
struct Freed {
    bytes: u64,
    /// When the collective was launched.
    launched: Picos,
    /// When it ended.
    end: Picos,
}

impl<'p> TrackWriter<'p> {
    pub fn new(
        program: &'p Program,
        stack: &Stack,
        actor: Actor,
        (folded, kept): (bool, Kept),
    ) -> TrackWriter<'p> {
        let class = program.class(actor.class);
        // What fits on the fullest of those that an actor stands for fits on all.
        let position = match folded {
            true => class.fullest_position(),
            false => actor.position,
        };
        let late = stack.memory.late_gradients.then(|| LateGradients::new(class, position));
        let absent = late.as_ref().map_or(0, LateGradients::absent);
        let held = class.persistent_bytes(position).total() - absent;
        let mut memory = MemoryTracker::with_held(class, position, held);
        memory.hold(copies_bytes(stack, program, class));
        let ahead = f64::from(stack.memory.queued_kernels) * stack.host.kernel_seconds;
        let track = Track {
            rank: actor.rank.0,
            multiplicity: u64::from(actor.multiplicity),
            place: place(program, actor, folded),
            class: actor.class.0,
            is_colocated: program.is_colocated(actor.class),
            ..Track::default()
        };
        TrackWriter {
            track,
            kept,
            ended_steps: 0,
            class,
            position,
            changes: MemoryChanges::new(memory.live_bytes()),
            memory,
            incoming: vec![],
            computing: None,
            saved: BTreeMap::new(),
            late: late.map(|late| (late, absent)),
            freed: VecDeque::new(),
            ahead: (ahead > 0.0).then(|| Picos::from_seconds(ahead)),
        }
    }

    /// The compute lane works from `start` to `end` on an entry. Where it waited for the host since its last
    /// instruction of the entry, that counts as work: the entry keeps the device.
    pub fn compute(&mut self, actor: &ActorState<'_, '_>, start: Picos, end: Picos) {
        if end <= start {
            return;
        }
        let item = actor.item();
        match &mut self.computing {
            Some(interval)
                if interval.end == start || actor.waited_for_host(interval.end, start) =>
            {
                interval.end = end;
            }
            open => {
                let fresh = Interval {
                    lane: Lane::Compute,
                    activity: item.activity,
                    label: if self.kept == Kept::All { actor.label() } else { String::new() },
                    microbatch: actor.microbatch(),
                    chunk: item.chunk,
                    start,
                    end,
                };
                self.track.intervals.extend(open.replace(fresh));
            }
        }
    }

    /// A queue of communication works from `start` to `end` on an instruction, which is for a micro-batch or none
    /// and of a chunk of the model.
    pub fn communicate(
        &mut self,
        line: &Line<'_>,
        (microbatch, chunk): (Option<u32>, Option<u32>),
        start: Picos,
        end: Picos,
    ) {
        let (lane, activity) = match line.doing {
            Doing::Send(_) => (Lane::CommunicationOut, Activity::Send),
            Doing::Receive(_) | Doing::Fetch => (Lane::CommunicationIn, Activity::Receive),
            Doing::Local | Doing::Publish | Doing::Collective { .. } | Doing::Request { .. } => {
                (Lane::CommunicationIn, Activity::Collective)
            }
        };
        let interval = Interval {
            lane,
            activity,
            label: if self.kept == Kept::All { line.label.clone() } else { String::new() },
            microbatch,
            chunk,
            start: start.min(end),
            end,
        };
        if let Doing::Send(route) | Doing::Receive(route) = line.doing
            && self.kept == Kept::All
        {
            self.track.messages.push(MessageEnd { route, interval: interval.clone() });
        }
        if end <= start {
            return;
        }
        let lane_intervals = match lane {
            Lane::CommunicationIn => &mut self.incoming,
            Lane::Compute | Lane::CommunicationOut => &mut self.track.intervals,
        };
        lane_intervals.push(interval);
    }

    /// Counts what a collective frees that has been waited for.
    pub fn free(&mut self, ended: Issued) {
        self.memory.end(ended.instruction(self.class), ended.microbatch);
    }

    /// Counts what the actor's instruction, which is issued at `time`, allocates and, if the actor waits for
    /// its end, frees, in order, with what it takes besides the program's tensors.
    pub fn remember(&mut self, actor: &ActorState<'_, 'p>, time: Picos, extra: ExtraBytes) {
        self.begin(actor, time, extra);
        if !actor.goes_on() {
            self.memory.end(actor.line().instruction, actor.microbatch());
        }
    }

    /// Likewise of a collective, which frees what it does [when it has ended](Self::end_collective).
    pub fn begin_collective(&mut self, actor: &ActorState<'_, 'p>, time: Picos) {
        match self.ahead {
            Some(_) => self.begin(actor, time, ExtraBytes::default()),
            None => self.remember(actor, time, ExtraBytes::default()),
        }
    }

    /// The actor's collective ends at `end`: what it frees the host can use again from then on.
    pub fn end_collective(&mut self, actor: &ActorState<'_, 'p>, end: Picos) {
        if self.ahead.is_none() || actor.goes_on() {
            return;
        }
        let instruction = actor.line().instruction;
        let before = self.memory.live_bytes();
        self.memory.end(instruction, actor.microbatch());
        let all = before - self.memory.live_bytes();
        // Where parts lie side by side meanwhile is the device's own.
        let freed = instruction.frees.iter().filter(|&&tensor| {
            let tensor = self.class.tensor(tensor);
            tensor.keep == Keep::Transient && tensor.content != Content::Staging
        });
        let position = self.position;
        let freed: u64 = freed.map(|&tensor| self.class.tensor_bytes(tensor, position)).sum();
        // What became its result is not free.
        let bytes = freed.min(all);
        if bytes > 0 {
            self.memory.hold(bytes);
            self.freed.push_back(Freed { bytes, launched: actor.launched(), end });
        }
    }

    fn begin(&mut self, actor: &ActorState<'_, 'p>, time: Picos, extra: ExtraBytes) {
        self.use_again(actor.launched());
        let (instruction, microbatch) = (actor.line().instruction, actor.microbatch());
        let before = self.memory.peak_bytes();
        if let Some((late, _)) = &mut self.late {
            self.memory.hold(late.write(self.class, self.position, instruction));
        }
        self.memory.begin(instruction, microbatch);
        self.memory.pass(extra.workspace);
        self.note_absent(before);
        self.note_memory(time, extra.workspace);
        if let Action::Kernel { op, pass, .. } = &instruction.action {
            match pass {
                Pass::Forward if extra.saved > 0 => {
                    let most = self.memory.peak_bytes();
                    self.memory.hold(extra.saved);
                    self.note_absent(most);
                    let before = self.saved.insert((*op, microbatch), extra.saved);
                    self.memory.give_back(before.unwrap_or(0));
                    self.note_memory(time, 0);
                }
                Pass::Input => {
                    let saved = self.saved.remove(&(*op, microbatch));
                    self.memory.give_back(saved.unwrap_or(0));
                }
                Pass::Forward | Pass::Weight => {}
            }
        }
    }

    /// Takes down which gradients are absent where there is more now than `before` was the most.
    fn note_absent(&mut self, before: u64) {
        if let Some((late, at_peak)) = &mut self.late
            && self.memory.peak_bytes() > before
        {
            *at_peak = late.absent();
        }
    }

    /// The host, at `time`, can use again what collectives have freed that have ended, or that it launched so long
    /// before that it has waited for them.
    fn use_again(&mut self, time: Picos) {
        let Some(ahead) = self.ahead else { return };
        while let Some(first) = self.freed.front()
            && (first.end <= time || time.since(first.launched) >= ahead)
        {
            self.memory.give_back(first.bytes);
            self.freed.pop_front();
        }
    }

    /// An entry ends at `time`, or after it the step.
    pub fn end_item(&mut self, time: Picos) {
        self.track.intervals.extend(self.computing.take());
        self.note_memory(time, 0);
    }

    /// From `time` on what is live is held, and so many bytes more.
    fn note_memory(&mut self, time: Picos, more: u64) {
        if self.kept == Kept::All {
            self.changes.change(time, self.memory.live_bytes() + more);
        }
    }

    /// A step ends at `end`.
    pub fn end_step(&mut self, end: Picos) {
        self.ended_steps += 1;
        if let Kept::Figures { steps_before } = self.kept
            && self.ended_steps <= steps_before
        {
            self.track.intervals.retain(|it| it.end > end);
            self.incoming.retain(|it| it.end > end);
        }
        if let Some((late, _)) = &mut self.late {
            self.memory.give_back(late.free());
        }
    }

    /// The track; the actor's rank has sent `sent_bytes`, and all of a folded class so many.
    pub fn finish(mut self, sent_bytes: u64, class_sent_bytes: Option<u64>) -> Track {
        self.track.intervals.extend(latest_on_top(self.incoming));
        if self.kept == Kept::All {
            self.track.memory = self.changes.finish();
        }
        self.track.peak_bytes = self.memory.peak_bytes();
        self.track.peak_activation_bytes = Some(self.memory.peak_activation_bytes());
        self.track.peak_absent_gradient_bytes = self.late.map(|(_, absent)| absent);
        self.track.sent_bytes = sent_bytes;
        self.track.class_sent_bytes = class_sent_bytes;
        self.track
    }
}

/// The parts of `intervals` in which no later one runs, in order.
fn latest_on_top(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_by_key(|interval| interval.start);
    let mut shown: Vec<Interval> = Vec::with_capacity(intervals.len());
    let mut under_way: Vec<Interval> = vec![];
    let mut now = Picos::ZERO;
    // Shows what is under way, the latest on top, up to `until`.
    let mut show = |under_way: &mut Vec<Interval>, until: Picos| {
        while let Some(top) = under_way.last()
            && now < until
        {
            let (start, end) = (now, top.end.min(until));
            now = now.max(end);
            let top = match top.end <= until {
                true => under_way.pop(),
                false => Some(top.clone()),
            };
            shown.extend(top.filter(|_| end > start).map(|top| Interval { start, end, ..top }));
        }
        now = now.max(until);
    };
    for interval in intervals {
        show(&mut under_way, interval.start);
        under_way.push(interval);
    }
    show(&mut under_way, Picos(u64::MAX));
    shown
}

/// Where the actor stands, for people: `stage 0, dp 1, tp 0`, or `stage 0, dp 64 x tp 8` for a class.
fn place(program: &Program, actor: Actor, folded: bool) -> String {
    let class = program.class(actor.class);
    let mut place = class.place();
    if folded && class.mesh.size() > 1 {
        place += &format!(", {}", class.mesh);
    } else if !folded {
        for axis in class.mesh.axes() {
            place += &format!(", {axis} {}", class.mesh.coordinate(actor.position, axis));
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(label: &str, start: u64, end: u64) -> Interval {
        Interval {
            lane: Lane::CommunicationIn,
            activity: Activity::Collective,
            label: label.into(),
            microbatch: None,
            chunk: None,
            start: Picos(start),
            end: Picos(end),
        }
    }

    #[test]
    fn the_latest_is_on_top_and_nothing_is_lost() {
        let overlapping = vec![
            interval("reduce", 10, 50),
            interval("gather", 15, 20),
            interval("gather", 20, 30),
            interval("norm", 25, 60),
            interval("later", 70, 80),
        ];
        let shown = [
            interval("reduce", 10, 15),
            interval("gather", 15, 20),
            interval("gather", 20, 25),
            interval("norm", 25, 60),
            interval("later", 70, 80),
        ];
        assert_eq!(latest_on_top(overlapping), shown);
        let within = vec![interval("tensor", 3, 4), interval("data", 0, 9), interval("x", 5, 6)];
        let shown = [
            interval("data", 0, 3),
            interval("tensor", 3, 4),
            interval("data", 4, 5),
            interval("x", 5, 6),
            interval("data", 6, 9),
        ];
        assert_eq!(latest_on_top(within), shown);
    }
}
