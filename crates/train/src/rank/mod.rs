//! One rank: what it holds, and how it executes the instructions that need nobody else.
//!
//! Instructions that involve others are split into what the rank contributes ([`Rank::contribute`])
//! and what it does with the result ([`Rank::conclude`]), so that threads with a fabric and a single
//! event-driven loop run the very same code. Instructions are linked when the rank is built ([`link`]).

mod arena;
mod average;
mod classes;
mod combine;
mod compression;
mod compute;
mod corrections;
mod delta;
mod exchange;
mod inputs;
mod link;
mod lookups;
mod loss;
mod norm;
mod own_state;
mod parameters;
mod pieces;
mod redistribute;
mod routes;
mod rows;
mod scratch;
mod store;
mod table_rows;
mod takeover;
mod update;
mod window;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use shardloom_data::{Part, Source};
use shardloom_graph::Graph;
use shardloom_kernels::device::Setting;
use shardloom_kernels::{Buffer, Device, Memory};
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::{
    Action, BodyId, Class, ClassId, Instruction, Issued, Program, Run, TensorId, View,
};

use crate::Result;
use crate::learning_rate::LearningRate;

use arena::Arena;
pub use exchange::Contribution;
pub(crate) use exchange::{Begun, Collective, Part as Brought};
pub(crate) use link::{At, Linked, LinkedInstruction, Work};
use link::{Linker, Local};
use norm::Norm;
use parameters::Parameters;
pub(crate) use pieces::OwnedPiece;
pub(crate) use routes::{SentMessage, sent_messages};
pub(crate) use rows::NotedRows;
pub use rows::RowExchange;
use rows::{CountedRows, Lists};
use store::Store;
pub(crate) use store::stored;
pub(crate) use takeover::{Gradients, RowEnd};
pub(crate) use update::StepOutcome;
pub(crate) use window::copy as copy_published;
pub(crate) use window::{Fetch, Publish};

/// What all ranks of a run have in common.
pub(crate) struct Shared {
    pub graph: Graph,
    pub program: Program,
    /// What all ranks compute on.
    pub device: Arc<dyn Device>,
    pub source: Arc<dyn Source + Send>,
    pub seed: u64,
    pub learning_rate: LearningRate,
    pub skip_non_finite: bool,
    /// Whether a step that is skipped ends the run, so that later ones of its row leave their updates
    /// out too.
    pub stops: bool,
    /// Where what comes and goes on the ranks of each class lies.
    pub buffers: Vec<BufferPlan>,
    /// How many messages can be under way.
    pub messages: MessagePlan,
    /// What times of recorded timelines are counted from.
    pub began: Instant,
}

/// For how many steps in a row room is made for what they come to; longer rows make more as they go.
pub(crate) const MOST_RESERVED: u32 = 1 << 16;

/// One rank of a run.
pub(crate) struct Rank {
    shared: Arc<Shared>,
    class: ClassId,
    position: usize,
    linked: Arc<Linked>,
    /// What kernels depend on, of each that is linked.
    settings: Vec<Setting>,
    /// Room for a sample that is rounded.
    rounded: Vec<u16>,
    /// Room for a sample that is read from a file.
    sample: Vec<u32>,
    /// Room for lists of rows.
    lists: Lists,
    /// How often its class updates its weights in a step.
    updates: u32,
    /// By bucket: how often it was updated in the row of steps.
    updated: Vec<u32>,
    memory: Memory,
    arena: Arena,
    /// What kernels need besides their operands; none while an instruction has it.
    scratch: Option<Buffer>,
    /// Where weights of 16 bits are updated in fp32; none while an instruction has it, and where there are no such.
    wide: Option<Buffer>,
    store: Store,
    parameters: Parameters,
    now: Now,
    /// What the steps of the row came to, as far as is known.
    outcomes: Vec<StepOutcome>,
    norm: Norm,
    /// The targets of a step.
    targets: usize,
    /// By how much the loss is scaled in the backward passes of the row.
    loss_scale: f64,
    /// This rank's part of the loss of each micro-batch of steps that it has begun, counted from the first of
    /// the row.
    losses: Vec<(u32, f64)>,
    /// The classes of samples that are evaluated, as far as this rank can tell.
    classes: Vec<(u64, u32)>,
    counted: CountedRows,
    /// The tensors of the weights that it owns, by parameter, once they were asked for.
    weights_by_name: OnceCell<BTreeMap<String, Vec<TensorId>>>,
}

