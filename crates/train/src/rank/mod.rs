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
mod norm;
mod parameters;
mod pieces;
mod redistribute;
mod routes;
mod rows;
mod scratch;
mod store;
mod update;

use std::sync::Arc;
use std::time::Instant;

use shardloom_data::{Part, Source};
use shardloom_graph::work::Pass;
use shardloom_graph::{Extents, Graph};
use shardloom_kernels::{Buffer, Device, Memory};
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::{Action, BodyId, Class, ClassId, Content, Instruction, Program, Run};

use crate::Result;
use crate::learning_rate::LearningRate;

use arena::Arena;
pub use exchange::Contribution;
pub(crate) use exchange::{Begun, Part as Brought};
use inputs::Inputs;
use norm::Norm;
use parameters::Parameters;
pub(crate) use pieces::OwnedPiece;
use rows::CountedRows;
pub(crate) use rows::NotedRows;
pub use rows::RowExchange;
use store::Store;
pub(crate) use store::stored;
pub(crate) use update::StepOutcome;

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
    /// What kernels need besides their operands; none while an instruction has it.
    scratch: Option<Buffer>,
    store: Store,
    parameters: Parameters,
    now: Now,
    /// What the steps of the row came to, as far as is known.
    outcomes: Vec<StepOutcome>,
    norm: Norm,
    /// This rank's part of the loss of each micro-batch of steps that it has begun, counted from the first of
    /// the row.
    losses: Vec<(u32, f64)>,
    counted: CountedRows,
}

/// What the rank is at.
#[derive(Clone, Copy, Debug)]
struct Now {
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
        let extents = shared.program.microbatch_extents(&shared.graph);
        let inputs = Inputs::new(&shared.graph, &extents, node, position);
        let loss_terms = shared.program.global_batch * shared.graph.targets_per_sample();
        let updates = node.updates();
        let now = Now { step: 0, of_step: 0, part: Part::Training, first_step: 0, first_sample: 0 };
        let norm = Norm::new(node);
        let counted = CountedRows::new(&shared.graph, &shared.program, node, position);
        let shared = Arc::clone(shared);
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
            scratch,
            store,
            parameters,
            now,
            outcomes: vec![],
            norm,
            losses: vec![],
            counted,
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
    /// pipeline is empty.
    pub fn begin_steps(&mut self, first_step: u64, steps: u32) {
        let samples = self.shared.program.global_batch as u64;
        self.now = Now {
            step: first_step,
            of_step: first_step,
            part: Part::Training,
            first_step,
            first_sample: first_step * samples,
        };
        self.clear();
        self.losses.clear();
        self.losses.reserve(self.store.in_flight());
        self.outcomes = Vec::with_capacity(steps.min(MOST_RESERVED) as usize);
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
        let mut outcomes = std::mem::take(&mut self.outcomes);
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
        self.now.of_step = self.now.first_step.wrapping_add_signed(run.of_step());
        self.store.go_back(run.entry.age);
        self.arena.begin_entry(run);
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
        let step = self.now.step;
        self.now =
            Now { step, of_step: step, part: Part::Validation, first_step: step, first_sample };
        self.clear();
        self.losses.clear();
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
                if *pass == Pass::Forward {
                    self.note_rows(*op, instruction, microbatch)?;
                }
            }
            Action::Slice { axis, over } => self.slice(*axis, *over, instruction, microbatch),
            Action::Add | Action::Copy => self.combine(instruction, microbatch),
            Action::Free => {}
            Action::Report => self.note_loss(instruction, microbatch),
            Action::Extrapolate { forward } => self.extrapolate(instruction, *forward),
            Action::Norm => self.find_norm(instruction),
            Action::Statistics { round } => self.find_statistics(instruction, *round),
            Action::Optimizer => self.update(instruction),
            Action::Cast => self.cast(instruction),
            Action::Test => self.test(instruction),
            Action::Send { .. } | Action::Receive { .. } | Action::Collective { .. } => {
                unreachable!("{:?} involves other ranks", instruction.action)
            }
        }
        self.free(instruction, microbatch);
        Ok(())
    }
}
