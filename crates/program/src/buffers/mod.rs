//! The static buffer plan: where on a rank each tensor that comes and goes lies, assigned ahead from the
//! program's lifetimes, so that a run allocates nothing while it trains.
//!
//! A rank runs the same instructions in every step, so what is born when and freed when is known. A
//! program with flush starts and ends each step empty, and one step is the plan; where updates are
//! tested in the next step, what they changed is kept until then, and steps follow each other on a
//! circle. One that runs ahead repeats after as many steps as can be under way; filling and draining only
//! leave some of it out.

mod assignment;
mod lifetimes;
mod messages;
#[cfg(test)]
mod tests;

use assignment::{Stay, assign, is_tight, peak_bytes};
use lifetimes::{Life, Timeline};
pub use messages::MessagePlan;
use rustc_hash::FxHashMap;

use crate::{BodyId, Class, Program, Run, TensorId};

/// Places begin at multiples of this many bytes, a cache line, as an arena of the kernels asks for.
const LINE_BYTES: u64 = 64;

/// Up to how many times the steps that can be under way are planned for as a whole, and up to how many
/// places.
const MOST_TIMES: u32 = 16;
const MOST_PLACES: usize = 30_000;

/// Where a tensor that an instruction allocates lies in its rank's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it begins, in bytes; a multiple of a cache line's 64.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Identifies what is allocated when: the instruction of a body, the [row](BufferPlan::row) that it runs
/// in, and the tensor.
type Key = (BodyId, u32, u32, TensorId);

/// Identifies a place of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(pub u32);

/// The places of all that comes and goes on a rank of one class. All its ranks have the same.
#[derive(Clone, Debug)]
pub struct BufferPlan {
    places: Vec<(Key, Place)>,
    known: FxHashMap<Key, PlaceId>,
    rows: Rows,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// The most that is in use at once, each tensor rounded up to whole lines; the arena is at least as
    /// large.
    pub peak_bytes: u64,
}

/// How many runs of a body, and of what belongs to the step, have places of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    microbatches: u32,
    steps: u32,
    /// How often a step runs a body that has no micro-batch, at most.
    occurrences: u32,
}

impl BufferPlan {
    /// The plan of the ranks of `class`, for training and for evaluation, which take turns.
    pub fn new(program: &Program, class: &Class) -> BufferPlan {
        let evaluation = Timeline::evaluation(program, class);
        let least = program.ahead + 1;
        let once = Timeline::training(program, class, least);
        let planned = |times: u32, training: &Timeline| {
            let mut plan = BufferPlan::empty(program, class, least * times);
            plan.add(training);
            plan.add(&evaluation);
            plan
        };
        let mut best = planned(1, &once);
        // In a program with flush all steps are alike.
        if program.ahead == 0 || is_tight(best.arena_bytes, best.peak_bytes) {
            return best;
        }
        let microbatches = program.microbatches as u32 * least;
        for times in longer(microbatches, once.in_flight(microbatches), once.lives.len()) {
            let plan = planned(times, &Timeline::training(program, class, least * times));
            if plan.arena_bytes < best.arena_bytes {
                best = plan;
            }
            if is_tight(best.arena_bytes, best.peak_bytes) {
                break;
            }
        }
        best
    }

    /// The plan of ranks of `class` that only evaluate.
    pub fn for_evaluation(program: &Program, class: &Class) -> BufferPlan {
        let mut plan = BufferPlan::empty(program, class, 1);
        plan.add(&Timeline::evaluation(program, class));
        plan
    }

    /// A plan without places for so many steps that take turns.
    fn empty(program: &Program, class: &Class, steps: u32) -> BufferPlan {
        let microbatches = program.microbatches as u32 * steps;
        let last = class.entries().map(|entry| entry.occurrence).max();
        let occurrences = last.map_or(1, |last| last + 1);
        let rows = Rows { microbatches, steps, occurrences };
        BufferPlan {
            places: vec![],
            known: FxHashMap::default(),
            rows,
            arena_bytes: 0,
            peak_bytes: 0,
        }
    }

    fn add(&mut self, timeline: &Timeline) {
        let stays: Vec<Stay> = timeline.lives.iter().map(|life| life.stay).collect();
        let assignment = assign(&stays, timeline.period, &timeline.borders);
        self.arena_bytes = self.arena_bytes.max(assignment.arena_bytes);
        self.peak_bytes = self.peak_bytes.max(peak_bytes(&stays, timeline.period));
        for (Life { birth, bytes, .. }, offset) in timeline.lives.iter().zip(assignment.offsets) {
            let row = self.row(&birth.run);
            let key = (birth.run.entry.body, row, birth.instruction, birth.what.tensor);
            let earlier = self.known.insert(key, PlaceId(self.places.len() as u32));
            assert_eq!(earlier, None, "each allocation has a place of its own");
            self.places.push((key, Place { offset, bytes: *bytes }));
        }
    }

    /// The row of places of an entry in a row of steps: micro-batches in flight take turns, and so do
    /// steps.
    pub fn row(&self, run: &Run) -> u32 {
        match run.microbatch {
            Some(microbatch) => microbatch % self.rows.microbatches,
            None => run.at_step() % self.rows.steps * self.rows.occurrences + run.entry.occurrence,
        }
    }

    /// How many rows of places there are.
    pub fn rows(&self) -> u32 {
        let Rows { microbatches, steps, occurrences } = self.rows;
        microbatches.max(steps * occurrences)
    }

    /// The place of `tensor` where the n-th instruction of `body` allocates it; none if it does not, or
    /// the tensor takes over another's place.
    pub fn find(
        &self,
        body: BodyId,
        row: u32,
        instruction: u32,
        tensor: TensorId,
    ) -> Option<PlaceId> {
        self.known.get(&(body, row, instruction, tensor)).copied()
    }

    /// A place.
    pub fn place(&self, id: PlaceId) -> Place {
        self.places[id.0 as usize].1
    }

    /// What has a place, and since when, for people.
    pub fn place_text(&self, class: &Class, id: PlaceId) -> String {
        let (body, row, instruction, tensor) = self.places[id.0 as usize].0;
        let body = class.body(body).label(Some(row));
        format!("{}, from instruction {instruction} of {body} on", class.tensor(tensor).name)
    }
}

/// How many times over a row of steps with so many micro-batches is worth to be planned for as a whole, besides
/// once. Where as many are in flight as do not divide them, the last of the row cannot follow in the places of
/// those before them and have places of their own; a row of which they are a divisor has none of these. Where
/// that has too many places, any that is shorter may have fewer.
fn longer(microbatches: u32, in_flight: usize, places: usize) -> Vec<u32> {
    let fits = |times: &u32| *times == 1 || places * *times as usize <= MOST_PLACES;
    let all: Vec<u32> = (1..=MOST_TIMES).take_while(fits).collect();
    let divides = |times: u32| (microbatches * times).is_multiple_of(in_flight.max(1) as u32);
    let those = all.iter().position(|&times| divides(times)).map_or(&all[..], |at| &all[at..=at]);
    those.iter().copied().filter(|&times| times > 1).collect()
}