/// What the rank is at.
#[derive(Clone, Copy, Debug)]
struct Now {
    /// The entry, before its first instruction.
    entry: At,
    /// The step whose gradients are added up, from 0.
    step: u64,
    /// The step that the current entry belongs to.
    of_step: u64,
    part: Part,
    /// The step that micro-batches are counted from.
    first_step: u64,
    /// The first sample of that step, or of the evaluated micro-batch.
    first_sample: u64,
}

impl Rank {
    /// A rank with fresh weights.
    pub fn new(shared: &Arc<Shared>, rank: shardloom_program::Rank) -> Rank {
        let (class, position) = shared.program.locate(rank);
        let memory = Memory::new(Arc::clone(&shared.device));
        let node = shared.program.class(class);
        let in_flight = shared.program.microbatches * (shared.program.ahead as usize + 1);
        let mut store = Store::new(node, position, in_flight, &memory);
        let parameters = Parameters::new(shared, class, position, &mut store);
        let arena = Arena::new(shared, class, &memory);
        let scratch = Some(scratch::allocate(shared, class, &parameters));
        let wide = scratch::for_weights(shared, class, &parameters);
        let extents = shared.program.microbatch_extents(&shared.graph);
        let counted = CountedRows::new(&shared.graph, &shared.program, class, position);
        let mut linker = Linker {
            shared,
            class: node,
            position,
            extents: &extents,
            plan: &shared.buffers[class.0 as usize],
            store: &store,
            parameters: &parameters,
            counted: &counted,
            settings: vec![],
            sent: sent_messages(&shared.program, rank),
            collectives: 0,
            body: BodyId(0),
            index: 0,
        };
        let linked = Arc::new(linker.link());
        let settings = linker.settings;
        let now = Now {
            entry: At::START,
            step: 0,
            of_step: 0,
            part: Part::Training,
            first_step: 0,
            first_sample: 0,
        };
        Rank {
            shared: Arc::clone(shared),
            class,
            position,
            linked,
            settings,
            rounded: vec![],
            sample: vec![],
            lists: Lists::default(),
            updates: node.updates(),
            updated: vec![0; node.buckets.len()],
            memory,
            arena,
            scratch,
            wide,
            norm: Norm::new(node, &store),
            targets: compute::targets(shared),
            loss_scale: 1.0,
            store,
            parameters,
            now,
            outcomes: vec![],
            losses: vec![],
            weights_by_name: OnceCell::new(),
            classes: vec![],
            counted,
        }
    }

    /// Its collectives in all bodies, in the order of their numbers.
    pub fn collectives(&self) -> impl Iterator<Item = &Instruction> {
        let instructions = self.class().bodies.iter().flat_map(|body| &body.instructions);
        instructions.filter(|it| matches!(it.action, Action::Collective { .. }))
    }

    /// What it runs.
    pub fn linked(&self) -> &Arc<Linked> {
        &self.linked
    }

    pub fn program(&self) -> &Program {
        &self.shared.program
    }

    pub fn class_id(&self) -> ClassId {
        self.class
    }

