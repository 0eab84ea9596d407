//! From when to when each tensor that comes and goes on a rank is there: its live range.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{LINE_BYTES, Stay};
use crate::allocation::Allocated;
use crate::outstanding::{Ended, Follower, Moment};
use crate::{
    Allocation, Class, Content, Copies, Cursor, Entry, Extent, Instruction, Next, Program, Run,
    Shape, TensorId,
};

/// An allocation with the time that it lives, however often its bytes change hands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub birth: Birth,
    /// Its bytes, in whole lines, counted in instructions.
    pub stay: Stay,
    /// Its own bytes.
    pub bytes: u64,
    /// Whether a collective freed it that was still outstanding when its entry ended.
    ended_elsewhere: bool,
}

/// What allocated something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    /// The entry in its step.
    pub run: Run,
    /// Its place in the body.
    pub instruction: u32,
    pub what: Allocation,
}

/// Lives on a circle of time.
#[derive(Debug)]
pub(super) struct Timeline {
    pub lives: Vec<Life>,
    pub period: u64,
    /// When entries begin.
    pub borders: Vec<u64>,
}

impl Timeline {
    /// Training, which repeats after so many `rounds` of the control, from where all that can be under way
    /// is.
    pub fn training(program: &Program, class: &Class, rounds: u32) -> Timeline {
        let mut walk = Walk::new(class);
        let mut follower = Follower::new(program, class);
        // Past the first period all that is in flight has begun, and by the end of the third all that
        // began in the second is over. With a flush each step is over by itself, unless something of it is
        // left to do in the next.
        let overlaps = program.ahead > 0 || class.late() > 0;
        let (filling, passes) = if overlaps { (rounds, 3) } else { (0, 1) };
        let mut cursor = program.endless(class, rounds * passes);
        while let Some(next) = cursor.advance() {
            match next {
                Next::Run(run) => {
                    walk.recording = (filling..filling + rounds).contains(&run.at_step());
                    walk.run(&mut follower, run);
                }
                Next::Guard(_, step) => {
                    walk.recording =
                        (i64::from(filling)..i64::from(filling + rounds)).contains(&step);
                    walk.guard(&mut follower, &mut cursor);
                }
                Next::Choice => unreachable!("a row without ends answers clients in turn"),
            }
        }
        follower.finish(|moment| walk.visit(None, moment));
        let period = walk.now / u64::from(passes);
        walk.finish(period, overlaps)
    }

    /// The evaluation of one micro-batch.
    pub fn evaluation(program: &Program, class: &Class) -> Timeline {
        let mut walk = Walk::new(class);
        let mut follower = Follower::new(program, class);
        walk.recording = true;
        let entries = class.evaluation.iter().map(|&body| Entry::new(body, Some(0)));
        entries.for_each(|entry| walk.run(&mut follower, Run::alone(entry)));
        follower.finish(|moment| walk.visit(None, moment));
        let period = walk.now;
        walk.finish(period, false)
    }

    /// Of how many of so many `microbatches` that take turns something is there at once when an entry begins,
    /// at most.
    pub fn in_flight(&self, microbatches: u32) -> usize {
        let mut there = vec![FxHashSet::default(); self.borders.len()];
        for Life { birth, stay, .. } in &self.lives {
            let Some(microbatch) = birth.run.microbatch else { continue };
            let first = self.borders.partition_point(|&border| border < stay.start);
            let round = (first..).map(|at| {
                let (turns, at) = (at / self.borders.len(), at % self.borders.len());
                (at, self.borders[at] + turns as u64 * self.period)
            });
            for (at, _) in round.take_while(|&(_, moment)| moment < stay.start + stay.length) {
                there[at].insert(microbatch % microbatches);
            }
        }
        there.iter().map(FxHashSet::len).max().unwrap_or(0)
    }
}

/// What is there while a rank follows entries.
struct Walk<'a> {
    class: &'a Class,
    /// Instructions so far.
    now: u64,
    /// Whether what is allocated now is to be told of.
    recording: bool,
    open: FxHashMap<Allocation, Open>,
    /// Since when the arm of a guard is walked that a rank takes where the flag does not hold.
    other_since: Option<u64>,
    /// Until when that arm needs what was there before it.
    needed: FxHashMap<Allocation, u64>,
    lives: Vec<Life>,
    /// When entries began.
    entries: Vec<u64>,
}

/// An allocation that is there.
#[derive(Clone)]
struct Open {
    birth: Birth,
    since: u64,
    bytes: u64,
    recorded: bool,
}

