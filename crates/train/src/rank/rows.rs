//! Rows whose number is known only while running: their exchange between experts and samples, and what is
//! counted of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardloom_data::Part;
use shardloom_graph::op::Overflow;
use shardloom_graph::{Graph, OpId, OpKind, ValueId};
use shardloom_kernels::device::HostSliceMut;
use shardloom_kernels::{Buffer, Device, View};
use shardloom_program::{
    Action, Assignment, BucketId, ClassId, Collective, Group, Instruction, MeasuredRows, Placement,
    Program,
};
use smallvec::{SmallVec, smallvec};

use super::arena::Room;
use super::link::{Linker, Local, Work};
use super::lookups::Lookups;
use super::store::Slot;
use super::{At, LinkedInstruction, Rank};
use crate::{Error, Result};

/// One number for each member of a group.
type PerMember = SmallVec<[usize; 8]>;

/// A rank's part in an exchange of rows.
pub struct RowExchange {
    /// It begins with what goes to the members, one after the other, and afterwards with what came from them.
    pub(crate) buffer: Buffer,
    /// Elements to each member.
    pub(crate) sent: PerMember,
    /// Elements from each member.
    pub(crate) received: PerMember,
    /// This rank's place among the members.
    own: usize,
}

impl RowExchange {
    /// Where in the buffer rows lie before or afterwards.
    pub(crate) fn filled(&self) -> Range<usize> {
        let [sent, received] = [&self.sent, &self.received].map(|each| each.iter().sum::<usize>());
        0..sent.max(received)
    }

    /// Bytes that go to others.
    pub(crate) fn sent_bytes(&self) -> u64 {
        let elements = self.sent.iter().sum::<usize>() - self.sent[self.own];
        (elements * self.buffer.format().bytes()) as u64
    }
}

/// Lists that are filled at each routing and each exchange of rows.
#[derive(Default)]
pub(super) struct Lists {
    own: Vec<f32>,
    others: Vec<f32>,
    blocks: Vec<usize>,
    /// Rows of a table, and where indices stand among them.
    pub(super) rows: Vec<u32>,
    pub(super) indices: Vec<u32>,
}

/// Copies numbers of rows to the host.
fn count(device: &dyn Device, counts: View<'_>, to: &mut Vec<f32>) {
    to.clear();
    to.resize(counts.len(), 0.0);
    device.download(counts, HostSliceMut::F32(to));
}

/// How many rows these are.
fn sum(counts: &[f32]) -> usize {
    counts.iter().map(|&count| count as usize).sum()
}

/// Rows by two indices: those that a rank keeps together, and members of its group.
struct Blocks<'a> {
    /// `[own, members]`: rows of each.
    rows: &'a [usize],
    members: usize,
    width: usize,
}

impl Blocks<'_> {
    /// The rows that `counts [experts, samples]` says, by expert and by the member that has the sample.
    fn by_expert<'a>(
        counts: &[f32],
        experts: usize,
        (members, width): (usize, usize),
        rows: &'a mut Vec<usize>,
    ) -> Blocks<'a> {
        let samples = counts.len() / experts;
        rows.clear();
        rows.extend(counts.chunks_exact(samples / members).map(sum));
        Blocks { rows, members, width }
    }

    /// Elements of each member's blocks.
    fn by_member(&self) -> PerMember {
        let mut elements: PerMember = smallvec![0; self.members];
        for rows in self.rows.chunks_exact(self.members) {
            elements.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += rows * self.width);
        }
        elements
    }

    /// Calls `visit` for each block with where it lies: if experts come first, and if members do.
    fn each(&self, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
        let mut by_member = self.by_member();
        let mut first = 0;
        for elements in &mut by_member {
            first += std::mem::replace(elements, first);
        }
        let mut at = 0;
        for (index, rows) in self.rows.iter().enumerate() {
            let (elements, by_member) = (rows * self.width, &mut by_member[index % self.members]);
            visit(at..at + elements, *by_member..*by_member + elements);
            at += elements;
            *by_member += elements;
        }
    }

    /// From the order of members to the order of experts.
    fn join(&self, device: &dyn Device, from: &Buffer, to: &mut Buffer) {
        self.each(|of_expert, of_member| {
            device.copy(from.view().slice(of_member), to.view_mut().slice(of_expert));
        });
    }

    /// From the order of experts to the order of members.
    fn cut(&self, device: &dyn Device, from: &Buffer, to: &mut Buffer) {
        self.each(|of_expert, of_member| {
            device.copy(from.view().slice(of_expert), to.view_mut().slice(of_member));
        });
    }
}