    pub fn class(&self) -> &Class {
        self.shared.program.class(self.class)
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    pub fn position(&self) -> usize {
        self.position
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How often the system was asked for a buffer since the rank was built.
    pub fn system_allocations(&self) -> usize {
        self.arena.system_allocations()
    }

    /// Whether it evaluates, or last did, rather than trains.
    pub fn evaluates(&self) -> bool {
        self.now.part == Part::Validation
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where it stands, for people.
    pub fn place(&self) -> String {
        let class = self.class();
        let mut place = class.place();
        for axis in class.mesh.axes() {
            place += &format!(", {axis} {}", class.mesh.coordinate(self.position, axis));
        }
        place
    }

    /// Prepares for `steps` steps in a row, from `first_step` on; micro-batches are counted from it. The
    /// pipeline is empty. The loss is scaled by `loss_scale` for their backward passes.
    pub fn begin_steps(&mut self, first_step: u64, steps: u32, loss_scale: f64) {
        let samples = self.shared.program.global_batch as u64;
        self.now = Now {
            entry: At::START,
            step: first_step,
            of_step: first_step,
            part: Part::Training,
            first_step,
            first_sample: first_step * samples,
        };
        self.set_loss_scale(loss_scale);
        self.clear();
        self.updated.fill(0);
        self.losses.clear();
        self.losses.reserve(self.store.in_flight());
        self.outcomes.clear();
        self.outcomes.reserve(steps.min(MOST_RESERVED) as usize);
        self.store.forget_older();
        self.begin_step(0);
    }

    /// Prepares for the n-th of these steps, or for what is left to do of the last.
    pub fn begin_step(&mut self, number: u32) {
        if number > 0 {
            self.end_step();
        }
        self.now.step = self.now.first_step + u64::from(number);
        self.parameters.sums.end_all();
    }

    /// What each of `steps` steps in a row came to on this rank.
    pub fn end_steps(&mut self, steps: u32) -> Vec<StepOutcome> {
        self.end_step();
        // They stay here, in case that another rank is lost before all have ended the row.
        let mut outcomes = Vec::with_capacity(steps as usize);
        outcomes.extend_from_slice(&self.outcomes);
        outcomes.resize(steps as usize, StepOutcome::default());
        outcomes
    }

    /// What a step of the row has come to so far.
    fn outcome(&mut self, step: u64) -> &mut StepOutcome {
        let number = (step - self.now.first_step) as usize;
        if self.outcomes.len() <= number {
            self.outcomes.resize(number + 1, StepOutcome::default());
        }
        &mut self.outcomes[number]
    }

    /// Prepares for an entry.
    pub fn begin_entry(&mut self, run: &Run) {
        let microbatch = run.microbatch;
        self.now.of_step = self.now.first_step.wrapping_add_signed(run.of_step());
        self.now.entry = At {
            issued: Issued { body: run.entry.body, index: 0, microbatch },
            turn: self.store.turn(microbatch.unwrap_or(0)),
            row: self.shared.buffers[self.class.0 as usize].row(run),
            age: run.entry.age,
        };
    }

    /// The n-th instruction of the entry that it is at.
    pub fn at(&self, instruction: u32) -> At {
        let At { issued, .. } = self.now.entry;
        At { issued: Issued { index: instruction, ..issued }, ..self.now.entry }
    }

    /// Frees all that comes and goes: what is left of a pass that was not finished.
    fn clear(&mut self) {
        self.store.clear();
        self.norm.clear();
    }

    /// Adds up the loss of the step that is over.
    fn end_step(&mut self) {
        let loss_sum = self.take_loss(self.now.step - self.now.first_step);
        if loss_sum.is_some() {
            self.outcome(self.now.step).loss_sum = loss_sum;
        }
    }

    /// The loss of the evaluated micro-batch on this rank, where it computes the loss.
    pub fn end_evaluation(&mut self) -> Option<f64> {
        self.take_loss(0)
    }

    /// Prepares for evaluating the micro-batch whose first sample is the n-th of the validation part.
    pub fn begin_evaluation(&mut self, first_sample: u64) {
        let Now { entry, step, .. } = self.now;
        let part = Part::Validation;
        self.now = Now { entry, step, of_step: step, part, first_step: step, first_sample };
        self.clear();
        self.losses.clear();
    }

    /// Frees what is dead after an instruction.
    pub fn free(&mut self, instruction: &LinkedInstruction, at: At) {
        for &freed in &instruction.frees {
            self.store.take(freed, at);
        }
        // A sum that is freed begins anew with its next write.
        self.parameters.sums.end(&instruction.ends);
    }

    /// Executes an instruction that needs nobody else.
    ///
    /// # Errors
    /// If data is missing, or rows find no room.
    pub fn execute(&mut self, instruction: &LinkedInstruction, work: &Local, at: At) -> Result<()> {
        match work {
            Local::Load(load) => self.load(load, at)?,
            Local::LoadRows(load) => self.load_rows(load, at)?,
            Local::FindRows(find) => self.find_rows(find, at),
            Local::TakeRows(take) => self.take_rows(take, at),
            Local::Kernel(kernel) => self.compute(kernel, at)?,
            Local::Slice(slice) => self.slice(slice, at),
            Local::Move(of) => self.move_over(of, at),
            Local::Combine(parts) => parts.iter().for_each(|part| self.combine(part, at)),
            Local::Free => {}
            Local::Report(loss) => self.note_loss(*loss, at),
            Local::Extrapolate(of) => self.extrapolate(of, at),
            Local::Norm(norms) => self.find_norm(norms, at),
            Local::Statistics(of) => self.find_statistics(of, at),
            Local::Update(of) => self.update(of, at),
            Local::Cast(of) => self.cast(of, at),
            Local::Compress(of) => self.compress(of, at),
            Local::SumRows(of) => self.sum_rows(of, at),
            Local::Average(of) => self.average(of, at),
            Local::Difference(of) => self.subtract(of, at),
            Local::Due(due) => self.ask_whether_due(due, at),
            Local::Test(test) => self.test(test, at),
        }
        self.free(instruction, at);
        Ok(())
    }

    /// A value of the first micro-batch.
    pub fn reals(&self, value: View) -> Vec<f32> {
        self.device().reals(self.store.get(self.store.slot(value.tensor), At::START).view())
    }
}
