//! Programs are linked when ranks are built: for each instruction of each body it is worked out once what the
//! rank does at it, and with what: attributes of kernels, slots of operands, places of what is allocated, parts
//! of buckets, members and messages. Executing is then a walk over a list.
//!
//! What is left to an execution is what only it knows: the step and the micro-batch, of which it takes
//! remainders, which sums are begun, and counts of rows. Whom a server answers next its cursor says. Each file
//! here that executes something has what it is linked to beside it.

use shardloom_graph::Extents;
use shardloom_kernels::device::Setting;
use shardloom_program::buffers::BufferPlan;
use shardloom_program::{
    Action, BodyId, Class, ClassId, Content, Group, Instruction, Issued, Mode, ParamId,
    Rank as RankId, TensorId, View, Window, Write,
};

use super::Shared;
use super::arena::Room;
use super::average::{Average, Due};
use super::combine::{Combination, Move};
use super::compression::Compression;
use super::compute::Kernel;
use super::corrections::Extrapolation;
use super::delta::Difference;
use super::exchange::Collective;
use super::inputs::Load;
use super::lookups::{FindRows, LoadRows, TakeRows};
use super::norm::{Norms, Test};
use super::parameters::Parameters;
use super::redistribute::Slice;
use super::routes::{Receives, Sends, SentMessage};
use super::rows::CountedRows;
use super::store::{Slot, Store};
use super::table_rows::SumRows;
use super::update::{Cast, Statistics, Update};
use super::window::{Fetch, Publish};

/// A run of an instruction, with what the places of its operands depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// The instruction and its micro-batch.
    pub issued: Issued,
    /// The turn of its micro-batch among those in flight.
    pub turn: u32,
    /// The row of places in the buffer plan.
    pub row: u32,
    /// With which version of the weights: 0 is the newest.
    pub age: u32,
}

impl At {
    /// Before all instructions.
    pub const START: At = At {
        issued: Issued { body: BodyId(0), index: 0, microbatch: None },
        turn: 0,
        row: 0,
        age: 0,
    };

    /// The micro-batch; the first where there is none.
    pub fn microbatch(&self) -> u32 {
        self.issued.microbatch.unwrap_or(0)
    }
}

/// All that a rank runs, by body.
pub(crate) struct Linked {
    bodies: Vec<Box<[LinkedInstruction]>>,
}

impl Linked {
    /// The instructions of a body, in order.
    pub fn body(&self, body: BodyId) -> &[LinkedInstruction] {
        &self.bodies[body.0 as usize]
    }

    /// An instruction of a body.
    pub fn instruction(&self, issued: Issued) -> &LinkedInstruction {
        &self.body(issued.body)[issued.index as usize]
    }
}

/// An instruction as a rank executes it.
pub(crate) struct LinkedInstruction {
    pub work: Work,
    /// What is dead afterwards.
    pub(super) frees: Box<[Slot]>,
    /// The parameters whose gradients are freed, so that their sums begin anew with the next write.
    pub(super) ends: Box<[ParamId]>,
}

/// What a rank does at an instruction.
pub(crate) enum Work {
    /// Something that needs nobody else.
    Local(Local),
    /// Sends its part of a route.
    Send(Sends),
    /// Receives its part of a route.
    Receive(Receives),
    /// Takes part in a collective.
    Collective(Collective),
    /// Publishes for others.
    Publish(Publish),
    /// Fetches what another has published.
    Fetch(Fetch),
}

/// What needs nobody else.
pub(crate) enum Local {
    Load(Load),
    LoadRows(LoadRows),
    FindRows(FindRows),
    TakeRows(TakeRows),
    Kernel(Kernel),
    Slice(Slice),
    Move(Move),
    Combine(Box<[Combination]>),
    Free,
    Report(Slot),
    Extrapolate(Extrapolation),
    Norm(Norms),
    Statistics(Statistics),
    Update(Update),
    Cast(Cast),
    Compress(Compression),
    SumRows(SumRows),
    Average(Average),
    Difference(Difference),
    Due(Due),
    Test(Test),
}

/// What becomes of what was there before, as far as it is known ahead.
#[derive(Clone, Copy)]
pub(super) enum Begins {
    /// It is overwritten.
    Always,
    /// It is added to.
    Never,
    /// It is overwritten by the first write of a parameter's gradient.
    WithParam(ParamId),
    /// It is overwritten by the first write of a tensor.
    WithTensor(TensorId),
    /// It is behind what was written of a tensor before.
    Behind(TensorId),
}

impl Begins {
    /// Of a write of one parameter or of something else.
    pub fn of(write: Write) -> Begins {
        match (write.mode, write.to.window) {
            (_, Window::Next { .. }) => Begins::Behind(write.to.tensor),
            (Mode::Set, _) => Begins::Always,
            (Mode::AddUnlessFirst, Window::Param(param)) => Begins::WithParam(param),
            (Mode::Add | Mode::AddUnlessFirst, _) => Begins::Never,
        }
    }
}

/// What instructions are linked to.
pub(super) struct Linker<'a> {
    pub shared: &'a Shared,
    pub class: &'a Class,
    pub position: usize,
    /// Of one micro-batch over all replicas.
    pub extents: &'a Extents,
    pub plan: &'a BufferPlan,
    pub store: &'a Store,
    pub parameters: &'a Parameters,
    pub counted: &'a CountedRows,
    /// What kernels depend on, which changes from run to run.
    pub settings: Vec<Setting>,
    /// The messages that the rank sends, by their number.
    pub sent: Vec<SentMessage>,
    /// Collectives that have been linked.
    pub collectives: usize,
    /// The instruction that is linked.
    pub body: BodyId,
    pub index: u32,
}