impl<'a> Walk<'a> {
    fn new(class: &'a Class) -> Walk<'a> {
        let (open, needed, lives, entries) =
            (FxHashMap::default(), FxHashMap::default(), vec![], vec![]);
        let (now, recording, other_since) = (0, false, None);
        Walk { class, now, recording, open, other_since, needed, lives, entries }
    }

    /// Both arms of a guard, as if they were run at the same time: what both free is there until both have,
    /// and what one of them allocates lies apart from what the other does. Both end with the same, so the
    /// walk goes on from where the flag holds. In the other arm, what is run once more lies where it lay,
    /// which has been left.
    fn guard(&mut self, follower: &mut Follower<'_>, cursor: &mut Cursor<'_>) {
        let (start, before) = (self.now, self.open.clone());
        let mut other = follower.clone();
        self.other_since = Some(start);
        for run in cursor.arm(false) {
            if !self.class.repeats(&run.entry) {
                self.run(&mut other, run);
            }
        }
        self.other_since = None;
        let end = std::mem::replace(&mut self.now, start);
        self.open = before;
        for run in cursor.arm(true) {
            self.run(follower, run);
        }
        self.needed.clear();
        self.now = self.now.max(end);
        cursor.leave_arm();
    }

    fn run(&mut self, follower: &mut Follower<'_>, run: Run) {
        self.entries.push(self.now);
        follower.run(&run, |moment| self.visit(Some(run), moment));
    }

    /// Takes in what becomes of an instruction, while an entry is run or after the last.
    fn visit(&mut self, run: Option<Run>, moment: Moment<'_>) {
        match (moment, run) {
            (Moment::Start(issued, instruction), Some(run)) => {
                self.allocate(run, issued.index, instruction);
                self.now += 1;
            }
            (Moment::Start(..), None) => unreachable!("instructions start in entries"),
            (Moment::End(issued, instruction, ended), _) => {
                self.free(instruction, issued.microbatch, ended);
            }
        }
    }

    fn allocate(&mut self, run: Run, index: u32, instruction: &Instruction) {
        for Allocated { what, from } in self.class.allocated_by(instruction, run.microbatch) {
            if let Some(handed) = from.and_then(|from| self.open.remove(&from)) {
                self.open.insert(what, handed);
                continue;
            }
            let birth = Birth { run, instruction: index, what };
            let bytes = most_bytes(self.class, what.tensor);
            let open = || Open { birth, since: self.now, bytes, recorded: self.recording };
            self.open.entry(what).or_insert_with(open);
        }
    }

    fn free(&mut self, instruction: &Instruction, microbatch: Option<u32>, ended: Ended) {
        for what in self.class.freed_by(instruction, microbatch) {
            let Some(open) = self.open.remove(&what) else { continue };
            let Open { birth, since, bytes, recorded } = open;
            if self.other_since.is_some_and(|start| since < start) {
                self.needed.insert(what, self.now);
            } else if recorded {
                let until = self.needed.get(&what).map_or(self.now, |&it| it.max(self.now));
                let length = until - since;
                let lines = bytes.div_ceil(LINE_BYTES) * LINE_BYTES;
                let stay = Stay { start: since, length, bytes: lines };
                let ended_elsewhere = ended == Ended::Later;
                self.lives.push(Life { birth, stay, bytes, ended_elsewhere });
            }
        }
    }

    /// All lives, on a circle of `period` instructions.
    ///
    /// # Panics
    /// If something is never freed: each is freed by its last reader, or by what ends its use.
    fn finish(self, period: u64, overlaps: bool) -> Timeline {
        let Walk { open, mut lives, mut entries, class, .. } = self;
        entries.sort_unstable();
        let forgotten = open.values().find(|it| it.recorded || !overlaps);
        if let Some(Open { birth, .. }) = forgotten {
            panic!("nothing frees {}", class.allocation_text(birth.what));
        }
        for Life { birth, stay, ended_elsewhere, .. } in &mut lives {
            assert!(
                stay.length <= period,
                "{} outlives its row",
                class.allocation_text(birth.what)
            );
            let tensor = class.tensor(birth.what.tensor);
            let of_bucket = tensor.copies != Copies::PerMicrobatch;
            // What a guard is about comes and goes at entries that no step leaves out.
            let of_guard = matches!(tensor.content, Content::Backup | Content::Flag);
            let block = |moment: u64| entries.partition_point(|&entry| entry <= moment);
            let across = block(stay.start) != block(stay.start + stay.length - 1);
            if overlaps && ((of_bucket && !of_guard && across) || *ended_elsewhere) {
                // Where filling or draining leaves entries out, another may allocate or free it.
                (stay.start, stay.length) = (0, period);
            }
            stay.start %= period;
        }
        entries.retain(|&entry| entry < period);
        entries.dedup();
        if entries.is_empty() {
            entries.push(0);
        }
        Timeline { lives, period: period.max(1), borders: entries }
    }
}

/// What a tensor takes at the position where it takes most. Shares differ by an element at most, and the
/// first position's are the largest, but for what is kept of single parameters.
fn most_bytes(class: &Class, tensor: TensorId) -> u64 {
    let bytes = |position| class.tensor_bytes(tensor, position);
    match class.tensor(tensor).shape {
        Shape::Flat(Extent::OfParam { .. }) => (0..class.mesh.size()).map(bytes).fold(0, u64::max),
        _ => bytes(0),
    }
}
