//! One rank: what it holds, and how it executes the instructions that need nobody else.
//!
//! Instructions that involve others are split into what the rank contributes ([`Rank::contribute`])
//! and what it does with the result ([`Rank::conclude`]), so that threads with a fabric and a single
//! event-driven loop run the very same code.

mod arena;
mod compute;
mod corrections;
mod exchange;
mod inputs;
mod parameters;
mod pieces;
mod redistribute;
mod routes;
mod store;
mod update;
mod validation;

use std::sync::Arc;
use std::time::Instant;

use shardloom_data::{Part, Source};
use shardloom_graph::{Extents, Graph};
use shardloom_kernels::Memory;
use shardloom_plan::Axis;
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::{
    Action, BodyId, BodyKind, Class, ClassId, Content, Instruction, Program, StreamItem,
};

use crate::Result;
use crate::learning_rate::LearningRate;

use arena::Arena;
pub use exchange::Contribution;
pub(crate) use exchange::{Begun, Part as Brought};
use inputs::Inputs;
use parameters::Parameters;
use store::Store;
pub(crate) use update::StepOutcome;
use validation::Norm;

/// What all ranks of a run have in common.
pub(crate) struct Shared {
    pub graph: Graph,
    pub program: Program,
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
const MOST_RESERVED: u32 = 1 << 16;

/// One rank of a run.
pub(crate) struct Rank {
    shared: Arc<Shared>,
    class: ClassId,
    position: usize,
    /// Of one micro-batch over all replicas.
    extents: Extents,
    inputs: Inputs,
    /// How many numbers the loss of a step is the mean of.
    loss_terms: usize,
    /// How often its class updates its weights in a step.
    updates: u32,
    memory: Memory,
    arena: Arena,
    store: Store,
    parameters: Parameters,
    now: Now,
    outcome: StepOutcome,
    /// What the steps before in the row came to.
    outcomes: Vec<StepOutcome>,
    norm: Norm,
    /// This rank's part of the loss of steps that it has begun.
    losses: Vec<(u64, f64)>,
}

/// What the rank is at.
#[derive(Clone, Copy, Debug)]
struct Now {
    /// The step whose gradients are added up, from 0.
    step: u64,
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
        let memory = Memory::new();
        let node = shared.program.class(class);
        let in_flight = shared.program.microbatches * (shared.program.ahead as usize + 1);
        let mut store = Store::new(node, position, in_flight, &memory);
        let parameters = Parameters::new(shared, class, position, &mut store);
        let arena = Arena::new(shared, class, &memory);
        let extents = shared.program.microbatch_extents(&shared.graph);
        let inputs = Inputs::new(&shared.graph, &extents, node, position);
        let loss_terms = shared.program.global_batch * shared.graph.targets_per_sample();
        let updates = node.updates();
        let now = Now { step: 0, part: Part::Training, first_step: 0, first_sample: 0 };
        let norm = Norm::new(node);
        let shared = Arc::clone(shared);
        let outcome = StepOutcome::default();
        Rank {
            shared,
            class,
            position,
            extents,
            inputs,
            loss_terms,
            updates,
            memory,
            arena,
            store,
            parameters,
            now,
            outcome,
            outcomes: vec![],
            norm,
            losses: vec![],
        }
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
        for axis in Axis::ALL.into_iter().filter(|&axis| class.mesh.width(axis) > 1) {
            place += &format!(", {axis} {}", class.mesh.coordinate(self.position, axis));
        }
        place
    }

    /// Prepares for `steps` steps in a row, from `first_step` on; micro-batches are counted from it. The
    /// pipeline is empty.
    pub fn begin_steps(&mut self, first_step: u64, steps: u32) {
        let samples = self.shared.program.global_batch as u64;
        self.now = Now {
            step: first_step,
            part: Part::Training,
            first_step,
            first_sample: first_step * samples,
        };
        self.clear();
        self.losses.clear();
        self.outcomes = Vec::with_capacity(steps.min(MOST_RESERVED) as usize);
        self.store.forget_older();
        self.begin_step(0);
    }