impl Linker<'_> {
    /// Links all bodies.
    pub fn link(&mut self) -> Linked {
        let class = self.class;
        let body = |(body, of): (u32, &shardloom_program::Body)| {
            let instructions = (0u32..).zip(&of.instructions);
            let linked = instructions.map(|(index, instruction)| {
                (self.body, self.index) = (BodyId(body), index);
                self.instruction(instruction)
            });
            linked.collect()
        };
        Linked { bodies: (0u32..).zip(&class.bodies).map(body).collect() }
    }

    fn instruction(&mut self, instruction: &Instruction) -> LinkedInstruction {
        let work = match &instruction.action {
            Action::Send { route } => Work::Send(Sends::link(self, *route, instruction)),
            Action::Receive { route } => Work::Receive(Receives::link(self, *route, instruction)),
            Action::Collective { .. } => Work::Collective(Collective::link(self, instruction)),
            Action::Publish { .. } => Work::Publish(Publish::link(self, instruction)),
            Action::Fetch { group } => Work::Fetch(Fetch::link(self, group, instruction)),
            _ => Work::Local(self.local(instruction)),
        };
        let frees = instruction.frees.iter().map(|&freed| self.store.slot(freed)).collect();
        let ends = instruction.frees.iter().map(|&freed| self.class.tensor(freed));
        let ends = ends.filter(|tensor| tensor.content == Content::Gradient);
        let ends = ends.filter_map(|tensor| tensor.bucket);
        let ends = ends.flat_map(|bucket| &self.class.bucket(bucket).params).copied().collect();
        LinkedInstruction { work, frees, ends }
    }

    fn local(&mut self, instruction: &Instruction) -> Local {
        match &instruction.action {
            Action::Load { value, layout } => {
                Local::Load(Load::link(self, *value, layout, instruction))
            }
            Action::LoadRows { table, microbatches } => {
                Local::LoadRows(LoadRows::link(self, (*table, microbatches), instruction))
            }
            Action::FindRows => Local::FindRows(FindRows::link(self, instruction)),
            Action::TakeRows => Local::TakeRows(TakeRows::link(self, instruction)),
            Action::Kernel { op, pass, assignment, .. } => {
                Local::Kernel(Kernel::link(self, (*op, *pass, assignment), instruction))
            }
            Action::Slice { axis, over } => {
                Local::Slice(Slice::link(self, *axis, *over, instruction))
            }
            Action::Copy if instruction.is_move() => Local::Move(Move::link(self, instruction)),
            Action::Add | Action::Copy => Local::Combine(Combination::link(self, instruction)),
            Action::Free => Local::Free,
            Action::Report => Local::Report(self.store.slot(instruction.reads[0].tensor)),
            Action::Extrapolate { forward } => {
                Local::Extrapolate(Extrapolation::link(self, *forward, instruction))
            }
            Action::Norm => Local::Norm(Norms::link(self, instruction)),
            Action::Statistics { round } => {
                Local::Statistics(Statistics::link(self, *round, instruction))
            }
            Action::Optimizer => Local::Update(Update::link(self, instruction)),
            Action::Cast => Local::Cast(Cast::link(self, instruction)),
            Action::Compress { .. } | Action::Decompress { .. } => {
                Local::Compress(Compression::link(self, instruction))
            }
            Action::SumRows => Local::SumRows(SumRows::link(self, instruction)),
            &Action::Average { rate, replicas } => {
                Local::Average(Average::link(self, (rate, replicas), instruction))
            }
            Action::Difference => Local::Difference(Difference::link(self, instruction)),
            &Action::Due { every } => Local::Due(Due::link(self, every, instruction)),
            Action::Test => Local::Test(Test::link(self, instruction)),
            Action::Send { .. }
            | Action::Receive { .. }
            | Action::Collective { .. }
            | Action::Publish { .. }
            | Action::Fetch { .. } => {
                unreachable!("{:?} involves other ranks", instruction.action)
            }
        }
    }

    /// Where the tensor of a view is.
    pub fn slot(&self, view: View) -> Slot {
        self.store.slot(view.tensor)
    }

    /// Where a tensor is written whole.
    pub fn room(&self, tensor: TensorId) -> Room {
        Room::link(self, tensor)
    }

    /// The rank.
    pub fn rank(&self) -> RankId {
        RankId(self.class.first_rank.0 + self.position as u32)
    }

    /// The place of the rank among those of a group that it changes a layout or joins rows with, and how many they
    /// are.
    pub fn place_in_group(&self, group: &Group) -> (usize, usize) {
        match group {
            Group::Mesh(axes) => {
                (self.class.mesh.index_along(self.position, axes), self.class.mesh.span(axes))
            }
            Group::Classes(classes) => {
                let program = &self.shared.program;
                let is_own = |&id: &ClassId| program.class(id).first_rank == self.class.first_rank;
                let place = classes.iter().position(is_own);
                (place.expect("a class is in the groups that it acts in"), classes.len())
            }
            Group::World => unreachable!("nothing is spread over all ranks"),
        }
    }
}