/// Elements of the rows of each of so many runs of experts.
fn by_run(counts: &[f32], runs: usize, width: usize) -> PerMember {
    counts.chunks_exact(counts.len() / runs).map(|counts| sum(counts) * width).collect()
}

/// An exchange of rows.
pub(super) struct RowMove {
    rows: Slot,
    /// What counts them before and afterwards.
    own: Slot,
    others: Slot,
    /// This rank's place among the members, and how many they are.
    place: usize,
    members: usize,
    /// Elements of a row.
    width: usize,
    way: Way,
}

/// Which way rows go.
enum Way {
    /// To their experts. They lie as they are sent, and are joined where they arrive: each of so many experts'.
    ToExperts { sent: Room, experts: usize, result: Room },
    /// Back to their samples. They are cut by who has these, and arrive as they lie.
    ToSamples { experts: usize, result: Room },
}

/// What is noted where rows are dealt to experts.
pub(super) struct Routing {
    op: OpId,
    /// Which of the rank's logs is of it.
    log: usize,
    counts: Slot,
    slots: usize,
    overflow: Overflow,
}

impl RowMove {
    /// Links an exchange of rows.
    pub fn link(
        linker: &Linker<'_>,
        kind: Collective,
        group: &Group,
        instruction: &Instruction,
    ) -> RowMove {
        let [rows, own, others] = [0, 1, 2].map(|index| instruction.reads[index]);
        let (place, members) = linker.place_in_group(group);
        let result = instruction.writes[0].to.tensor;
        let bound = linker.class.tensor(rows.tensor).local_shape();
        let way = match kind {
            Collective::AllToAll { to: 0, .. } => Way::ToExperts {
                sent: linker.room(instruction.writes[1].to.tensor),
                experts: linker.class.tensor(result).local_shape()[0],
                result: linker.room(result),
            },
            _ => Way::ToSamples { experts: bound[0], result: linker.room(result) },
        };
        let [rows, own, others] = [rows, own, others].map(|view| linker.slot(view));
        RowMove { rows, own, others, place, members, width: bound[3], way }
    }
}

impl Routing {
    /// Links what is noted of an operator, if it deals rows to experts.
    pub fn link(linker: &Linker<'_>, op: OpId, instruction: &Instruction) -> Option<Routing> {
        let OpKind::Route { slots, overflow } = linker.shared.graph.op(op).kind else {
            return None;
        };
        let log = linker.counted.routed.iter().position(|log| log.op == op)?;
        let counts = linker.slot(instruction.writes[3].to);
        Some(Routing { op, log, counts, slots, overflow })
    }
}

// How many rows there are is known only while running: where each lies and how many go where is worked out each
// time.
impl Rank {
    /// What this rank brings into an exchange of rows.
    pub(super) fn bring_rows(&mut self, of: &RowMove, at: At) -> RowExchange {
        let RowMove { rows, own, others, place, members, width, ref way } = *of;
        let Rank { shared, arena, store, lists, .. } = self;
        let device = &*shared.device;
        let Lists { own: own_counts, others: other_counts, blocks, .. } = lists;
        count(device, store.get(own, at).view(), own_counts);
        count(device, store.get(others, at).view(), other_counts);
        let held = store.get(rows, at);
        match way {
            Way::ToExperts { sent: room, experts, .. } => {
                let sent = by_run(own_counts, members, width);
                let all = 0..sent.iter().sum();
                let mut buffer = arena.take(room, at);
                device.copy(held.view().slice(all.clone()), buffer.view_mut().slice(all));
                let blocks = Blocks::by_expert(other_counts, *experts, (members, width), blocks);
                RowExchange { buffer, sent, received: blocks.by_member(), own: place }
            }
            Way::ToSamples { experts, result } => {
                let blocks = Blocks::by_expert(own_counts, *experts, (members, width), blocks);
                let mut buffer = arena.take(result, at);
                blocks.cut(device, held, &mut buffer);
                let received = by_run(other_counts, members, width);
                RowExchange { buffer, sent: blocks.by_member(), received, own: place }
            }
        }
    }