    /// Prepares for the n-th of these steps, or for what is left to do of the last.
    pub fn begin_step(&mut self, number: u32) {
        if number > 0 {
            let outcome = self.end_step();
            self.outcomes.push(outcome);
        }
        self.now.step = self.now.first_step + u64::from(number);
        self.outcome = StepOutcome::default();
        self.parameters.sums.end_all();
    }

    /// What each of `steps` steps in a row came to on this rank.
    pub fn end_steps(&mut self, steps: u32) -> Vec<StepOutcome> {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        if outcomes.len() < steps as usize {
            outcomes.push(self.end_step());
        }
        outcomes
    }

    /// Prepares for an entry of the stream, whose micro-batch is counted from the first of all steps in
    /// a row.
    pub fn begin_item(&mut self, item: &StreamItem) {
        self.norm.amending = self.class().body(item.body).kind == BodyKind::Amendment;
        self.store.go_back(item.age);
        let step = (self.now.step - self.now.first_step) as u32;
        self.arena.begin_item(item, step);
    }

    /// Prepares for the n-th instruction of the entry's body, which is the next that the rank takes part
    /// in.
    pub fn go_to(&mut self, instruction: u32) {
        self.arena.go_to(instruction);
    }

    /// The instruction that it is at, by its body and its number there.
    pub fn instruction(&self) -> (BodyId, u32) {
        self.arena.instruction()
    }

    /// Frees all that comes and goes: what is left of a pass that was not finished. Nothing is left to
    /// amend either, as the last step of a row is validated in it.
    fn clear(&mut self) {
        self.store.clear();
        self.norm.clear();
    }

    /// What the step came to on this rank.
    pub fn end_step(&mut self) -> StepOutcome {
        let at = self.losses.iter().position(|&(step, _)| step == self.now.step);
        let loss_sum = at.map(|at| self.losses.swap_remove(at).1);
        StepOutcome { loss_sum, ..self.outcome }
    }

    /// Prepares for evaluating the micro-batch whose first sample is the n-th of the validation part.
    pub fn begin_evaluation(&mut self, first_sample: u64) {
        self.now = Now { part: Part::Validation, first_sample, ..self.now };
        self.now.first_step = self.now.step;
        self.clear();
        self.losses.clear();
        self.outcome = StepOutcome::default();
        self.store.go_back(0);
    }

    /// Frees what an instruction of messages, all of them sent or received, says is dead.
    pub fn free(&mut self, instruction: &Instruction, microbatch: u32) {
        let Rank { shared, class, store, parameters, .. } = self;
        store.free(instruction, microbatch);
        // A sum that is freed begins anew with its next write.
        let class = shared.program.class(*class);
        for &freed in &instruction.frees {
            let tensor = class.tensor(freed);
            if let (Content::Gradient, Some(bucket)) = (tensor.content, tensor.bucket) {
                parameters.sums.end(&class.bucket(bucket).params);
            }
        }
    }

    /// Executes an instruction that needs nobody else.
    pub fn execute(&mut self, instruction: &Instruction, microbatch: u32) -> Result<()> {
        match &instruction.action {
            Action::Load { value, .. } => self.load(*value, instruction, microbatch)?,
            Action::Kernel { op, pass, assignment, .. } => {
                self.compute(*op, *pass, assignment, instruction, microbatch);
            }
            Action::Slice { axis, over } => self.slice(*axis, *over, instruction, microbatch),
            Action::Copy if self.backs_up(instruction) => self.back_up(instruction),
            Action::Add | Action::Copy => self.combine(instruction, microbatch),
            Action::Report => self.note_loss(instruction, microbatch),
            Action::Extrapolate { forward } => self.extrapolate(instruction, *forward),
            Action::Norm => self.find_norm(instruction),
            Action::Statistics { round } => self.find_statistics(instruction, *round),
            Action::Optimizer => self.update(instruction),
            Action::Validate => self.validate(instruction),
            Action::Send { .. } | Action::Receive { .. } | Action::Collective { .. } => {
                unreachable!("{:?} involves other ranks", instruction.action)
            }
        }
        self.free(instruction, microbatch);
        Ok(())
    }

    fn backs_up(&self, instruction: &Instruction) -> bool {
        self.class().tensor(instruction.writes[0].to.tensor).content == Content::Backup
    }
}