    /// Where rows that have come to their experts are joined, if not where the exchange leaves them.
    pub(super) fn rows_place(&self, of: &RowMove, at: At) -> Option<Buffer> {
        match &of.way {
            Way::ToExperts { result, .. } => Some(self.arena.take(result, at)),
            Way::ToSamples { .. } => None,
        }
    }

    /// Takes the result of an exchange of rows.
    pub(super) fn settle_rows(
        &mut self,
        of: &RowMove,
        at: At,
        (exchange, place): (RowExchange, Option<Buffer>),
    ) {
        let Rank { shared, store, lists, .. } = self;
        let device = &*shared.device;
        let (arrived, result) = match (place, &of.way) {
            (Some(mut joined), Way::ToExperts { experts, result, .. }) => {
                let Lists { others, blocks, .. } = lists;
                count(device, store.get(of.others, at).view(), others);
                let each = (of.members, of.width);
                let blocks = Blocks::by_expert(others, *experts, each, blocks);
                blocks.join(device, &exchange.buffer, &mut joined);
                (joined, result)
            }
            (_, Way::ToExperts { result, .. } | Way::ToSamples { result, .. }) => {
                (exchange.buffer, result)
            }
        };
        store.put(result.slot, at, arrived);
    }

    /// Notes how many rows a routing gave to each expert.
    ///
    /// # Errors
    /// If an expert has more than it has slots for and that is to stop the run.
    pub(super) fn note_rows(&mut self, routing: &Routing, at: At) -> Result<()> {
        let Routing { op, log, counts, slots, overflow } = *routing;
        let Rank { shared, store, lists, counted, .. } = self;
        count(&*shared.device, store.get(counts, at).view(), &mut lists.own);
        let (log, counts, microbatch) = (&mut counted.routed[log], &lists.own, at.microbatch());
        let samples = log.placement.extent[1];
        let over = counts.iter().position(|&count| count as usize > slots);
        if let (Some(place), Overflow::Stop) = (over, overflow) {
            let (expert, sample) = (place / samples, place % samples);
            let (microbatch, program) = (u64::from(microbatch), &shared.program);
            let first = microbatch * program.microbatch_samples as u64;
            let step = self.now.first_step + microbatch / program.microbatches as u64;
            return Err(Error::Overflow {
                step: (self.now.part == Part::Training).then_some(step),
                layer: shared.graph.op(op).name.clone(),
                expert,
                sample: self.now.first_sample + first + (log.placement.start[1] + sample) as u64,
                count: counts[place] as u64,
                bound: slots as u64,
            });
        }
        if self.now.part == Part::Validation {
            return Ok(());
        }
        let place = microbatch as usize % log.microbatches * counts.len();
        let noted = log.counts[place..].iter_mut().zip(counts);
        noted.for_each(|(noted, &count)| *noted = count as u32);
        Ok(())
    }

    /// What this rank counted of the rows of the last step that was trained.
    pub fn row_counts(&self) -> Vec<NotedRows> {
        let of = |log: &Log| -> Vec<NotedRows> {
            (0..log.microbatches as u32).map(|microbatch| log.noted(microbatch)).collect()
        };
        let lookups = self.counted.lookups.iter().map(Lookups::noted);
        self.counted.routed.iter().flat_map(of).chain(lookups).collect()
    }

    /// Adds what this rank has just counted, if the instruction that it ran was a routing.
    pub fn add_new_row_counts(
        &self,
        instruction: &LinkedInstruction,
        microbatch: u32,
        all: &mut MeasuredRows,
    ) {
        self.add_new_lookups(instruction, all);
        let Work::Local(Local::Kernel(kernel)) = &instruction.work else { return };
        if let Some(routing) = kernel.routing() {
            let log = &self.counted.routed[routing.log];
            log.noted(microbatch % log.microbatches as u32).add_to(all);
        }
    }
}

/// What a rank has counted, by routing.
pub(super) struct CountedRows {
    routed: Vec<Log>,
    lookups: Vec<Lookups>,
}

/// The counts of one routing.
struct Log {
    op: OpId,
    value: ValueId,
    /// Experts and samples of a micro-batch.
    of: [usize; 2],
    /// Those that are counted here.
    placement: Placement,
    microbatches: usize,
    /// `[microbatches, experts, samples]`
    counts: Vec<u32>,
}

impl CountedRows {
    /// Room for all that `position` of `class` counts in a step.
    pub fn new(graph: &Graph, program: &Program, id: ClassId, position: usize) -> CountedRows {
        let class = program.class(id);
        let mut logs: Vec<Log> = vec![];
        let extents = program.microbatch_extents(graph);
        let kernels = class.bodies.iter().flat_map(|body| &body.instructions);
        let kernels = kernels.filter_map(|it| match &it.action {
            Action::Kernel { op, assignment, .. } => Some((*op, assignment)),
            _ => None,
        });
        let routings = kernels.filter(|&(op, _): &(OpId, &Assignment)| {
            matches!(graph.op(op).kind, OpKind::Route { .. })
        });
        for (op, assignment) in routings {
            if logs.iter().any(|log| log.op == op) {
                continue;
            }
            let value = graph.op(op).outputs[3];
            let shape = extents.shape(&graph.value(value).axes);
            let placement =
                assignment.output(graph, op, 3).placement(&shape, &class.mesh, position);
            let microbatches = program.microbatches;
            let counts = vec![0; microbatches * placement.elements()];
            let of = [shape[0], shape[1]];
            logs.push(Log { op, value, of, placement, microbatches, counts });
        }
        CountedRows { routed: logs, lookups: Lookups::of(id, class) }
    }

    /// Which log is of the lookups in a table.
    pub fn lookups_of(&self, table: BucketId) -> usize {
        let found = self.lookups.iter().position(|log| log.is_of(table));
        found.expect("each table that servers hold has a log")
    }

    /// Notes the different rows that a step has looked up, in ascending order.
    pub fn note_lookups(&mut self, log: usize, rows: &[u32]) {
        self.lookups[log].note(rows);
    }

    /// What was noted last.
    pub fn noted_lookups(&self, log: usize) -> NotedRows {
        self.lookups[log].noted()
    }
}

impl Log {
    fn noted(&self, microbatch: u32) -> NotedRows {
        let elements = self.placement.elements();
        let rows = self.counts[microbatch as usize * elements..][..elements].to_vec();
        let Log { value, of, placement, .. } = self;
        NotedRows::Routed {
            counts: *value,
            microbatch,
            of: *of,
            placement: placement.clone(),
            rows,
        }
    }
}

/// What one rank counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NotedRows {
    /// A routing's rows in a micro-batch of a step.
    Routed {
        counts: ValueId,
        microbatch: u32,
        /// Experts and samples of the micro-batch.
        of: [usize; 2],
        /// Those that were counted.
        placement: Placement,
        /// `[experts, samples]` of these.
        rows: Vec<u32>,
    },
    /// Rows of a table that servers hold, by piece, in a step.
    LookedUp { worker: u32, bucket: u32, pieces: Vec<u32> },
}

impl NotedRows {
    /// Adds it to what other ranks counted.
    pub fn add_to(self, all: &mut MeasuredRows) {
        match self {
            NotedRows::Routed { counts, microbatch, of, placement, rows } => {
                all.note((counts, microbatch), of, &placement, rows);
            }
            NotedRows::LookedUp { worker, bucket, pieces } => {
                all.note_lookups(ClassId(worker), BucketId(bucket), pieces);
            }
        }
    }
}
